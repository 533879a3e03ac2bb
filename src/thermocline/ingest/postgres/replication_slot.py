"""The replication slot: the source's record of which changes it must still send.

The slot must never be ahead of the bookmark. If it is, or if it is gone, data may be missing and
LostData is raised. If it is behind, it is advanced to the bookmark.
"""

from __future__ import annotations

import hashlib
import re
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import DriftMode
from thermocline.errors import BadInput, Permanent
from thermocline.ingest import debezium
from thermocline.ingest.feed import LostData, OtherStream
from thermocline.ingest.postgres.database import CapturedTable, Database, Slot

if TYPE_CHECKING:
    from thermocline.contract.definition import Contract
    from thermocline.ingest.postgres.log_position import LogPosition
    from thermocline.ingest.source import Source
    from thermocline.lake import Lake

_BINARY_TYPE = re.compile(r"\b(?:binary|fixed)\b")
RELEASE_TIMEOUT_SECONDS = 20.0
"""How many seconds to wait for an exiting reader to release a slot."""


class LogReplaced(LostData):
    """The source has another log: its changes cannot be ordered after those that landed."""

    def __init__(self, source: str, table: str, reason: str) -> None:
        super().__init__(source, f"the source's log is {reason}.")
        self.next_step = (
            "Was it restored from a backup? Data may be missing, and positions in its log no "
            f"longer follow those in {table}. Land it in a new table: give the source another "
            "target."
        )


class SlotManager:
    """Manages the replication slot of one source."""

    def __init__(self, lake: Lake, source: Source, prefix: str) -> None:
        self._lake = lake
        self._source = source
        self._prefix = prefix
        self._database = Database(source.connection)

    @cached_property
    def name(self) -> str:
        """The slot's name. It contains the table's id, so no other lake uses the same slot."""
        if self._source.connection.slot is not None:
            return str(self._source.connection.slot)
        table = str(self._lake.iceberg(self._source.target).metadata.table_uuid)
        return f"{self._prefix[:50]}_{hashlib.sha256(table.encode()).hexdigest()[:8]}"

    def lock(self) -> Any:
        """Return a connection that locks the slot until it is closed.

        Without the lock, two processes could create, read and drop each other's slot. A process
        that was just killed takes a moment to release its lock.
        """
        deadline = time.monotonic() + RELEASE_TIMEOUT_SECONDS
        while (connection := self._database.acquire_lock(f"thermocline {self.name}")) is None:
            if time.monotonic() > deadline:
                raise OtherStream(self._source.name, self._source.target)
            time.sleep(0.2)
        return connection

    def verify(self, log_position: LogPosition) -> Slot:
        """Return the slot if it still has everything after the position, else raise LostData."""
        log = self._database.read_log_status()
        if log.system != log_position.system or log.end < (log_position.commit or 0):
            reason = (
                "another server's"
                if log.system != log_position.system
                else "back before what landed"
            )
            raise LogReplaced(self._source.name, self._source.target, reason)
        slot = self._wait_until_released(log_position.slot)
        if slot is None:
            raise self.make_loss_error(f"the replication slot {log_position.slot} was dropped")
        if slot.is_lost:
            raise self.make_loss_error(
                f"the source threw away what the replication slot {log_position.slot} needed"
            )
        if slot.confirmed > (log_position.commit or 0):
            raise self.make_loss_error(
                f"the replication slot {log_position.slot} was moved on or recreated"
            )
        return slot

    def catch_up(self, log_position: LogPosition) -> None:
        """Advance the slot to the position, so that the source sends only later changes."""
        found = self.verify(log_position)
        if log_position.commit is not None and found.confirmed < log_position.commit:
            self._database.advance_slot(log_position.slot, log_position.commit)

    def drop_existing(self, *, again: bool) -> None:
        """Drop an existing slot: an initial snapshot is only consistent with a new slot.

        A slot that the settings name is dropped only when its tables are read again.
        """
        if self._wait_until_released(self.name) is None:
            return
        if self._source.connection.slot is not None and not again:
            raise BadInput(
                f"{self._source.name}: the replication slot {self.name} exists, but nothing of it "
                f"has landed in {self._source.target}.",
                f"Drop it, it is created again: select pg_drop_replication_slot('{self.name}').",
            )
        self._database.drop_slot(self.name)

    def make_loss_error(self, what: str) -> LostData:
        """Return the error for changes that the source no longer has."""
        error = LostData(self._source.name, f"{what}. Changes since then did not land.")
        error.next_step = (
            "Data may be missing. To read the tables again and delete what is gone from them: "
            f"thermo stream {self._source.name} --accept-loss."
        )
        return error

    def check_columns(self, log_position: LogPosition, contract: Contract) -> dict[str, list[int]]:
        """Return the columns of each table. Raise LostData for a column added with a default.

        Such a column has the default in all existing rows, which Postgres does not send.
        """
        named = {column.name for column in contract.columns}
        found = self._database.list_default_columns(self._source.connection.tables)
        for table, columns in found.items():
            known = log_position.columns.get(table, list(columns))
            for column in (name for n, name in columns.items() if name and n not in known):
                if column in named or contract.drift is DriftMode.ADD:
                    error = LostData(
                        self._source.name,
                        f"the column {column} of {table} was added with a default. Existing rows "
                        "have it too, but Postgres does not send them.",
                    )
                    error.next_step = (
                        "To read the tables again: "
                        f"thermo stream {self._source.name} --accept-loss."
                    )
                    raise error
        return {table: sorted(columns) for table, columns in found.items()}

    def _wait_until_released(self, name: str) -> Slot | None:
        """Return the slot once it is inactive. A reader that was just killed takes a moment."""
        deadline = time.monotonic() + RELEASE_TIMEOUT_SECONDS
        while True:
            slot = self._database.find_slot(name)
            if slot is None or not slot.is_active:
                return slot
            if time.monotonic() > deadline:
                raise OtherStream(self._source.name, self._source.target)
            time.sleep(0.2)


def refuse_unpublished(
    database: Database, source: Source, contract: Contract, publication: str
) -> None:
    """Raise Permanent for a column of the contract that the source never sends."""
    named = {column.name for column in contract.columns}
    for table, column in database.list_unpublished_columns(publication, source.connection.tables):
        if column in named:
            raise Permanent(
                f"{source.name}: the column {column} of {table} is not in the publication "
                f"{publication}, as generated columns are not.",
                "Take it out of the contract, or have the publication publish it.",
            )


def refuse_bits_as_bytes(database: Database, source: Source, contract: Contract) -> None:
    """Raise Permanent for a bit string that the contract declares binary: it arrives as text."""
    binary = {column.name for column in contract.columns if _BINARY_TYPE.search(str(column.type))}
    for column in database.list_columns(source.connection.tables):
        if column.name in binary and column.type.removesuffix("[]") in {"bit", "varbit"}:
            raise Permanent(
                f"{source.name}: the column {column.name} of {column.table} is of type "
                f"{column.type}, whose values come as text of 0 and 1, and not as bytes.",
                f"Declare it as string in the contract of {source.target}.",
            )


def check_tables(database: Database, source: Source, contract: Contract) -> list[CapturedTable]:
    """Return the captured tables; raise Permanent if they cannot satisfy the contract."""
    if database.read_log_status().level != "logical":
        raise Permanent(
            f"{source.name}: the source's wal_level is not logical.",
            "Set wal_level = logical in postgresql.conf and restart it.",
        )
    tables = database.describe_tables(source.connection.tables)
    required = {column.name for column in contract.columns if column.required}
    for table in tables:
        missing = sorted(required - {*table.key, *debezium.COLUMNS})
        if source.connection.outbox is None and not table.whole_deletes and missing:
            raise Permanent(
                f"{source.name}: a delete in {table.name} only has the row's key, but "
                f"{source.target} requires {', '.join(missing)}.",
                f"In the source: alter table {table.name} replica identity full. Or do not "
                "require them in the contract.",
            )
    return tables
