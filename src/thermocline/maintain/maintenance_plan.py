"""What to do to tables, ranked by what readers save for the CPU seconds that it costs.

A plan is a list of tasks of several kinds (`task`). It is a value: what
`thermo maintain --plan` prints is what `thermo maintain` applies.

Small files are joined in tiers, like the runs of a log-structured merge tree: the largest file is
left out while it is larger than all others together. So a table that receives a small file every
second has each row rewritten a logarithmic number of times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, ThermoclineError
from thermocline.lake import run_locks
from thermocline.lake.commit_times import now_ms
from thermocline.lake.live_files import LiveFile, live_files
from thermocline.lake.reachability import unreadable_metadata
from thermocline.lake.run_branches import run_of
from thermocline.maintain.expiry import plan_table_expiry
from thermocline.maintain.file_rewrite import Rewrite, rewrite_files
from thermocline.maintain.file_stats import FileStats, FileStatsReader, format_partition
from thermocline.maintain.maintenance_policy import (
    CPU_SECONDS_PER_FILE,
    OPEN_COST_BYTES,
    REWRITE_BYTES_PER_CPU_SECOND,
    MaintenancePolicy,
)
from thermocline.maintain.manifest_rewrite import plan_manifest_rewrite
from thermocline.maintain.read_weights import ReadWeights, describe_reads
from thermocline.maintain.removal import plan_removal
from thermocline.maintain.sort_plan import SortChoice, choose_unsorted, find_unsorted
from thermocline.maintain.table_health import ideal_cost, read_files, scan_cost
from thermocline.maintain.task import (
    COUNTS,
    MaintenanceTask,
    TaskEffect,
    TaskKind,
    describe_task,
)
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState


@dataclass(frozen=True)
class CompactTask:
    """One rewrite of one partition, with what it is expected to save and to cost."""

    rewrite: Rewrite
    partition: str
    files: int
    bytes: int
    delete_files: int
    why: str
    saved_bytes: int
    """Bytes that a full scan of the partition saves, opened files counted as 4 MB."""
    cpu_seconds: float
    reads_per_day: float | None = None
    """Scans of the table per day; None if no reads have been recorded."""
    saved_by_lookups: float = 0.0
    """Bytes that lookups by the table's order save in a day."""
    kind = TaskKind.COMPACT

    @property
    def table(self) -> str:
        """Return the table's name."""
        return self.rewrite.table

    @property
    def counts(self) -> Mapping[str, int]:
        """Return the files and bytes that it reads."""
        return {"files_before": self.files, "bytes_before": self.bytes}

    @property
    def details(self) -> Mapping[str, Any]:
        """Return the files, their bytes and their delete files."""
        return {
            "files": self.files,
            "bytes": self.bytes,
            "delete_files": self.delete_files,
            "reads_per_day": self.reads_per_day,
        }

    def apply(self, lake: Lake) -> TaskEffect:
        """Rewrite the files."""
        made = rewrite_files(lake, self.rewrite)
        counts = {name: getattr(made, name) for name in COUNTS if hasattr(made, name)}
        return TaskEffect(counts, made.snapshot)


@dataclass(frozen=True)
class MaintenancePlan:
    """The tasks of a pass, best first, and what was left out and why."""

    tasks: tuple[MaintenanceTask, ...]
    postponed: tuple[MaintenanceTask, ...] = ()
    """Tasks beyond the budget of the pass."""
    skipped: Mapping[str, str] = ()  # type: ignore[assignment]
    """Tables that are left alone now, with the reason."""

    def as_dict(self) -> dict[str, Any]:
        """Return the plan as JSON values."""
        return {
            "tasks": [describe_task(task) for task in self.tasks],
            "postponed": [describe_task(task) for task in self.postponed],
            "skipped": dict(self.skipped),
        }


def plan_tables(
    lake: Lake,
    states: Mapping[str, TableState],
    reader: FileStatsReader,
    policy: MaintenancePolicy,
) -> MaintenancePlan:
    """Plan a pass over some tables. Reads manifests only, and those once."""
    found: list[MaintenanceTask] = []
    skipped: dict[str, str] = {}
    reads = ReadWeights.of_project(lake.settings.project)
    for table, state in states.items():
        try:
            with unreadable_metadata(table):
                tasks, reason = _plan_tasks(lake, state, reader, policy, reads)
        except ThermoclineError as error:
            tasks, reason = [], one_line(error.cause)  # the other tables are maintained
        found += tasks
        if reason is not None:
            skipped[table] = reason
    found.sort(key=lambda task: _order(task, reads))
    spent = 0.0
    size = 0
    within: list[MaintenanceTask] = []
    beyond: list[MaintenanceTask] = []
    for task in found:
        size_after = size + task.counts.get("bytes_before", 0)
        limited = task.kind in _LIMITED
        fits = (
            not limited
            or not spent
            or (spent + task.cpu_seconds <= policy.budget and size_after <= policy.max_bytes)
        )
        (within if fits else beyond).append(task)
        if limited and fits:
            spent += task.cpu_seconds
            size = size_after
    return MaintenancePlan(tuple(within), tuple(beyond), skipped)


def _plan_tasks(
    lake: Lake,
    state: TableState,
    reader: FileStatsReader,
    policy: MaintenancePolicy,
    reads: ReadWeights,
) -> tuple[list[MaintenanceTask], str | None]:
    """Return the tasks of a table, and why others are left out."""
    removal, reason = plan_removal(lake, state, policy)
    tasks: list[MaintenanceTask] = [] if removal is None else [removal]
    if run := _find_active_run(lake, state):
        return tasks, f"the run {run} is working on it"
    try:
        expiry = plan_table_expiry(lake, state)
    except BadInput as error:
        expiry, reason = None, reason or one_line(error.cause)
    tasks += [] if expiry is None else [expiry]
    manifests = plan_manifest_rewrite(lake, state, policy)
    tasks += [] if manifests is None else [manifests]
    return [*tasks, *plan_table(lake, state, reader, policy, reads)], reason


_LIMITED = (TaskKind.COMPACT, TaskKind.MANIFESTS)
"""The kinds that count against the budget; the others are short, and each pass does them."""
_PHASES = {TaskKind.EXPIRE: 0, TaskKind.COMPACT: 1, TaskKind.MANIFESTS: 1, TaskKind.REMOVE: 2}
"""Snapshots expire before others commit to the table; removal sees what all of them left."""


def _order(task: MaintenanceTask, reads: ReadWeights) -> tuple[int, float]:
    """Order tasks of a phase by what their table's readers save in a day for a CPU second."""
    daily = task.saved_bytes * reads.scans(task.table)
    if isinstance(task, CompactTask):
        daily += task.saved_by_lookups
    return _PHASES[task.kind], -daily / max(task.cpu_seconds, 1e-9)


def plan_table(
    lake: Lake,
    state: TableState,
    reader: FileStatsReader,
    policy: MaintenancePolicy,
    reads: ReadWeights,
) -> Iterator[CompactTask]:
    """Yield the rewrites of a table that are worth it."""
    policy = policy.for_table(state.properties)
    files = read_files(lake, state, reader, policy)
    unsorted = find_unsorted(files, policy)
    candidates = [
        key for key, stats in files.partitions.items()
        if _is_candidate(stats, policy) or key in unsorted
    ]  # fmt: skip
    head = state.head()
    if not candidates or head is None:
        return
    table = lake.iceberg(state.table)
    wanted: dict[int, set[Any]] = {}
    for spec, partition in candidates:
        wanted.setdefault(spec, set()).add(partition)
    groups: dict[tuple[int, Any], list[LiveFile]] = {}
    for live in live_files(table, head, wanted):
        groups.setdefault(live.partition, []).append(live)
    for key, some in groups.items():
        cooled = [live for live in some if _age_seconds(state, live) >= policy.cool_down]
        lookups = reads.lookups(state.table, files.order.names if files.order else ())
        sort = choose_unsorted(files.order, unsorted.get(key), cooled, policy, lookups)
        if sort is not None:
            yield _add_reads(_make_sort_task(table, state.table, key, sort, policy), reads)
            paths = {live.path for live in sort.files}
            cooled = [live for live in cooled if live.path not in paths]
        for chosen in choose_files(cooled, policy):
            yield _add_reads(_make_task(table, state.table, key, chosen, policy), reads)


def choose_files(files: Sequence[LiveFile], policy: MaintenancePolicy) -> Iterator[list[LiveFile]]:
    """Choose the files of one partition to rewrite together, in groups of limited size."""
    dirty = [live for live in files if _is_dirty(live, policy)]
    clean = [live for live in files if not _is_dirty(live, policy)]
    small = [live for live in clean if _size(live) < policy.small_bytes]
    small.sort(key=_size)
    rest = sum(map(_size, (*small, *dirty)))
    while small and _size(small[-1]) > rest - _size(small[-1]):
        rest -= _size(small.pop())
    if len(small) + len(dirty) < policy.min_files:
        small = []
    chosen = [*dirty, *small]
    group: list[LiveFile] = []
    size = 0
    for live in chosen:
        if group and size + _size(live) > policy.max_group_bytes:
            yield group
            group, size = [], 0
        group.append(live)
        size += _size(live)
    if len(group) > 1 or any(_is_dirty(live, policy) for live in group):
        yield group


def _is_candidate(stats: FileStats, policy: MaintenancePolicy) -> bool:
    return (
        stats.small_files >= policy.min_files
        or stats.delete_files >= policy.max_delete_files
        or stats.equality_deletes > 0
        or stats.deleted_rows >= policy.delete_share * max(1, stats.rows)
    ) and scan_cost(stats) > ideal_cost(stats, policy)


def _is_dirty(live: LiveFile, policy: MaintenancePolicy) -> bool:
    """Whether its deletes make it worth rewriting, whatever its size."""
    deleted = sum(delete.record_count for delete in live.positions)
    return (
        len(live.deletes) >= policy.max_delete_files
        or bool(live.equalities)
        or deleted >= max(1.0, policy.delete_share * live.file.record_count)
    )


def _size(live: LiveFile) -> int:
    return int(live.file.file_size_in_bytes)


def _age_seconds(state: TableState, live: LiveFile) -> float:
    """Return a file's age; one whose snapshot has expired is old."""
    if live.added_by is None or live.added_by not in state.snapshots:
        return math.inf
    return (now_ms() - state.snapshots[live.added_by].timestamp_ms) / 1000


def _make_task(
    table: Table,
    name: str,
    partition: tuple[int, Any],
    chosen: Sequence[LiveFile],
    policy: MaintenancePolicy,
) -> CompactTask:
    size = sum(map(_size, chosen))
    deletes = {delete.file_path: delete for live in chosen for delete in live.deletes}
    delete_bytes = sum(delete.file_size_in_bytes for delete in deletes.values())
    after = max(1, math.ceil(size / policy.target_bytes))
    saved = (len(chosen) - after + len(deletes)) * OPEN_COST_BYTES + delete_bytes
    why = f"{len(chosen):,} files of {size / len(chosen) / (1 << 20):,.2f} MB on average"
    if deletes:
        why += f", {len(deletes):,} delete files"
    return CompactTask(
        Rewrite(name, partition, frozenset(live.path for live in chosen), policy.target_bytes),
        format_partition(table, partition),
        len(chosen),
        size,
        len(deletes),
        why,
        saved,
        size / REWRITE_BYTES_PER_CPU_SECOND + len(chosen) * CPU_SECONDS_PER_FILE,
    )


def _make_sort_task(
    table: Table,
    name: str,
    partition: tuple[int, Any],
    chosen: SortChoice,
    policy: MaintenancePolicy,
) -> CompactTask:
    task = _make_task(table, name, partition, chosen.files, policy)
    return replace(task, why=chosen.why, saved_by_lookups=chosen.saved_per_day)


def _add_reads(task: CompactTask, reads: ReadWeights) -> CompactTask:
    rate = reads.rate(task.table)
    if rate is None:
        return task
    return replace(task, why=f"{task.why}; {describe_reads(rate.scans)}", reads_per_day=rate.scans)


def _find_active_run(lake: Lake, state: TableState) -> str | None:
    """Return a run that is computing on the table: a moved main would make it start over."""
    for name in state.refs:
        run = run_of(name)
        if run is not None and run_locks.is_working(lake.settings.project, run) is not False:
            return run
    return None
