"""Bring the tables of a lake to its warehouse, from wherever their metadata says they are.

A project that was copied or moved has a catalog that points to where it was. All metadata is
written again with the new locations, beside the old; data files that are not there yet are copied;
every snapshot is held against what it was; and then all tables are switched in one transaction.
Until then nothing has changed for anybody, and what lies elsewhere is only ever read.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark import warehouse_uri
from thermocline.errors import BadInput, NotFound, Permanent
from thermocline.lake import catalog_identity, metadata_updates
from thermocline.lake.catalog import MAX_PARALLEL_REQUESTS, connect, load_file_io
from thermocline.lake.crash_points import crash_point
from thermocline.lake.groupcommit.entry import ReplaceFiles
from thermocline.lake.groupcommit.entry_codec import encode_entry
from thermocline.lake.groupcommit.queue import Queue
from thermocline.lake.locations import Warehouse, is_same_file, normalize_location
from thermocline.lake.metadata_files import decompress
from thermocline.lake.pointer_swap import PointerChange, swap_pointers
from thermocline.lake.references import ReferenceRewriter, RewrittenReferences
from thermocline.lake.sql_reader import SqlReader
from thermocline.recover import relocation_catalog, snapshot_comparison
from thermocline.recover.file_store import FileStore
from thermocline.recover.location_mapping import LocationMapping, source_warehouses
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from sqlalchemy.orm import Session

    from thermocline.config import Settings
    from thermocline.lake.groupcommit.queue import WaitingEntry


@dataclass(frozen=True)
class RelocatedTable:
    """A table that is relocated: from where to where, and how much that is."""

    table: str
    source: str
    target: str
    snapshots: int
    files: int
    """Files that stay as they are: the data of all its snapshots, and statistics."""
    copied: int
    copied_bytes: int
    written: int
    """Files of metadata, and of deletes, that are written again."""
    rows: int | None = None
    """Rows of main, counted and compared in both places; None in a plan."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return dict(vars(self))


@dataclass(frozen=True)
class Relocation:
    """What was relocated, or would be."""

    warehouse: str
    tables: tuple[RelocatedTable, ...] = ()
    done: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        tables = [table.as_dict() for table in self.tables]
        return {"warehouse": self.warehouse, "done": self.done, "tables": tables}


@dataclass
class _TableRelocation:
    """A table under way."""

    name: str
    pointer: str
    target: str
    """Where its metadata file is to be."""
    raw: dict[str, Any]
    waiting: list[WaitingEntry]
    found: RewrittenReferences = field(default_factory=RewrittenReferences)
    copies: dict[str, int] = field(default_factory=dict)
    entries: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    rows: int | None = None

    def moved(self, new_location: str) -> RelocatedTable:
        return RelocatedTable(
            self.name, normalize_location(self.raw["location"]), normalize_location(new_location),
            len(self.raw.get("snapshots") or ()), len(self.found.kept), len(self.copies),
            sum(self.copies.values()), len(self.found.replaced), self.rows,
        )  # fmt: skip


def relocate(
    settings: Settings,
    *,
    old: str | None = None,
    shared: bool = False,
    plan: bool = False,
    progress: Progress = SILENT,
) -> Relocation:
    """Make every table of the catalog lie in the lake's warehouse; with `plan` only say what for.

    `old` is the warehouse that the tables were in, where it cannot be seen; a lake without a table
    takes its catalog from there. A catalog that other projects may use is changed for all of them,
    which `shared` has to allow.
    """
    if settings.catalog.type == "rest":
        raise Permanent(
            "A REST catalog decides itself where its tables lie.",
            "Move them with the tools of that catalog.",
        )
    if old is not None and not plan:
        relocation_catalog.copy_catalog(settings, old)
    warehouse = Warehouse(settings.warehouse)
    there = {n: at for n, at in SqlReader(settings).places().items() if not warehouse.holds(at)}
    if not there:
        return Relocation(settings.warehouse)
    if not shared and not plan:
        relocation_catalog.require_own_catalog(settings)
    with closing(_RelocationRun(settings, there, old, progress)) as work:
        work.examine()
        crash_point("relocate.examined")
        if plan:
            return work.told(done=False)
        with relocation_catalog.lock_relocation(settings):
            work.write()
            work.verify()
            crash_point("relocate.verified")
            work.switch()
            work.clean()
        return work.told(done=True)


class _RelocationRun:
    """One relocation."""

    def __init__(
        self, settings: Settings, there: Mapping[str, str], old: str | None, progress: Progress
    ) -> None:
        self._settings = settings
        self._progress = progress
        pointers = {name: at for name, at in there.items() if not name.endswith(".")}
        self._moving = LocationMapping(
            warehouse_uri(settings), source_warehouses(pointers, old), there
        )
        self._layers: dict[str, PointerChange] = {
            name[:-1]: (at, self._layer(name[:-1], at))
            for name, at in there.items()
            if name.endswith(".")
        }
        self._store = FileStore(load_file_io(settings))
        self._queue = Queue(self._catalog)
        waiting = self._queue.all_waiting()
        self._tables = [
            _TableRelocation(
                name, pointer, self._moving.metadata(pointer), self._raw(name, pointer),
                [each for each in waiting if each.table == name],
            )
            for name, pointer in sorted(pointers.items())
        ]  # fmt: skip

    @cached_property
    def _catalog(self) -> SqlCatalog:
        from pyiceberg.catalog.sql import SqlCatalog

        catalog = connect(self._settings)
        assert isinstance(catalog, SqlCatalog)
        return catalog

    def close(self) -> None:
        """Let go of the catalog."""
        self._catalog.close()

    def examine(self) -> None:
        """Find all that is to be done, and everything that forbids it; write nothing."""
        self._progress.step("examine", total=len(self._tables))
        for table in self._tables:
            self._rewrite(table, writing=False)
            self._refuse_links(table)
            table.copies = self._missing_here(table)
            self._progress.advance(1, table.name)
        files = sum(len(table.found.replaced) for table in self._tables)
        self._progress.done(f"{len(self._tables)} tables · {files:,} files to write again")

    def write(self) -> None:
        """Copy what is not there and write what names another place, beside what is there."""
        copies = [each for table in self._tables for each in table.copies]
        if copies:
            self._progress.step("copy", total=len(copies))
            with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
                targets = map(self._moving.moved, copies)
                for _ in pool.map(self._store.copy, copies, targets):
                    crash_point("relocate.copied")
                    self._progress.advance(1)
            self._progress.done(f"{len(copies):,} files")
        self._progress.step("write", total=len(self._tables))
        for table in self._tables:
            self._rewrite(table, writing=True)
            self._put(table.target, metadata_updates.dump(table.found.raw))
            self._progress.advance(1, table.name)
        self._progress.done(f"{sum(len(t.found.replaced) for t in self._tables):,} files")

    def verify(self) -> None:
        """Hold every snapshot at its new place against what it is where it was."""
        self._progress.step("verify", total=len(self._tables))
        same = snapshot_comparison.SnapshotComparison(self._store, self._moving.moved)
        for table in self._tables:
            table.rows = same.rows_of(table.name, table.raw, table.found.raw, table.target)
            self._progress.advance(1, table.name)
        rows = sum(table.rows or 0 for table in self._tables)
        self._progress.done(f"{rows:,} rows · every snapshot holds the same")

    def switch(self) -> None:
        """Point all tables to their new metadata, in one transaction."""
        pointers = {table.name: (table.pointer, table.target) for table in self._tables}
        entries = {n: both for table in self._tables for n, both in table.entries.items()}
        self._progress.step("switch")

        def alongside(session: Session) -> None:
            self._queue.readdress(session, entries)
            if self._settings.catalog.type == "sqlite":
                for statement in catalog_identity.record_statements(
                    Path(self._settings.catalog.uri)
                ):
                    session.connection().exec_driver_sql(statement)

        swap_pointers(self._catalog, pointers, self._layers, alongside)
        self._progress.done(f"{len(pointers)} tables in one commit")

    def clean(self) -> None:
        """Remove from the new place what was copied there and has been written again."""
        for table in self._tables:
            for location in (table.pointer, *table.found.replaced, *table.found.logged):
                with suppress(ValueError):  # the log may name what never was in the warehouse
                    copy = self._moving.moved(location)
                    if copy != location and not is_same_file(copy, location):
                        self._store.delete(copy)
                        crash_point("relocate.cleaning")

    def told(self, *, done: bool) -> Relocation:
        """What is to be done, or was."""
        moved = (table.moved(self._moving.moved(table.raw["location"])) for table in self._tables)
        return Relocation(self._settings.warehouse, tuple(moved), done)

    def _rewrite(self, table: _TableRelocation, *, writing: bool) -> None:
        put = self._put if writing else _discard_file
        references = ReferenceRewriter(table.name, self._moving, self._read, put)
        table.found = references.rewrite(table.raw)
        for each in table.waiting:
            entry = each.entry()
            gone = entry.replaces
            if isinstance(gone, ReplaceFiles):
                files = ((where, references.moved(path)) for where, path in gone.files)
                gone = replace(gone, files=frozenset(files))
            added = tuple(references.data_file(file) for file in entry.files)
            table.entries[each.number] = (
                each.content,
                encode_entry(replace(entry, files=added, replaces=gone)),
            )

    def _missing_here(self, table: _TableRelocation) -> dict[str, int]:
        """The files that are to be copied, with their sizes. All others are there, whole."""
        before = self._store.folder(table.raw["location"])
        after = self._store.folder(self._moving.moved(table.raw["location"]))
        copies, lost = {}, []
        for location, size in table.found.kept.items():
            if after.size(self._moving.moved(location)) == size:
                continue
            if before.size(location) == size:
                copies[location] = size
            else:
                lost.append(location)
        if lost:
            raise NotFound(
                f"{table.name}: {len(lost):,} files are neither here nor where they were, or not "
                f"whole, {normalize_location(min(lost))} for one.",
                "Nothing was changed. Copy the project again, while nobody writes to it.",
                files=sorted(lost),
            )
        return copies

    def _refuse_links(self, table: _TableRelocation) -> None:
        """Refuse folders that are the old ones by a link: writing here would be writing there."""
        for location in (table.pointer, *table.found.kept, *table.found.replaced):
            before, after = (
                each.rpartition("/")[0] for each in (location, self._moving.moved(location))
            )
            if before != after and is_same_file(before, after):
                raise BadInput(
                    f"{normalize_location(after)} is a link to {normalize_location(before)}: "
                    "a write to one is a write to the other.",
                    "Nothing was changed. Put a copy in the place of the link.",
                )

    def _layer(self, name: str, location: str) -> str:
        """Where new tables of a layer are to go."""
        try:
            return self._moving.moved(location)
        except ValueError:
            raise BadInput(
                f"The layer {name} writes its tables to {normalize_location(location)}, and it is "
                "not known which warehouse that is in.",
                "Name it: thermo relocate --from FOLDER.",
            ) from None

    def _read(self, location: str) -> bytes:
        """A file of metadata, from the new place if it is there, and else from the old."""
        copy = self._moving.moved(location)
        return self._store.read(copy if self._store.size(copy) is not None else location)

    def _put(self, location: str, content: bytes) -> None:
        self._store.write(location, content)
        crash_point("relocate.written")

    def _raw(self, table: str, pointer: str) -> dict[str, Any]:
        import json

        try:
            found: dict[str, Any] = json.loads(decompress(self._read(pointer)))
        except (OSError, ValueError) as error:
            name = Path(normalize_location(pointer)).name
            raise NotFound(
                f"{table}: its metadata {name} cannot be read: {error}",
                "Nothing was changed. Copy the project again, while nobody writes to it.",
            ) from error
        return found


def _discard_file(location: str, content: bytes) -> None:
    """Take a file that is only planned."""
