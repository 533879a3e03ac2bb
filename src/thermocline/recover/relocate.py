"""Relocate the tables of a lake to its warehouse, from the locations in their metadata.

The catalog of a copied or moved project points to the old location. Relocation rewrites all
metadata with new locations, beside the old files; copies missing data files; compares every
snapshot with the original; and then switches all tables in one transaction. Until the switch no
table has changed. Files elsewhere are only read.
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
    """A relocated table: source, target and amounts."""

    table: str
    source: str
    target: str
    snapshots: int
    files: int
    """Unchanged files: the data files of all snapshots, and statistics."""
    copied: int
    copied_bytes: int
    written: int
    """Rewritten metadata and delete files."""
    rows: int | None = None
    """Rows of main, compared in both places; None in a plan."""

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return dict(vars(self))


@dataclass(frozen=True)
class Relocation:
    """The result of a relocation, or its plan."""

    warehouse: str
    tables: tuple[RelocatedTable, ...] = ()
    done: bool = True

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        tables = [table.as_dict() for table in self.tables]
        return {"warehouse": self.warehouse, "done": self.done, "tables": tables}


@dataclass
class _TableRelocation:
    """The work on one table."""

    name: str
    pointer: str
    target: str
    """The location of its new metadata file."""
    raw: dict[str, Any]
    waiting: list[WaitingEntry]
    rewritten: RewrittenReferences = field(default_factory=RewrittenReferences)
    copies: dict[str, int] = field(default_factory=dict)
    entries: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    rows: int | None = None

    def summarize(self, new_location: str) -> RelocatedTable:
        return RelocatedTable(
            self.name, normalize_location(self.raw["location"]), normalize_location(new_location),
            len(self.raw.get("snapshots") or ()), len(self.rewritten.kept), len(self.copies),
            sum(self.copies.values()), len(self.rewritten.replaced), self.rows,
        )  # fmt: skip


def relocate(
    settings: Settings,
    *,
    old: str | None = None,
    shared: bool = False,
    plan: bool = False,
    progress: Progress = SILENT,
) -> Relocation:
    """Relocate the catalog's tables to the lake's warehouse; with `plan` only report the work.

    `old` is the old warehouse, if the locations do not reveal it; a lake without tables copies the
    catalog from there. A catalog that other projects may use is changed for all of them, which
    `shared` must allow.
    """
    if settings.catalog.type == "rest":
        raise Permanent(
            "A REST catalog decides itself where its tables lie.",
            "Move them with the tools of that catalog.",
        )
    if old is not None and not plan:
        relocation_catalog.copy_catalog(settings, old)
    warehouse = Warehouse(settings.warehouse)
    locations = SqlReader(settings).locations()
    elsewhere = {name: at for name, at in locations.items() if not warehouse.holds(at)}
    if not elsewhere:
        return Relocation(settings.warehouse)
    if not shared and not plan:
        relocation_catalog.require_own_catalog(settings)
    with closing(_RelocationRun(settings, elsewhere, old, progress)) as work:
        work.examine()
        crash_point("relocate.examined")
        if plan:
            return work.summarize(done=False)
        with relocation_catalog.lock_relocation(settings):
            work.write()
            work.verify()
            crash_point("relocate.verified")
            work.switch()
            work.clean()
        return work.summarize(done=True)


class _RelocationRun:
    """One relocation."""

    def __init__(
        self, settings: Settings, elsewhere: Mapping[str, str], old: str | None, progress: Progress
    ) -> None:
        self._settings = settings
        self._progress = progress
        pointers = {name: at for name, at in elsewhere.items() if not name.endswith(".")}
        self._mapping = LocationMapping(
            warehouse_uri(settings), source_warehouses(pointers, old), elsewhere
        )
        self._layers: dict[str, PointerChange] = {
            name[:-1]: (at, self._map_layer(name[:-1], at))
            for name, at in elsewhere.items()
            if name.endswith(".")
        }
        self._store = FileStore(load_file_io(settings))
        self._queue = Queue(self._catalog)
        waiting = self._queue.list_waiting()
        self._tables = [
            _TableRelocation(
                name, pointer, self._mapping.map_pointer(pointer),
                self._read_metadata(name, pointer),
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
        """Close the catalog."""
        self._catalog.close()

    def examine(self) -> None:
        """Determine the work and check that it is possible, without writing."""
        self._progress.step("examine", total=len(self._tables))
        for table in self._tables:
            self._rewrite(table, writing=False)
            self._refuse_links(table)
            table.copies = self._find_missing(table)
            self._progress.advance(1, table.name)
        files = sum(len(table.rewritten.replaced) for table in self._tables)
        self._progress.done(f"{len(self._tables)} tables · {files:,} files to write again")

    def write(self) -> None:
        """Copy missing files, and write rewritten files beside the old ones."""
        copies = [each for table in self._tables for each in table.copies]
        if copies:
            self._progress.step("copy", total=len(copies))
            with ThreadPoolExecutor(MAX_PARALLEL_REQUESTS) as pool:
                targets = map(self._mapping.map_location, copies)
                for _ in pool.map(self._store.copy, copies, targets):
                    crash_point("relocate.copied")
                    self._progress.advance(1)
            self._progress.done(f"{len(copies):,} files")
        self._progress.step("write", total=len(self._tables))
        for table in self._tables:
            self._rewrite(table, writing=True)
            self._write_file(table.target, metadata_updates.dump(table.rewritten.raw))
            self._progress.advance(1, table.name)
        self._progress.done(f"{sum(len(t.rewritten.replaced) for t in self._tables):,} files")

    def verify(self) -> None:
        """Compare every snapshot at its new location with the original."""
        self._progress.step("verify", total=len(self._tables))
        comparison = snapshot_comparison.SnapshotComparison(self._store, self._mapping.map_location)
        for table in self._tables:
            table.rows = comparison.verify_table(
                table.name, table.raw, table.rewritten.raw, table.target
            )
            self._progress.advance(1, table.name)
        rows = sum(table.rows or 0 for table in self._tables)
        self._progress.done(f"{rows:,} rows · every snapshot holds the same")

    def switch(self) -> None:
        """Point all tables to their new metadata, in one transaction."""
        pointers = {table.name: (table.pointer, table.target) for table in self._tables}
        entries = {n: both for table in self._tables for n, both in table.entries.items()}
        self._progress.step("switch")

        def write_rows(session: Session) -> None:
            self._queue.replace_contents(session, entries)
            if self._settings.catalog.type == "sqlite":
                for statement in catalog_identity.record_statements(
                    Path(self._settings.catalog.uri)
                ):
                    session.connection().exec_driver_sql(statement)

        swap_pointers(self._catalog, pointers, self._layers, write_rows)
        self._progress.done(f"{len(pointers)} tables in one commit")

    def clean(self) -> None:
        """Remove from the new place what was copied there and has been written again."""
        for table in self._tables:
            for location in (table.pointer, *table.rewritten.replaced, *table.rewritten.logged):
                with suppress(ValueError):  # the log may name what never was in the warehouse
                    copy = self._mapping.map_location(location)
                    if copy != location and not is_same_file(copy, location):
                        self._store.delete(copy)
                        crash_point("relocate.cleaning")

    def summarize(self, *, done: bool) -> Relocation:
        """Return the result, or the plan."""
        tables = (
            table.summarize(self._mapping.map_location(table.raw["location"]))
            for table in self._tables
        )
        return Relocation(self._settings.warehouse, tuple(tables), done)

    def _rewrite(self, table: _TableRelocation, *, writing: bool) -> None:
        put = self._write_file if writing else _discard_file
        rewriter = ReferenceRewriter(table.name, self._mapping, self._read, put)
        table.rewritten = rewriter.rewrite(table.raw)
        for each in table.waiting:
            entry = each.entry()
            replaces = entry.replaces
            if isinstance(replaces, ReplaceFiles):
                files = ((where, rewriter.map_location(path)) for where, path in replaces.files)
                replaces = replace(replaces, files=frozenset(files))
            added = tuple(rewriter.rewrite_data_file(file) for file in entry.files)
            table.entries[each.number] = (
                each.content,
                encode_entry(replace(entry, files=added, replaces=replaces)),
            )

    def _find_missing(self, table: _TableRelocation) -> dict[str, int]:
        """Return the files to copy, with their sizes. All others exist in the warehouse."""
        before = self._store.list_folder(table.raw["location"])
        after = self._store.list_folder(self._mapping.map_location(table.raw["location"]))
        copies, lost = {}, []
        for location, size in table.rewritten.kept.items():
            if after.size(self._mapping.map_location(location)) == size:
                continue
            if before.size(location) == size:
                copies[location] = size
            else:
                lost.append(location)
        if lost:
            raise NotFound(
                f"{table.name}: {len(lost):,} files are missing or incomplete, here and at the "
                f"old location, for instance {normalize_location(min(lost))}.",
                "Nothing was changed. Copy the project again, while no process writes to it.",
                files=sorted(lost),
            )
        return copies

    def _refuse_links(self, table: _TableRelocation) -> None:
        """Raise BadInput for a link to an old folder: writes would change the original."""
        for location in (table.pointer, *table.rewritten.kept, *table.rewritten.replaced):
            before, after = (
                each.rpartition("/")[0] for each in (location, self._mapping.map_location(location))
            )
            if before != after and is_same_file(before, after):
                raise BadInput(
                    f"{normalize_location(after)} is a link to {normalize_location(before)}: "
                    "a write to one is a write to the other.",
                    "Nothing was changed. Replace the link with a copy.",
                )

    def _map_layer(self, name: str, location: str) -> str:
        """Return the new location of a layer."""
        try:
            return self._mapping.map_location(location)
        except ValueError:
            raise BadInput(
                f"The layer {name} writes its tables to {normalize_location(location)}, and it is "
                "not known which warehouse that is in.",
                "Name it: thermo relocate --from FOLDER.",
            ) from None

    def _read(self, location: str) -> bytes:
        """Read a metadata file, from the new location if it exists there, else from the old one."""
        copy = self._mapping.map_location(location)
        return self._store.read(copy if self._store.size(copy) is not None else location)

    def _write_file(self, location: str, content: bytes) -> None:
        self._store.write(location, content)
        crash_point("relocate.written")

    def _read_metadata(self, table: str, pointer: str) -> dict[str, Any]:
        import json

        try:
            found: dict[str, Any] = json.loads(decompress(self._read(pointer)))
        except (OSError, ValueError) as error:
            name = Path(normalize_location(pointer)).name
            raise NotFound(
                f"{table}: its metadata {name} cannot be read: {error}",
                "Nothing was changed. Copy the project again, while no process writes to it.",
            ) from error
        return found


def _discard_file(location: str, content: bytes) -> None:
    """Ignore a file that is only planned."""
