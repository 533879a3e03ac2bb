"""The changes of a Postgres database as a feed, read by this machine and without Kafka.

The slot is the source's own memory of what it must keep for us. It never runs ahead of the
bookmark: it is moved on only by what has been published, so whatever dies, the source still has
everything that has not landed.
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
from thermocline.ingest.postgres.capture_process import Reader, wanted
from thermocline.ingest.postgres.database import Database
from thermocline.ingest.postgres.events import ROUTED
from thermocline.ingest.postgres.log_position import Place, Walk
from thermocline.ingest.postgres.replication_slot import (
    Keeper,
    NewHistory,
    fit_tables,
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

PATIENCE = 600.0
"""How long, in seconds, the reader may say nothing while something is certain to come. A slot waits
for older transactions to end, and a large transaction is read whole before it is sent."""

RELEASE = 64 << 20
"""So many bytes of the source's log that concern others are let go of by a commit of their own."""


@dataclass(frozen=True)
class _Batch:
    """What was read between two places. It is kept until it has landed."""

    start: Place
    end: Place
    pull: Pull


class PostgresFeed:
    """One source's changes. The reader runs from the first pull on."""

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._lake = lake
        self._source = source
        self._contract = contract
        self._reach = source.connection
        self._database = Database(source.connection)
        self._prefix = f"thermocline_{source.name}".replace("-", "_").lower()
        self._slot = Keeper(lake, source, self._prefix)
        self._origins = tuple(self._reach.tables)
        self._numbers = {table: number for number, table in enumerate(self._origins)}
        self._reader: Reader | None = None
        self._walk = Walk(Place())
        self._held: _Batch | None = None
        self._given = Place()
        self._quiet = 0
        self._columns: dict[str, list[int]] = {}
        self._landed: Place | None = None
        self._lock: Any = None
        self._folder: Path | None = None

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """Check that the source still has what follows; with `accept_loss`, read it all anew."""
        self._stop()
        if self._lock is None or self._lock.closed:
            self._lock = self._slot.lock()
        target = self._source.target
        state = self._lake.state(target)
        mark = marks.read(self._lake, state, self._source.name, accept_loss=accept_loss)
        if (mark.position if mark else None) != position:
            raise MainMoved([target], "main")  # by the process that had the lock before
        place = Place.of(position)
        if place.commit is None:
            return position
        try:
            self._slot.verify(place)
            self._slot.added(place, self._contract)
        except LostData as error:
            if not accept_loss or isinstance(error, NewHistory):
                raise
            return Place(records=place.records, again=True).position()
        return position

    def pull(self, position: Position | None, limits: BatchLimits) -> Pull | None:
        """The first state of the tables as one batch, then changes up to now, within limits."""
        place = Place.of(position)
        if self._held is not None and self._held.start == place:
            return self._held.pull
        self._held = None
        if self._reader is None or place != self._given:
            self._start(place)
        with self._clean_end():
            batch = self._first_state() if place.commit is None else self._changes(place, limits)
        if batch is None:
            return None
        self._held, self._given = batch, batch.end
        return batch.pull

    def acknowledge(self, position: Position) -> None:
        """Let the source forget what is published."""
        place = Place.of(position)
        self._landed = place
        if self._reader is not None and place.commit is not None:
            try:
                self._reader.landed(place.commit)
            except Transient:
                self._stop()  # it has landed all the same, and the next pull begins from there

    def close(self) -> None:
        """End the reader, and drop what was read but has not landed."""
        self._stop()
        if self._landed is not None:
            # The reader may have ended before it told the source.
            with suppress(ThermoclineError):
                self._slot.catch_up(self._landed)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _stop(self) -> None:
        self._held = None
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    @contextmanager
    def _clean_end(self) -> Iterator[None]:
        """After a failure, whatever it was, the next pull begins from the bookmark."""
        try:
            yield
        except BaseException:
            self._stop()
            raise

    def _start(self, place: Place) -> None:
        self._stop()
        publication = self._reach.publication or self._prefix
        fit_tables(self._database, self._source, self._contract)
        refuse_bits_as_bytes(self._database, self._source, self._contract)
        if self._reach.publication is None:
            self._database.publish(publication, self._reach.tables)
        refuse_unpublished(self._database, self._source, self._contract, publication)
        if place.commit is None:
            # Before the tables are read: a column that is added meanwhile counts as new.
            self._columns = self._slot.added(Place(), self._contract)
            self._slot.clear(again=place.again)
        else:
            self._slot.catch_up(place)
        slot, first = place.slot or self._slot.name, place.commit is None
        log = private_files.ensure_log(
            self._lake.settings.project, f"{self._source.name}.reader.log"
        )
        self._reader = Reader(wanted(self._reach, slot, publication, first=first), log)
        self._walk, self._given, self._quiet = Walk(place), place, 0

    def _first_state(self) -> _Batch:
        """The tables as they are, whole: they become visible at once or not at all.

        They are kept in a file until then, so that memory does not grow with them. A snapshot
        that was interrupted begins anew, with a new slot.
        """
        assert self._reader is not None
        start = self._walk.place
        records = start.records
        with self._spooled() as (path, out):
            while (cells := self._next()) and cells[0] != b"S":
                if cells[0] == b"R" and (file := self._origin(cells)) is not None:
                    records += 1
                    out.write(spool.line(file, records, cells))
        slot = self._database.slot(self._slot.name)
        if slot is None:
            raise self._slot.lost("the replication slot vanished while the tables were read")
        system = self._database.log().system
        end = Place(system, self._slot.name, slot.confirmed, records=records, columns=self._columns)
        self._walk = Walk(end)
        cuts = self._anew(start, slot.restart) if start.again else []
        return _Batch(
            start, end, self._pulled(path, start, end, cuts, caught_up=False, reads_at=slot.restart)
        )

    def _anew(self, start: Place, lsn: int) -> list[Truncation]:
        now = int(time.time() * 1000)
        files = range(len(self._origins))
        return [Truncation(file, start.records, lsn - 1, now, None, None) for file in files]

    def _changes(self, start: Place, limits: BatchLimits) -> _Batch | None:
        """Changes up to what the source's log holds now, or as many as a batch may have."""
        assert self._reader is not None
        if self._reader.idle and self._database.log().end == self._quiet:
            return None
        columns = self._slot.added(start, self._contract)
        until = self._database.mark_log()
        rows = size = 0
        caught_up = False
        cuts: list[Truncation] = []
        lacking = False
        with self._spooled() as (path, out):
            while not caught_up and rows < limits.rows and size < limits.bytes:
                cells = self._next()
                if cells[0] == b"E":
                    self._walk.commit(int(cells[2]))
                    if int(cells[2]) > until:
                        caught_up, self._quiet = True, int(cells[2])
                elif cells[0] == b"R":
                    txn, lsn = int(cells[1]), int(cells[2])
                    file = self._origin(cells)
                    if not self._walk.record(txn, lsn, counts=file is not None) or file is None:
                        continue
                    position = self._walk.place.records
                    if spool.truncates(cells):
                        cuts.append(spool.cut(file, position, cells))
                    lacking = lacking or spool.lacks(cells)
                    out.write(spool.line(file, position, cells))
                    rows += 1
                    size += len(cells[5])
        end = replace(self._walk.place, columns=columns)
        if not rows and (end.commit or 0) - (start.commit or 0) < RELEASE:
            return None
        pull = self._pulled(path, start, end, cuts, caught_up=caught_up, lacking=lacking)
        return _Batch(start, end, pull)

    def _next(self) -> Cells:
        assert self._reader is not None
        cells = self._reader.next(PATIENCE)
        if cells is None:
            raise self._silent()
        return cells

    def _silent(self) -> Transient:
        return Transient(
            f"{self._source.name}: the source sent nothing for {PATIENCE:.0f} s.",
            "Is a transaction open since long? See pg_stat_activity in the source.",
        )

    def _origin(self, cells: Cells) -> int | None:
        """Return the number of the table, or None for an event that another source wants."""
        topic = cells[3].decode()
        if self._reach.outbox is None:
            return self._numbers[topic]
        events = self._reach.outbox.events
        return 0 if not events or topic.removeprefix(ROUTED) in events else None

    def _pulled(
        self,
        path: Path,
        start: Place,
        end: Place,
        cuts: list[Truncation],
        *,
        caught_up: bool,
        reads_at: int | None = None,
        lacking: bool = False,
    ) -> Pull:
        batch = spool.Spool(
            self._lake, self._source, self._contract, path, tuple(cuts), reads_at, lacking
        )
        count = end.records - start.records
        return Pull(
            tuple(self._provenance(name, end) for name in self._origins),
            batch.lines,
            end.position(),
            records=None if cuts else count,
            behind=0 if caught_up else None,
        )

    def _provenance(self, table: str, place: Place) -> Provenance:
        identity = hashlib.sha256(f"{place.system}/{place.slot}/{table}".encode()).hexdigest()
        return Provenance(table, identity, Layout("jsonl"))

    @contextmanager
    def _spooled(self) -> Iterator[tuple[Path, BinaryIO]]:
        """A file for a batch. It replaces the one before, which has landed."""
        staging = private_files.ensure_folder(self._lake.settings.project) / "staging"
        ours = staging / "postgres" / self._source.name
        # A folder for each process: another may still land what it read, after it lost the lock.
        for left in ours.glob("[0-9]*"):
            if int(left.name) == os.getpid() or not _runs(int(left.name)):
                shutil.rmtree(left, ignore_errors=True)
        self._folder = ours / str(os.getpid())
        self._folder.mkdir(parents=True)
        path = self._folder / f"{time.monotonic_ns()}.lines"
        with path.open("wb") as out:
            yield path, out


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
