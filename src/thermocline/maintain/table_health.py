"""How well a table can be read, and what holds its history, from metadata alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thermocline.lake.metadata import MAIN
from thermocline.lake.run_branches import is_run_branch
from thermocline.maintain.file_stats import FileStats, FileStatsReader, TableFiles
from thermocline.maintain.maintenance_policy import OPEN_COST_BYTES, MaintenancePolicy
from thermocline.maintain.sort_quality import SortQuality, combine_partitions

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState


@dataclass(frozen=True)
class Pin:
    """A branch or tag other than main, and the snapshots that only it keeps."""

    ref: str
    kind: str
    snapshots: int
    added_bytes: int
    """Bytes of data files that these snapshots added."""


@dataclass(frozen=True)
class TableHealth:
    """The state of a table's main branch.

    `read_amplification` is what a full scan costs in bytes, each opened file counted as 4 MB,
    over what it would cost if the live rows were in files of the target size. `score` is 100 for a
    table that cannot be read any cheaper, and half of it when reading costs twice as much.
    """

    table: str
    files: FileStats
    partitions: int
    worst_partition_small_files: int
    manifests: int
    manifest_bytes: int
    snapshots: int
    metadata_bytes: int
    read_amplification: float
    pins: tuple[Pin, ...]
    sort: SortQuality | None = None
    """How well its files are ordered; None if it has no order, or no rows."""

    @property
    def score(self) -> int:
        """Return the score from 1 to 100."""
        return max(1, round(100 / self.read_amplification))

    def as_dict(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        sort = self.sort and self.sort.as_dict()
        return asdict(self) | {"score": self.score, "sort": sort}


def evaluate_table(
    lake: Lake, state: TableState, reader: FileStatsReader, policy: MaintenancePolicy
) -> TableHealth:
    """Evaluate a table. Reads only the manifests that are new since the reader's last call."""
    policy = policy.for_table(state.properties)
    files = read_files(lake, state, reader, policy)
    total = files.total
    return TableHealth(
        table=state.table,
        files=total,
        partitions=len(files.partitions),
        worst_partition_small_files=max(
            (p.small_files for p in files.partitions.values()), default=0
        ),
        manifests=files.manifests,
        manifest_bytes=files.manifest_bytes,
        snapshots=len(state.snapshots),
        metadata_bytes=_metadata_size(lake, state),
        read_amplification=read_amplification(files.partitions.values(), policy),
        pins=tuple(_find_pins(state)),
        sort=_measure_sort(files, policy),
    )


def read_files(
    lake: Lake, state: TableState, reader: FileStatsReader, policy: MaintenancePolicy
) -> TableFiles:
    """Count the files of main by partition; a table without a snapshot has none."""
    head = state.head()
    if head is None:
        return TableFiles()
    return reader.read(lake.iceberg(state.table), head, policy.small_bytes)


def _measure_sort(files: TableFiles, policy: MaintenancePolicy) -> SortQuality | None:
    if files.order is None:
        return None
    return combine_partitions(files.order, files.keys.values(), policy.target_bytes)


def read_amplification(partitions: Iterable[FileStats], policy: MaintenancePolicy) -> float:
    """Return the cost of a full scan over the least possible cost."""
    cost = ideal = 0.0
    for stats in partitions:
        cost += scan_cost(stats)
        ideal += ideal_cost(stats, policy)
    return max(1.0, cost / ideal) if ideal else 1.0


def scan_cost(stats: FileStats) -> float:
    """Return what a scan of these files costs, in bytes."""
    opened = stats.files + stats.delete_files + stats.equality_deletes
    return stats.bytes + stats.delete_bytes + OPEN_COST_BYTES * opened


def ideal_cost(stats: FileStats, policy: MaintenancePolicy) -> float:
    """Return what a scan would cost if the live rows were in files of the target size."""
    live = stats.bytes * (1 - min(1.0, stats.deleted_rows / stats.rows)) if stats.rows else 0.0
    return live + OPEN_COST_BYTES * max(1, math.ceil(live / policy.target_bytes))


def _metadata_size(lake: Lake, state: TableState) -> int:
    return len(lake.iceberg(state.table).io.new_input(state.metadata_location))


def _find_pins(state: TableState) -> Iterable[Pin]:
    """Yield the refs that keep snapshots which are not in main's history."""
    main = {snapshot.id for snapshot in state.ancestry(state.head())}
    for name, ref in state.refs.items():
        if name == MAIN or is_run_branch(name):
            continue
        own = [snapshot for snapshot in state.ancestry(ref.snapshot) if snapshot.id not in main]
        yield Pin(name, ref.type, len(own), sum(s.count("added-files-size") for s in own))
