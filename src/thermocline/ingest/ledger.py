"""Which files a table already holds, by the content of each.

Every commit of ingestion says which files it landed: on a SQL catalog in rows beside the table's
pointer (`lake.beside`), on a REST catalog in the bookmark of its snapshot. Either way what is known
is exactly what main holds: after a rollback, files landed since are new again. When somebody else
expired snapshots, the table's own rows still name their files; a file of such a name that has not
changed since then counts as landed.
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

FILES, SEEN = "files", "seen"
COUNT = "landed"


@dataclass
class Ledger:
    """The files of a table: by content, and as they were last seen in the landing folder."""

    contents: set[str] = field(default_factory=set)
    seen: set[tuple[str, int, int]] = field(default_factory=set)
    names_before_expiry: frozenset[str] = frozenset()
    expired_ns: int = 0

    def filter_unread(self, files: Sequence[LandingFile]) -> list[LandingFile]:
        """The files that are not known by name, size and time of change, so must be read."""
        return [file for file in files if not self._is_known(file, self.seen)]

    def find_landed(self, files: Sequence[InspectedFile]) -> set[str]:
        """Which of the contents have landed, under whatever name."""
        return self.contents & {file.sha256 for file in files}

    def add(self, files: Iterable[InspectedFile]) -> None:
        """Remember files that have just landed."""
        self.contents.update(file.sha256 for file in files)

    def _is_known(self, file: LandingFile, seen: set[tuple[str, int, int]]) -> bool:
        if (file.name, file.size, file.modified_ns) in seen:
            return True
        return file.name in self.names_before_expiry and file.modified_ns <= self.expired_ns


@dataclass
class RowLedger(Ledger):
    """The same from rows: only what is asked for is read."""

    rows: ConsumptionStore = field(kw_only=True)
    uuid: str = field(kw_only=True)
    main: frozenset[int] = field(kw_only=True)
    """What rows name that count for main: its snapshots, and what was carried on to them."""

    def filter_unread(self, files: Sequence[LandingFile]) -> list[LandingFile]:
        found = self.rows.files_of_names(self.uuid, (file.name for file in files))
        seen = {(f.name, f.size, f.modified_ns) for f, snapshot in found if snapshot in self.main}
        return [file for file in files if not self._is_known(file, seen)]

    def find_landed(self, files: Sequence[InspectedFile]) -> set[str]:
        contents = {file.sha256 for file in files}
        found = self.rows.files_of_contents(self.uuid, contents - self.contents)
        known = {file.content for file, snapshot in found if snapshot in self.main}
        return known | (self.contents & contents)


def make_bookmark(files: Iterable[InspectedFile], *, beside: bool) -> dict[str, Any]:
    """What a commit's bookmark says of the files it lands: how many, where rows say which."""
    listed = list(files)
    if beside:
        return {COUNT: len(listed)}
    return {
        FILES: {file.sha256: file.file.name for file in listed},
        SEEN: {file.sha256: [file.file.size, file.file.modified_ns] for file in listed},
    }


def make_consumed(files: Iterable[InspectedFile]) -> Consumption:
    """The rows that a commit lands with its files."""
    return Consumption(
        tuple(
            LandedFile(file.sha256, file.file.name, file.file.size, file.file.modified_ns)
            for file in files
        )
    )


def read_ledger(lake: Lake, table: str, quarantine: str) -> Ledger:
    """The files that a table's main branch holds."""
    if not lake.exists(table):
        return Ledger()
    state = lake.state(table)
    chain = list(state.ancestry(state.head()))
    rows = lake.beside
    if rows is None:
        ledger = Ledger()
        for file, _ in _read_summaries(state, (snapshot.id for snapshot in chain)):
            ledger.contents.add(file.content)
            ledger.seen.add((file.name, file.size, file.modified_ns))
    else:
        if not rows.is_migrated(state.uuid):
            rows.migrate(state.uuid, _read_summaries(state, state.snapshots))
        main = rows.counted(state.uuid, (snapshot.id for snapshot in chain))
        ledger = RowLedger(rows=rows, uuid=state.uuid, main=main)
    if chain and not bookmarks.is_history_complete(lake, state, state.head()):
        ledger.expired_ns = chain[-1].timestamp_ms * 1_000_000
        ledger.names_before_expiry = _distinct_values(lake, table, "_source_file")
        if lake.exists(quarantine):
            ledger.contents |= _distinct_values(lake, quarantine, "file_sha256")
    return ledger


def _read_summaries(state: TableState, of: Iterable[int]) -> Iterator[tuple[LandedFile, int]]:
    """The files that the bookmarks of snapshots name: all of them before there were rows."""
    for snapshot in of:
        bookmark: Mapping[str, Any] = bookmarks.parse_bookmark(state.snapshot(snapshot)) or {}
        seen = bookmark.get(SEEN, {})
        for sha256, name in bookmark.get(FILES, {}).items():
            size, modified_ns = seen.get(sha256, (-1, -1))
            yield LandedFile(sha256, name, size, modified_ns), snapshot


def _distinct_values(lake: Lake, table: str, column: str) -> frozenset[str]:
    import pyarrow.compute as pc

    found: set[str] = set()
    for batch in lake.iceberg(table).scan(selected_fields=(column,)).to_arrow_batch_reader():
        found.update(pc.unique(batch.column(0)).drop_null().to_pylist())
    return frozenset(found)
