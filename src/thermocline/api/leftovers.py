"""`thermo clean`: drop what failed or killed runs left in the lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, NotFound
from thermocline.lake import run_branches
from thermocline.lake.commit_times import now_ms
from thermocline.lake.naming import RUN_PREFIX
from thermocline.lake.run_branches import UnpublishedRun

if TYPE_CHECKING:
    from thermocline.lake import Lake


class LeftoverStatus(StrEnum):
    """Status of a run that has unpublished branches."""

    DEAD = "dead"
    WORKING = "working"
    """A process of this project is working on it."""
    RESUMABLE = "resumable"
    """A backfill that the same command resumes."""
    UNKNOWN = "unknown"
    """It started recently on another machine, or in another copy of the project."""


@dataclass(frozen=True)
class Leftover:
    """Branches of one run, and whether they were dropped (with a plan: would be dropped)."""

    run: str
    tables: tuple[str, ...]
    began: datetime
    status: LeftoverStatus
    dropped: bool

    def as_dict(self) -> dict[str, Any]:
        """Return the leftover as JSON values."""
        return {**vars(self), "tables": list(self.tables), "began": self.began.isoformat(),
                "status": str(self.status)}  # fmt: skip


@dataclass(frozen=True)
class CleanReport:
    """What was dropped, what was kept, and why; with `plan` nothing was changed."""

    plan: bool
    runs: tuple[Leftover, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"plan": self.plan, "runs": [each.as_dict() for each in self.runs]}


def clean(
    lake: Lake, runs: Sequence[str] = (), *, plan: bool = False, force: bool = False
) -> CleanReport:
    """Drop the branches of runs that are certainly dead, or of the named runs.

    A run at work is never dropped. `force` also drops runs whose status is unknown.
    """
    found = run_branches.find_unpublished_runs(lake)
    chosen = [_find_run(name, found) for name in runs]
    report = []
    for each in found if not runs else dict.fromkeys(chosen):
        status = _classify(lake, each)
        named = each in chosen
        if named:
            _refuse_to_drop(each, status, force=force)
        drops = status is LeftoverStatus.DEAD or (
            status is LeftoverStatus.RESUMABLE and named
        ) or (status is LeftoverStatus.UNKNOWN and force)  # fmt: skip
        report.append(Leftover(each.run, each.tables, each.began, status, drops))
    if not plan:
        for each in found:
            if any(done.dropped and done.run == each.run for done in report):
                run_branches.drop_run(lake, each)
    return CleanReport(plan, tuple(report))


def _classify(lake: Lake, run: UnpublishedRun) -> LeftoverStatus:
    from thermocline.transform.workers.backfill import find_request

    if run.working:
        return LeftoverStatus.WORKING
    if run.touched.timestamp() * 1000 < now_ms() - lake.retention_policy.dead_ms:
        return LeftoverStatus.DEAD
    for state in lake.states(run.tables).values():
        head = state.head(run.branch)
        if head is not None and find_request(state, run.run, head) is not None:
            return LeftoverStatus.RESUMABLE
    return LeftoverStatus.UNKNOWN if run.working is None else LeftoverStatus.DEAD


def _refuse_to_drop(run: UnpublishedRun, status: LeftoverStatus, *, force: bool) -> None:
    """Raise if a named run must not be dropped."""
    if status is LeftoverStatus.WORKING:
        raise BadInput(
            f"Run {run.run} is still running.", "Wait for it, or stop its process first."
        )
    if status is LeftoverStatus.UNKNOWN and not force:
        raise BadInput(
            f"Run {run.run} was started on another machine and may still be running there.",
            "When you know that it is not running: thermo clean --force RUN.",
        )


def _find_run(text: str, found: Sequence[UnpublishedRun]) -> UnpublishedRun:
    """Return the run whose id, or branch, starts with the text."""
    prefix = text.removeprefix(RUN_PREFIX).upper()
    same = [run for run in found if prefix and run.run.startswith(prefix)]
    if not same:
        raise NotFound(f"No table has a branch of run {text}.", "See `thermo clean --plan`.")
    if len(same) > 1:
        raise BadInput(
            f"{len(same)} runs with branches have an id that starts with {text}.",
            "Write more of the id.",
        )
    return same[0]
