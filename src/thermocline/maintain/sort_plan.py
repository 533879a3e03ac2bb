"""Which files to sort together.

Files that one rewrite sorted are a run: their ranges do not overlap. Runs are merged in tiers, like
those of a log-structured merge tree: the largest is left out while it is larger than all others
together. So each row is sorted a logarithmic number of times, and what is one run is never sorted
again, whatever its bounds say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.maintain.maintenance_policy import OPEN_COST_BYTES
from thermocline.maintain.sort_quality import SortQuality, measure_partition

if TYPE_CHECKING:
    from thermocline.lake.live_files import LiveFile
    from thermocline.maintain.file_keys import TableOrder
    from thermocline.maintain.file_stats import PartitionKey, TableFiles
    from thermocline.maintain.maintenance_policy import MaintenancePolicy


PAYBACK_DAYS = 30
"""Within so many days lookups must save the bytes that are sorted."""


@dataclass(frozen=True)
class SortChoice:
    """Files of one partition that are sorted together, and the bytes that lookups save a day."""

    files: tuple[LiveFile, ...]
    why: str
    saved_per_day: float


def find_unsorted(
    files: TableFiles, policy: MaintenancePolicy
) -> Mapping[PartitionKey, SortQuality]:
    """Return the partitions in which a lookup opens many more files than it should."""
    if files.order is None:
        return {}
    measured = (
        (key, measure_partition(files.order, some, policy.target_bytes))
        for key, some in files.keys.items()
        if len(some) > 1
    )
    return {
        key: quality
        for key, quality in measured
        if quality is not None
        and quality.overlap >= policy.max_overlap
        and quality.opened - quality.ideal >= 1
    }


def choose_unsorted(
    order: TableOrder | None,
    quality: SortQuality | None,
    files: Sequence[LiveFile],
    policy: MaintenancePolicy,
    lookups: float,
) -> SortChoice | None:
    """Choose the runs of a partition to merge; None if none should be.

    With so many lookups a day by the order's columns, sorting must pay within PAYBACK_DAYS.
    """
    if order is None or quality is None:
        return None
    runs = _find_runs(order, files)
    chosen = _merge_tier(runs, policy.max_sort_bytes)
    if len(chosen) < 2:
        return None
    merged = tuple(live for run in chosen for live in run)
    # A lookup opens about as many files as there are runs.
    share = (len(runs) - len(chosen) + 1) / len(runs)
    after = max(quality.ideal, quality.opened * share)
    size = sum(map(_size, merged)) / len(merged)
    saved = (quality.opened - after) * (size + OPEN_COST_BYTES) * lookups
    if saved * PAYBACK_DAYS < sum(map(_size, merged)):
        return None
    why = (
        f"{len(merged):,} files are not {'clustered' if order.is_zorder else 'sorted'} by"
        f" {', '.join(order.names)}: a lookup opens {quality.opened:,.1f}, then {after:,.1f}"
    )
    return SortChoice(merged, why, saved)


def _find_runs(order: TableOrder, files: Sequence[LiveFile]) -> list[list[LiveFile]]:
    """Return the runs, the smallest first; a file that no rewrite ordered is a run of its own."""
    runs: dict[str, list[LiveFile]] = {}
    for live in files:
        runs.setdefault(order.find_run(live.file) or live.path, []).append(live)
    return sorted(runs.values(), key=_run_size)


def _merge_tier(runs: Sequence[list[LiveFile]], limit: int) -> list[list[LiveFile]]:
    """Return the smallest runs, without those that are larger than all smaller ones together."""
    sizes = [_run_size(run) for run in runs]
    count, total = len(sizes), sum(sizes)
    while count and (2 * sizes[count - 1] > total or total > limit):
        count -= 1
        total -= sizes[count]
    return list(runs[:count])


def _run_size(run: Sequence[LiveFile]) -> int:
    return sum(map(_size, run))


def _size(live: LiveFile) -> int:
    return int(live.file.file_size_in_bytes)
