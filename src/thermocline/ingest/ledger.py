"""Which files a table already holds, by their content.

Every ingestion commit records which files it landed: on a SQL catalog in rows next to the table's
pointer (`lake.consumption_store`), on a REST catalog in its snapshot and files of the table
(`lake.carried_state`). In both cases the ledger matches exactly what main holds: after a rollback,
files that landed since are new again. If another tool expired snapshots, the table's rows still
name their files; a file with such a name that has not changed since then counts as landed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from thermocline.lake import bookmark as bookmarks
from thermocline.lake import carried_state
from thermocline.lake.consumption import Consumption, LandedFile, make_gap

if TYPE_CHECKING:
    from thermocline.ingest.inspection import InspectedFile
    from thermocline.ingest.landing import LandingFile
    from thermocline.lake import Lake, TableState
    from thermocline.lake.carried_state import CarriedState
    from thermocline.lake.consumption_store import ConsumptionStore
    from thermocline.lake.digest_runs import RunFiles

COUNT = "landed"


@dataclass
class Ledger:
    """The files of a table: by content, and by name, size and time of change in the folder."""

    contents: set[str] = field(default_factory=set)
    names_before_expiry: frozenset[str] = frozenset()
    expired_ns: int = 0

    def filter_unread(self, files: Sequence[LandingFile]) -> list[LandingFile]:
        """Return the files that must be read: unknown by name, size and time of change."""
        return [file for file in files if not self._landed_before_expiry(file)]

    def find_landed(self, files: Sequence[InspectedFile]) -> set[str]:
        """Return which of the contents have landed, under any name."""
        return self.contents & {file.sha256 for file in files}

    def add(self, files: Iterable[InspectedFile]) -> None:
        """Add files that have just landed."""
        self.contents.update(file.sha256 for file in files)

    def make_consumed(self, files: Iterable[InspectedFile]) -> Consumption:
        """Return what a commit records of its files."""
        return Consumption(
            tuple(
                LandedFile(file.sha256, file.file.name, file.file.size, file.file.modified_ns)
                for file in files
            )
        )

    def _landed_before_expiry(self, file: LandingFile) -> bool:
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
        return [
            file for file in files
            if (file.name, file.size, file.modified_ns) not in file_stats
            and not self._landed_before_expiry(file)
        ]  # fmt: skip

    def find_landed(self, files: Sequence[InspectedFile]) -> set[str]:
        contents = {file.sha256 for file in files}
        found = self.rows.find_files_by_content(self.uuid, contents - self.contents)
        known = {file.content for file, snapshot in found if snapshot in self.main}
        return known | (self.contents & contents)


@dataclass
class CarriedLedger(Ledger):
    """A ledger in the state that a table's snapshots carry; it reads only the requested files."""

    runs: RunFiles = field(kw_only=True)
    state: CarriedState = field(kw_only=True)

    def filter_unread(self, files: Sequence[LandingFile]) -> list[LandingFile]:
        named = {
            carried_state.file_digest(file.name, file.size, file.modified_ns): file
            for file in files
        }
        if self.state.has_lost_names:
            named |= {
                carried_state.name_digest(file.name): file
                for file in files
                if file.modified_ns <= (self.state.gap_ns or 0)
            }
        landed = carried_state.find_digests(self.runs, self.state, named)
        known = {named[each] for each in landed}
        return [file for file in super().filter_unread(files) if file not in known]

    def find_landed(self, files: Sequence[InspectedFile]) -> set[str]:
        named = {carried_state.content_digest(file.sha256): file.sha256 for file in files}
        landed = carried_state.find_digests(self.runs, self.state, named)
        return {named[each] for each in landed} | super().find_landed(files)

    def make_consumed(self, files: Iterable[InspectedFile]) -> Consumption:
        consumed = super().make_consumed(files)
        if not self.names_before_expiry:
            return consumed
        contents = frozenset(self.contents)
        return replace(consumed, lost_names=self.names_before_expiry, lost_contents=contents)


def make_bookmark(files: Sequence[InspectedFile]) -> dict[str, Any]:
    """Return the bookmark entry of the files: their number. The record of each is beside it."""
    return {COUNT: len(files)}


def read_ledger(lake: Lake, table: str, quarantine: str) -> Ledger:
    """Read the ledger of the files on a table's main branch."""
    if not lake.exists(table):
        return Ledger()
    state = lake.state(table)
    ledger: Ledger
    if (rows := lake.consumption_store) is None:
        carried = carried_state.read_state(state, state.head())
        ledger = CarriedLedger(runs=carried_state.open_runs(lake, state), state=carried)
        if carried.gap_ns is not None and not carried.has_lost_names:
            _restore_names(lake, ledger, table, quarantine, carried.gap_ns)
        return ledger
    if not rows.is_migrated(state.uuid):
        rows.migrate(state.uuid, _read_summaries(state, state.snapshots))
    main = rows.expand_ancestry(state.uuid, (each.id for each in state.ancestry(state.head())))
    ledger = RowLedger(rows=rows, uuid=state.uuid, main=main)
    if (gap_ns := bookmarks.find_gap(lake, state, state.head())) is not None:
        _restore_names(lake, ledger, table, quarantine, gap_ns)
    return ledger


def _restore_names(lake: Lake, ledger: Ledger, table: str, quarantine: str, until_ns: int) -> None:
    """Add what the table's rows say about files whose record another tool expired."""
    ledger.expired_ns = until_ns
    ledger.names_before_expiry = _distinct_values(lake, table, "_source_file")
    if lake.exists(quarantine):
        ledger.contents |= _distinct_values(lake, quarantine, "file_sha256")


def _read_summaries(state: TableState, of: Iterable[int]) -> Iterator[tuple[LandedFile, int]]:
    """Yield the files in the bookmarks of snapshots, which had all of them before catalog rows.

    What a table consumed while it was in a REST catalog is not known by rows: that is a gap.
    """
    for snapshot in of:
        found = state.snapshot(snapshot)
        for file in carried_state.listed_files(bookmarks.parse_bookmark(found) or {}):
            yield file, snapshot
        if carried_state.is_carried(state, found):
            for gap in make_gap(found.timestamp_ms * 1_000_000).files:
                yield gap, snapshot


def _distinct_values(lake: Lake, table: str, column: str) -> frozenset[str]:
    import pyarrow.compute as pc

    found: set[str] = set()
    for batch in lake.iceberg(table).scan(selected_fields=(column,)).to_arrow_batch_reader():
        found.update(pc.unique(batch.column(0)).drop_null().to_pylist())
    return frozenset(found)
