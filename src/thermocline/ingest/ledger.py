"""Which files a table already holds, by their content.

Every ingestion commit records which files it landed: on a SQL catalog in rows next to the table's
pointer (`lake.consumption_store`), on a REST catalog in the bookmark of its snapshot. In both
cases the ledger matches exactly what main holds: after a rollback, files that landed since are new
again. If another tool expired snapshots, the table's rows still name their files; a file with such
a name that has not changed since then counts as landed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thermocline.lake import bookmark as bookmarks
from thermocline.lake.consumption import Consumption, LandedFile

if TYPE_CHECKING:
    from thermocline.ingest.inspection import InspectedFile
    from thermocline.ingest.landing import LandingFile
    from thermocline.lake import Lake, TableState
    from thermocline.lake.consumption_store import ConsumptionStore

FILES, FILE_STATS = "files", "seen"
COUNT = "landed"


@dataclass
class Ledger:
    """The files of a table: by content, and by name, size and time of change in the folder."""

    contents: set[str] = field(default_factory=set)
    file_stats: set[tuple[str, int, int]] = field(default_factory=set)
    names_before_expiry: frozenset[str] = frozenset()
    expired_ns: int = 0

    def filter_unread(self, files: Sequence[LandingFile]) -> list[LandingFile]:
        """Return the files that must be read: unknown by name, size and time of change."""
        return [file for file in files if not self._is_known(file, self.file_stats)]

    def find_landed(self, files: Sequence[InspectedFile]) -> set[str]:
        """Return which of the contents have landed, under any name."""
        return self.contents & {file.sha256 for file in files}

    def add(self, files: Iterable[InspectedFile]) -> None:
        """Add files that have just landed."""
        self.contents.update(file.sha256 for file in files)

    def _is_known(self, file: LandingFile, file_stats: set[tuple[str, int, int]]) -> bool:
        if (file.name, file.size, file.modified_ns) in file_stats:
            return True
        return file.name in self.names_before_expiry and file.modified_ns <= self.expired_ns


@dataclass
class RowLedger(Ledger):
    """A ledger in catalog rows; it reads only the requested files."""

    rows: ConsumptionStore = field(kw_only=True)
    uuid: str = field(kw_only=True)
    main: frozenset[int] = field(kw_only=True)
    """The snapshot ids whose rows count for main, including those carried over to its snapshots."""

    def filter_unread(self, files: Sequence[LandingFile]) -> list[LandingFile]:
        found = self.rows.find_files_by_name(self.uuid, (file.name for file in files))
        file_stats = {
            (f.name, f.size, f.modified_ns) for f, snapshot in found if snapshot in self.main
        }
        return [file for file in files if not self._is_known(file, file_stats)]

    def find_landed(self, files: Sequence[InspectedFile]) -> set[str]:
        contents = {file.sha256 for file in files}
        found = self.rows.find_files_by_content(self.uuid, contents - self.contents)
        known = {file.content for file, snapshot in found if snapshot in self.main}
        return known | (self.contents & contents)


def make_bookmark(files: Iterable[InspectedFile], *, beside: bool) -> dict[str, Any]:
    """Return the bookmark entry of the files: their number if catalog rows list them."""
    listed = list(files)
    if beside:
        return {COUNT: len(listed)}
    return {
        FILES: {file.sha256: file.file.name for file in listed},
        FILE_STATS: {file.sha256: [file.file.size, file.file.modified_ns] for file in listed},
    }


def make_consumed(files: Iterable[InspectedFile]) -> Consumption:
    """Return the catalog rows that a commit writes for its files."""
    return Consumption(
        tuple(
            LandedFile(file.sha256, file.file.name, file.file.size, file.file.modified_ns)
            for file in files
        )
    )


def read_ledger(lake: Lake, table: str, quarantine: str) -> Ledger:
    """Read the ledger of the files on a table's main branch."""
    if not lake.exists(table):
        return Ledger()
    state = lake.state(table)
    chain = list(state.ancestry(state.head()))
    rows = lake.consumption_store
    if rows is None:
        ledger = Ledger()
        for file, _ in _read_summaries(state, (snapshot.id for snapshot in chain)):
            ledger.contents.add(file.content)
            ledger.file_stats.add((file.name, file.size, file.modified_ns))
    else:
        if not rows.is_migrated(state.uuid):
            rows.migrate(state.uuid, _read_summaries(state, state.snapshots))
        main = rows.expand_ancestry(state.uuid, (snapshot.id for snapshot in chain))
        ledger = RowLedger(rows=rows, uuid=state.uuid, main=main)
    if chain and not bookmarks.is_history_complete(lake, state, state.head()):
        ledger.expired_ns = chain[-1].timestamp_ms * 1_000_000
        ledger.names_before_expiry = _distinct_values(lake, table, "_source_file")
        if lake.exists(quarantine):
            ledger.contents |= _distinct_values(lake, quarantine, "file_sha256")
    return ledger


def _read_summaries(state: TableState, of: Iterable[int]) -> Iterator[tuple[LandedFile, int]]:
    """Yield the files in the bookmarks of snapshots, which had all of them before catalog rows."""
    for snapshot in of:
        bookmark: Mapping[str, Any] = bookmarks.parse_bookmark(state.snapshot(snapshot)) or {}
        file_stats = bookmark.get(FILE_STATS, {})
        for sha256, name in bookmark.get(FILES, {}).items():
            size, modified_ns = file_stats.get(sha256, (-1, -1))
            yield LandedFile(sha256, name, size, modified_ns), snapshot


def _distinct_values(lake: Lake, table: str, column: str) -> frozenset[str]:
    import pyarrow.compute as pc

    found: set[str] = set()
    for batch in lake.iceberg(table).scan(selected_fields=(column,)).to_arrow_batch_reader():
        found.update(pc.unique(batch.column(0)).drop_null().to_pylist())
    return frozenset(found)
