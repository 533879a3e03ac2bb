"""Branches of runs that failed or died: find them, and drop them when they are old."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.config import private_files
from thermocline.errors import ThermoclineError
from thermocline.lake import refs, run_locks
from thermocline.lake.commit_times import now_ms
from thermocline.lake.naming import RUN_PREFIX, run_start_ms
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import TableState

_SWEEP_FILE = "swept"
_SWEEP_SECONDS = 3600.0
"""Seconds between two sweeps of all tables; a commit in between checks only its own tables."""


@dataclass(frozen=True)
class UnpublishedRun:
    """A run with branches that it has not published. `working` is None if it is not known."""

    run: str
    tables: tuple[str, ...]
    began: datetime
    touched: datetime
    """When the run began or last committed."""
    working: bool | None

    @property
    def branch(self) -> str:
        """The run's branch in each of its tables."""
        return RUN_PREFIX + self.run


def is_run_branch(name: str) -> bool:
    """Whether a branch belongs to a run."""
    return run_of(name) is not None


def run_of(branch: str) -> str | None:
    """Return the run that a branch belongs to, if any."""
    run = branch.removeprefix(RUN_PREFIX)
    return run if run != branch and run_start_ms(run) is not None else None


def find_unpublished_runs(
    lake: Lake, states: Mapping[str, TableState] | None = None
) -> list[UnpublishedRun]:
    """Return the runs that have branches, oldest first."""
    found: dict[str, list[TableState]] = {}
    for state in (lake.states() if states is None else states).values():
        for name in state.refs:
            if (run := run_of(name)) is not None:
                found.setdefault(run, []).append(state)
    return [
        UnpublishedRun(
            run,
            tuple(sorted(state.table for state in having)),
            _from_ms(run_start_ms(run) or 0),
            _from_ms(max(_last_activity_ms(state, RUN_PREFIX + run) for state in having)),
            run_locks.is_working(lake.settings.project, run),
        )
        for run, having in sorted(found.items())
    ]


def find_dead_branches(
    lake: Lake, state: TableState, before_ms: int, ours: Iterable[str]
) -> Iterator[tuple[str, int]]:
    """Yield a table's branches of runs without activity since a time, with their heads.

    Runs that are known to be working are skipped, however old they are.
    """
    for name, ref in state.refs.items():
        run = run_of(name)
        if run is None or name in ours or _last_activity_ms(state, name) >= before_ms:
            continue
        if not run_locks.is_working(lake.settings.project, run):
            yield name, ref.snapshot


def drop_branch(lake: Lake, branch: str, tables: Collection[str]) -> list[str]:
    """Remove a branch from all tables in one transaction; return the tables that had it."""
    states = lake.states(tables)
    heads = {t: head for t, state in states.items() if (head := state.head(branch)) is not None}
    if heads:
        lake.commit([refs.drop_ref(table, branch, was=head) for table, head in heads.items()])
    return list(heads)


def drop_run(lake: Lake, run: UnpublishedRun) -> None:
    """Remove a run's branches from all tables. Main does not change."""
    drop_branch(lake, run.branch, run.tables)
    run_locks.forget_run(lake.settings.project, run.run)


def expire_dead_runs(lake: Lake) -> list[str]:
    """Drop branches of dead runs older than `lake.retention.dead_after`; return the runs."""
    project, before = lake.settings.project, _from_ms(now_ms() - lake.retention_policy.dead_ms)
    files, found = run_locks.known_runs(project), find_unpublished_runs(lake)
    dead = [run for run in found if run.touched < before and not run.working]
    for run in dead:
        drop_run(lake, run)
    for name in set(files) - {run.run for run in found}:
        if run_locks.is_working(project, name) is False:
            run_locks.forget_run(project, name)  # it was killed without a branch left
    return [run.run for run in dead]


def expire_dead_runs_when_due(lake: Lake) -> None:
    """Drop branches of dead runs, at most once an hour for each project.

    It never fails the commit that it follows: a failed sweep is repeated later.
    """
    try:
        if _is_due(lake):
            for run in expire_dead_runs(lake):
                log("retention", "dropped the branches of a dead run", run=run)
    except (OSError, ThermoclineError) as error:
        log("retention", "not swept", level="WARNING", reason=one_line(str(error)))


def _is_due(lake: Lake) -> bool:
    """Whether a sweep is due; if so, this call counts as one."""
    path: Path = private_files.ensure_folder(lake.settings.project) / _SWEEP_FILE
    wait = min(_SWEEP_SECONDS, lake.retention_policy.dead_ms / 1000)
    try:
        due = time.time() - path.stat().st_mtime >= wait
    except FileNotFoundError:
        due = False  # a new project is swept in an hour
        path.touch(mode=0o600)
    if due:
        os.utime(path)
    return due


def _last_activity_ms(state: TableState, branch: str) -> int:
    """Return when a run began, or last committed to a table."""
    run = run_of(branch)
    began = run_start_ms(run) if run is not None else None
    return max(began or 0, state.snapshot(state.refs[branch].snapshot).timestamp_ms)


def _from_ms(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, tz=UTC)
