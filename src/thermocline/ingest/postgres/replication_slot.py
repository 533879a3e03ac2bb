"""The replication slot: the source's own memory of what it must still send us.

It may never be ahead of the bookmark. Where it is, or is gone, data may be missing, and that is
said; where it is behind, it is brought up to it.
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
from thermocline.ingest.postgres.database import Captured, Database, Slot

if TYPE_CHECKING:
    from thermocline.contract.definition import Contract
    from thermocline.ingest.postgres.log_position import Place
    from thermocline.ingest.source import Source
    from thermocline.lake import Lake

_BYTES = re.compile(r"\b(?:binary|fixed)\b")
PATIENCE = 20.0
"""How long, in seconds, a slot may still be held by a reader that is dying."""


class NewHistory(LostData):
    """The source's log is another one: what landed and what comes cannot be put in one order."""

    def __init__(self, source: str, table: str, said: str) -> None:
        super().__init__(source, f"the source's log is {said}.")
        self.next_step = (
            "Was it restored from a backup? Data may be missing, and places in its log no longer "
            f"follow those in {table}. Land it in a new table: give the source another target."
        )


class Keeper:
    """Looks after the slot of one source."""

    def __init__(self, lake: Lake, source: Source, prefix: str) -> None:
        self._lake = lake
        self._source = source
        self._prefix = prefix
        self._database = Database(source.connection)

    @cached_property
    def name(self) -> str:
        """A slot that nobody else has: another lake's table of the same name has another id."""
        if self._source.connection.slot is not None:
            return str(self._source.connection.slot)
        table = str(self._lake.iceberg(self._source.target).metadata.table_uuid)
        return f"{self._prefix[:50]}_{hashlib.sha256(table.encode()).hexdigest()[:8]}"

    def lock(self) -> Any:
        """A connection that keeps all others from this slot, until it is closed.

        Two processes that make, read and drop one slot would each take the other's for its own.
        A process that was just killed needs a moment to let go.
        """
        deadline = time.monotonic() + PATIENCE
        while (held := self._database.lock(f"thermocline {self.name}")) is None:
            if time.monotonic() > deadline:
                raise OtherStream(self._source.name, self._source.target)
            time.sleep(0.2)
        return held

    def verify(self, place: Place) -> Slot:
        """The slot, if it still has all that follows a place. Else raises LostData."""
        log = self._database.log()
        if log.system != place.system or log.end < (place.commit or 0):
            said = "another server's" if log.system != place.system else "back before what landed"
            raise NewHistory(self._source.name, self._source.target, said)
        slot = self._released(place.slot)
        if slot is None:
            raise self.lost(f"the replication slot {place.slot} was dropped")
        if slot.lost:
            raise self.lost(f"the source threw away what the replication slot {place.slot} needed")
        if slot.confirmed > (place.commit or 0):
            raise self.lost(f"the replication slot {place.slot} was moved on or made anew")
        return slot

    def catch_up(self, place: Place) -> None:
        """Have the source send what is after a place, and nothing that is before it."""
        found = self.verify(place)
        if place.commit is not None and found.confirmed < place.commit:
            self._database.advance_slot(place.slot, place.commit)

    def clear(self, *, again: bool) -> None:
        """Make room for a new slot: the first state is true at the moment that a slot begins.

        A slot that a person named is only dropped when its tables are read anew.
        """
        if self._released(self.name) is None:
            return
        if self._source.connection.slot is not None and not again:
            raise BadInput(
                f"{self._source.name}: the replication slot {self.name} exists, but nothing of it "
                f"has landed in {self._source.target}.",
                f"Drop it, it is made anew: select pg_drop_replication_slot('{self.name}').",
            )
        self._database.drop_slot(self.name)

    def lost(self, what: str) -> LostData:
        """The error for changes that the source no longer has."""
        error = LostData(self._source.name, f"{what}. Changes since then did not land.")
        error.next_step = (
            "Data may be missing. To read the tables anew and delete what is gone from them: "
            f"thermo stream {self._source.name} --accept-loss."
        )
        return error

    def added(self, place: Place, contract: Contract) -> dict[str, list[int]]:
        """The columns of each table. Raises LostData for a new one that came with values.

        A column that is added with a default has it in all rows, and Postgres sends none of them.
        """
        wanted = {column.name for column in contract.columns}
        found = self._database.defaults(self._source.connection.tables)
        for table, columns in found.items():
            known = place.columns.get(table, list(columns))
            for column in (name for n, name in columns.items() if name and n not in known):
                if column in wanted or contract.drift is DriftMode.ADD:
                    error = LostData(
                        self._source.name,
                        f"the column {column} of {table} was added with a default. Rows of before "
                        "have it too, but Postgres does not send them.",
                    )
                    error.next_step = (
                        f"To read the tables anew: thermo stream {self._source.name} --accept-loss."
                    )
                    raise error
        return {table: sorted(columns) for table, columns in found.items()}

    def _released(self, name: str) -> Slot | None:
        """The slot when nobody holds it. A reader that was just killed needs a moment."""
        deadline = time.monotonic() + PATIENCE
        while True:
            slot = self._database.slot(name)
            if slot is None or not slot.active:
                return slot
            if time.monotonic() > deadline:
                raise OtherStream(self._source.name, self._source.target)
            time.sleep(0.2)


def refuse_unpublished(
    database: Database, source: Source, contract: Contract, publication: str
) -> None:
    """Raise Permanent for a column of the contract that the source never sends."""
    named = {column.name for column in contract.columns}
    for table, column in database.unpublished(publication, source.connection.tables):
        if column in named:
            raise Permanent(
                f"{source.name}: the column {column} of {table} is not in the publication "
                f"{publication}, as generated columns are not.",
                "Take it out of the contract, or have the publication publish it.",
            )


def refuse_bits_as_bytes(database: Database, source: Source, contract: Contract) -> None:
    """Raise Permanent for a bit string that the contract calls bytes: its digits are text."""
    binary = {column.name for column in contract.columns if _BYTES.search(str(column.type))}
    for column in database.columns(source.connection.tables):
        if column.name in binary and column.type.removesuffix("[]") in {"bit", "varbit"}:
            raise Permanent(
                f"{source.name}: the column {column.name} of {column.table} is of type "
                f"{column.type}, whose values come as text of 0 and 1, and not as bytes.",
                f"Declare it as string in the contract of {source.target}.",
            )


def fit_tables(database: Database, source: Source, contract: Contract) -> list[Captured]:
    """The captured tables, when they can be captured as the contract wants them."""
    if database.log().level != "logical":
        raise Permanent(
            f"{source.name}: the source's wal_level is not logical.",
            "Set wal_level = logical in postgresql.conf and restart it.",
        )
    tables = database.captured(source.connection.tables)
    required = {column.name for column in contract.columns if column.required}
    for table in tables:
        lacks = sorted(required - {*table.key, *debezium.COLUMNS})
        if source.connection.outbox is None and not table.whole_deletes and lacks:
            raise Permanent(
                f"{source.name}: a delete in {table.name} only says the row's key, but "
                f"{source.target} requires {', '.join(lacks)}.",
                f"In the source: alter table {table.name} replica identity full. Or do not "
                "require them in the contract.",
            )
    return tables
