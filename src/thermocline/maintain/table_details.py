"""One table in detail: partitions, reads and updates, and what to change in its contract."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thermocline.lake import bookmark as bookmarks
from thermocline.lake.commit_times import now_ms
from thermocline.maintain.file_stats import format_partition
from thermocline.maintain.layout_advice import (
    UpdateCosts,
    UpdateRates,
    advise_order,
    advise_updates,
    compare_update_modes,
    measure_updates,
)
from thermocline.maintain.read_weights import ReadWeights
from thermocline.maintain.removal_journal import load_journal
from thermocline.maintain.sort_quality import SortQuality, measure_partition
from thermocline.maintain.table_health import (
    TableHealth,
    evaluate_table,
    read_amplification,
    read_files,
)

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState
    from thermocline.lake.read_log import ReadRate
    from thermocline.maintain.file_stats import FileStats, FileStatsReader, TableFiles
    from thermocline.maintain.maintenance_policy import MaintenancePolicy

MAX_SMALL_FILES = 10_000
"""A partition with more small files is an alert."""


@dataclass(frozen=True)
class PartitionHealth:
    """The state of one partition."""

    name: str
    files: FileStats
    read_amplification: float
    sort: SortQuality | None

    def as_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {
            "name": self.name, "files": asdict(self.files),
            "read_amplification": round(self.read_amplification, 3),
            "sort": self.sort and self.sort.as_dict(),
        }  # fmt: skip


@dataclass(frozen=True)
class TableDetails:
    """A table's health with its partitions in their order, its use, alerts and advice.

    `reads` and `update_costs` are None where no reads have been recorded in the project.
    `unreferenced` are files and bytes that the last removal pass found; None if there was none.
    `commit_age` and `bookmark_age` are seconds since main's last commit, and since its last commit
    that consumed a source.
    """

    health: TableHealth
    partitions: tuple[PartitionHealth, ...]
    updates: UpdateRates
    reads: ReadRate | None = None
    update_costs: UpdateCosts | None = None
    unreferenced: tuple[int, int] | None = None
    commit_age: float | None = None
    bookmark_age: float | None = None
    alerts: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the details as JSON values: the health, and what goes beyond it."""
        found = self.unreferenced
        return self.health.as_dict() | {
            "partition_health": [each.as_dict() for each in self.partitions],
            "reads": self.reads and asdict(self.reads),
            "updates": asdict(self.updates),
            "update_costs": self.update_costs and asdict(self.update_costs),
            "unreferenced": found and {"files": found[0], "bytes": found[1]},
            "commit_age": self.commit_age,
            "bookmark_age": self.bookmark_age,
            "alerts": list(self.alerts),
            "advice": list(self.advice),
        }


def describe_table(
    lake: Lake, state: TableState, reader: FileStatsReader, policy: MaintenancePolicy
) -> TableDetails:
    """Describe a table, from metadata and the project's private files alone."""
    health = evaluate_table(lake, state, reader, policy)
    policy = policy.for_table(state.properties)
    partitions = tuple(
        _list_partitions(lake, state, read_files(lake, state, reader, policy), policy)
    )
    now = now_ms()
    updates = measure_updates(state, now)
    rate = ReadWeights.of_project(lake.settings.project).rate(state.table)
    costs, advice = None, []
    if rate is not None:
        costs = compare_update_modes(state, health, updates, rate, policy)
        advice = [
            advise_order(state, health, rate, policy),
            advise_updates(updates, costs, rate),
        ]
    committed, consumed = _find_ages(state, now)
    return TableDetails(
        health, partitions, updates, rate, costs, _find_unreferenced(lake, state), committed,
        consumed, tuple(_find_alerts(partitions)), tuple(each for each in advice if each),
    )  # fmt: skip


def _list_partitions(
    lake: Lake, state: TableState, files: TableFiles, policy: MaintenancePolicy
) -> Iterator[PartitionHealth]:
    table = lake.iceberg(state.table)
    named = {key: format_partition(table, key) for key in files.partitions}
    for key in sorted(files.partitions, key=lambda key: (named[key], key[0])):
        stats = files.partitions[key]
        keys = files.keys.get(key, ())
        sort = measure_partition(files.order, keys, policy.target_bytes) if files.order else None
        yield PartitionHealth(named[key], stats, read_amplification([stats], policy), sort)


def _find_alerts(partitions: tuple[PartitionHealth, ...]) -> Iterator[str]:
    for each in partitions:
        if each.files.small_files > MAX_SMALL_FILES:
            where = each.name or "the table"
            yield f"{where} has {each.files.small_files:,} small files; run `thermo maintain`"


def _find_unreferenced(lake: Lake, state: TableState) -> tuple[int, int] | None:
    journal = load_journal(lake, state)
    if not journal.listed_ms:
        return None
    files = [candidate.file for candidate in journal.candidates.values()]
    return len(files), sum(file.size for file in files)


def _find_ages(state: TableState, now: int) -> tuple[float | None, float | None]:
    head = state.head()
    if head is None or head not in state.snapshots:
        return None, None
    consumed: Mapping[str, Any] | None
    snapshot, consumed = next(bookmarks.walk(state, head), (state.snapshots[head], None))
    age = (now - state.snapshots[head].timestamp_ms) / 1000
    return age, None if consumed is None else (now - snapshot.timestamp_ms) / 1000
