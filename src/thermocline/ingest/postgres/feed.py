"""A feed of the changes of a Postgres database, read by this machine without Kafka.

The slot records what the source must still keep. It never runs ahead of the bookmark, because only
published changes advance it. So after any crash the source still has everything that has not
landed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from thermocline.config import private_files
from thermocline.errors import ThermoclineError, Transient
from thermocline.ingest import marks
from thermocline.ingest.batch import Provenance
from thermocline.ingest.debezium import Truncation
from thermocline.ingest.feed import LostData, Pull
from thermocline.ingest.layout import Layout
from thermocline.ingest.postgres import spool
from thermocline.ingest.postgres.capture_process import CaptureProcess, build_request
from thermocline.ingest.postgres.database import Database
from thermocline.ingest.postgres.events import OUTBOX_TOPIC_PREFIX
from thermocline.ingest.postgres.log_position import LogPosition, PositionTracker
from thermocline.ingest.postgres.replication_slot import (
    LogReplaced,
    SlotManager,
    check_tables,
    refuse_bits_as_bytes,
    refuse_unpublished,
)
from thermocline.lake import MainMoved

if TYPE_CHECKING:
    from thermocline.contract.definition import Contract
    from thermocline.ingest.marks import Position
    from thermocline.ingest.postgres.capture_process import Cells
    from thermocline.ingest.source import BatchLimits, Source
    from thermocline.lake import Lake

SILENCE_TIMEOUT_SECONDS = 600.0
"""How many seconds to wait for a record that is certain to arrive. A new slot waits for older
transactions to end, and Postgres reads a large transaction whole before sending it."""

RELEASE_BYTES = 64 << 20
"""After this many bytes of log without a captured change, an empty commit acknowledges them."""


@dataclass(frozen=True)
class _PendingPull:
    """A pull and the positions it spans, kept until it has landed."""

    start: LogPosition
    end: LogPosition
    pull: Pull


class PostgresFeed:
    """The changes of one source. The capture process starts with the first pull."""

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._lake = lake
        self._source = source
        self._contract = contract
        self._settings = source.connection
        self._database = Database(source.connection)
        self._prefix = f"thermocline_{source.name}".replace("-", "_").lower()
        self._slot_manager = SlotManager(lake, source, self._prefix)
        self._tables = tuple(self._settings.tables)
        self._table_numbers = {table: number for number, table in enumerate(self._tables)}
        self._process: CaptureProcess | None = None
        self._tracker = PositionTracker(LogPosition())
        self._pending: _PendingPull | None = None
        self._last_position = LogPosition()
        self._idle_lsn = 0
        self._table_columns: dict[str, list[int]] = {}
        self._acknowledged: LogPosition | None = None
        self._lock: Any = None
        self._folder: Path | None = None

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """Check that the source still has what follows; with `accept_loss`, read it all again."""
        self._stop_capture()
        if self._lock is None or self._lock.closed:
            self._lock = self._slot_manager.lock()
        target = self._source.target
        state = self._lake.state(target)
        mark = marks.read(self._lake, state, self._source.name, accept_loss=accept_loss)
        if (mark.position if mark else None) != position:
            raise MainMoved([target], "main")  # by the process that had the lock before
        log_position = LogPosition.from_bookmark(position)
        if log_position.commit is None:
            return position
        try:
            self._slot_manager.verify(log_position)
            self._slot_manager.check_columns(log_position, self._contract)
        except LostData as error:
            if not accept_loss or isinstance(error, LogReplaced):
                raise
            return LogPosition(records=log_position.records, again=True).to_bookmark()
        return position

    def pull(self, position: Position | None, limits: BatchLimits) -> Pull | None:
        """Return the initial snapshot as one batch, then changes up to now, within limits."""
        log_position = LogPosition.from_bookmark(position)
        if self._pending is not None and self._pending.start == log_position:
            return self._pending.pull
        self._pending = None
        if self._process is None or log_position != self._last_position:
            self._start_capture(log_position)
        with self._stop_on_failure():
            pending = (
                self._read_snapshot()
                if log_position.commit is None
                else self._read_changes(log_position, limits)
            )
        if pending is None:
            return None
        self._pending, self._last_position = pending, pending.end
        return pending.pull

    def acknowledge(self, position: Position) -> None:
        """Acknowledge published changes, so that the source need not keep them."""
        log_position = LogPosition.from_bookmark(position)
        self._acknowledged = log_position
        if self._process is not None and log_position.commit is not None:
            try:
                self._process.acknowledge(log_position.commit)
            except Transient:
                self._stop_capture()  # the batch landed; the next pull starts from its bookmark

    def close(self) -> None:
        """Stop the capture process and drop what was read but has not landed."""
        self._stop_capture()
        if self._acknowledged is not None:
            # The process may have ended before it acknowledged the position.
            with suppress(ThermoclineError):
                self._slot_manager.catch_up(self._acknowledged)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _stop_capture(self) -> None:
        self._pending = None
        if self._process is not None:
            self._process.close()
            self._process = None

    @contextmanager
    def _stop_on_failure(self) -> Iterator[None]:
        """On any failure, stop the capture, so that the next pull starts from the bookmark."""
        try:
            yield
        except BaseException:
            self._stop_capture()
            raise

    def _start_capture(self, log_position: LogPosition) -> None:
        self._stop_capture()
        publication = self._settings.publication or self._prefix
        check_tables(self._database, self._source, self._contract)
        refuse_bits_as_bytes(self._database, self._source, self._contract)
        if self._settings.publication is None:
            self._database.publish(publication, self._settings.tables)
        refuse_unpublished(self._database, self._source, self._contract, publication)
        if log_position.commit is None:
            # Before the tables are read: a column added in the meantime counts as new.
            self._table_columns = self._slot_manager.check_columns(LogPosition(), self._contract)
            self._slot_manager.drop_existing(again=log_position.again)
        else:
            self._slot_manager.catch_up(log_position)
        slot, first = log_position.slot or self._slot_manager.name, log_position.commit is None
        log = private_files.ensure_log(
            self._lake.settings.project, f"{self._source.name}.reader.log"
        )
        self._process = CaptureProcess(
            build_request(self._settings, slot, publication, first=first), log
        )
        self._tracker, self._last_position, self._idle_lsn = (
            PositionTracker(log_position),
            log_position,
            0,
        )

    def _read_snapshot(self) -> _PendingPull:
        """Read the initial snapshot as one batch, which becomes visible whole or not at all.

        The rows are kept in a file, so memory does not grow with them. An interrupted snapshot
        starts again with a new slot.
        """
        assert self._process is not None
        start = self._tracker.position
        records = start.records
        with self._open_spool() as (path, out):
            while (cells := self._next_record()) and cells[0] != b"S":
                if cells[0] == b"R" and (file := self._find_table_number(cells)) is not None:
                    records += 1
                    out.write(spool.format_record(file, records, cells))
        slot = self._database.find_slot(self._slot_manager.name)
        if slot is None:
            raise self._slot_manager.make_loss_error(
                "the replication slot vanished while the tables were read"
            )
        system = self._database.read_log_status().system
        end = LogPosition(
            system,
            self._slot_manager.name,
            slot.confirmed,
            records=records,
            columns=self._table_columns,
        )
        self._tracker = PositionTracker(end)
        truncations = self._make_reread_truncations(start, slot.restart) if start.again else []
        return _PendingPull(
            start,
            end,
            self._make_pull(
                path, start, end, truncations, caught_up=False, snapshot_lsn=slot.restart
            ),
        )

    def _make_reread_truncations(self, start: LogPosition, lsn: int) -> list[Truncation]:
        now = int(time.time() * 1000)
        files = range(len(self._tables))
        return [Truncation(file, start.records, lsn - 1, now, None, None) for file in files]

    def _read_changes(self, start: LogPosition, limits: BatchLimits) -> _PendingPull | None:
        """Read changes up to the current end of the log, or up to the limits of a batch."""
        assert self._process is not None
        if self._process.is_idle and self._database.read_log_status().end == self._idle_lsn:
            return None
        columns = self._slot_manager.check_columns(start, self._contract)
        until = self._database.mark_log()
        rows = size = 0
        caught_up = False
        truncations: list[Truncation] = []
        has_unsent = False
        with self._open_spool() as (path, out):
            while not caught_up and rows < limits.rows and size < limits.bytes:
                cells = self._next_record()
                if cells[0] == b"E":
                    self._tracker.end_transaction(int(cells[2]))
                    if int(cells[2]) > until:
                        caught_up, self._idle_lsn = True, int(cells[2])
                elif cells[0] == b"R":
                    txn, lsn = int(cells[1]), int(cells[2])
                    file = self._find_table_number(cells)
                    if not self._tracker.advance(txn, lsn, counts=file is not None) or file is None:
                        continue
                    position = self._tracker.position.records
                    if spool.is_truncate(cells):
                        truncations.append(spool.parse_truncate(file, position, cells))
                    has_unsent = has_unsent or spool.has_unsent_values(cells)
                    out.write(spool.format_record(file, position, cells))
                    rows += 1
                    size += len(cells[5])
        end = replace(self._tracker.position, columns=columns)
        if not rows and (end.commit or 0) - (start.commit or 0) < RELEASE_BYTES:
            return None
        pull = self._make_pull(
            path, start, end, truncations, caught_up=caught_up, has_unsent=has_unsent
        )
        return _PendingPull(start, end, pull)

    def _next_record(self) -> Cells:
        assert self._process is not None
        cells = self._process.next_record(SILENCE_TIMEOUT_SECONDS)
        if cells is None:
            raise self._silence_error()
        return cells

    def _silence_error(self) -> Transient:
        return Transient(
            f"{self._source.name}: the source sent nothing for {SILENCE_TIMEOUT_SECONDS:.0f} s.",
            "Has a transaction been open for long? See pg_stat_activity in the source.",
        )

    def _find_table_number(self, cells: Cells) -> int | None:
        """Return the number of the table, or None for an event that the source does not land."""
        topic = cells[3].decode()
        if self._settings.outbox is None:
            return self._table_numbers[topic]
        events = self._settings.outbox.events
        return 0 if not events or topic.removeprefix(OUTBOX_TOPIC_PREFIX) in events else None

    def _make_pull(
        self,
        path: Path,
        start: LogPosition,
        end: LogPosition,
        truncations: list[Truncation],
        *,
        caught_up: bool,
        snapshot_lsn: int | None = None,
        has_unsent: bool = False,
    ) -> Pull:
        pending = spool.Spool(
            self._lake,
            self._source,
            self._contract,
            path,
            tuple(truncations),
            snapshot_lsn,
            has_unsent,
        )
        count = end.records - start.records
        return Pull(
            tuple(self._make_provenance(name, end) for name in self._tables),
            pending.lines,
            end.to_bookmark(),
            records=None if truncations else count,
            behind=0 if caught_up else None,
        )

    def _make_provenance(self, table: str, log_position: LogPosition) -> Provenance:
        identity = hashlib.sha256(
            f"{log_position.system}/{log_position.slot}/{table}".encode()
        ).hexdigest()
        return Provenance(table, identity, Layout("jsonl"))

    @contextmanager
    def _open_spool(self) -> Iterator[tuple[Path, BinaryIO]]:
        """Open a file for a batch. It replaces the previous one, which has landed."""
        staging = private_files.ensure_folder(self._lake.settings.project) / "staging"
        folder = staging / "postgres" / self._source.name
        # A folder per process: a process that lost the lock may still land what it read.
        for leftover in folder.glob("[0-9]*"):
            if int(leftover.name) == os.getpid() or not _is_running(int(leftover.name)):
                shutil.rmtree(leftover, ignore_errors=True)
        self._folder = folder / str(os.getpid())
        self._folder.mkdir(parents=True)
        path = self._folder / f"{time.monotonic_ns()}.lines"
        with path.open("wb") as out:
            yield path, out


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
