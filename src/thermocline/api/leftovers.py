"""Dropping what runs that failed or died left in the lake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, NotFound
from thermocline.lake import leftovers
from thermocline.lake.commit_times import now_ms
from thermocline.lake.leftovers import Unpublished
from thermocline.lake.names import RUN_PREFIX

if TYPE_CHECKING:
    from thermocline.lake import Lake


class Standing(StrEnum):
    """What a run with unpublished branches is."""

    DEAD = "dead"
    WORKING = "working"
    """A process of this project is at work on it."""
    RESUMABLE = "resumable"
    """A backfill that the same command takes up again."""
    UNKNOWN = "unknown"
    """It began on another machine, or in another copy of the project, not long ago."""


@dataclass(frozen=True)
class Leftover:
    """A run's leftovers: its tables, and whether they were (or with a plan would be) dropped."""

    run: str
    tables: tuple[str, ...]
    began: datetime
    standing: Standing
    dropped: bool

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**vars(self), "tables": list(self.tables), "began": self.began.isoformat(),
                "standing": str(self.standing)}  # fmt: skip


@dataclass(frozen=True)
class CleanReport:
    """What was dropped and what was kept, and why; with `plan` nothing was done."""

    plan: bool
    runs: tuple[Leftover, ...]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {"plan": self.plan, "runs": [each.as_dict() for each in self.runs]}


def clean(
    lake: Lake, runs: Sequence[str] = (), *, plan: bool = False, force: bool = False
) -> CleanReport:
    """Drop the branches of runs that are certainly dead, or of the named ones.

    A run at work is never dropped. `force` also drops runs of which nothing is known here.
    """
    found = leftovers.unpublished(lake)
    chosen = [_named(name, found) for name in runs]
    report = []
    for each in found if not runs else dict.fromkeys(chosen):
        standing = _standing(lake, each)
        named = each in chosen
        if named:
            _refuse(each, standing, force=force)
        drops = standing is Standing.DEAD or (
            standing is Standing.RESUMABLE and named
        ) or (standing is Standing.UNKNOWN and force)  # fmt: skip
        report.append(Leftover(each.run, each.tables, each.began, standing, drops))
    if not plan:
        for each in found:
            if any(done.dropped and done.run == each.run for done in report):
                leftovers.drop(lake, each)
    return CleanReport(plan, tuple(report))


def _standing(lake: Lake, run: Unpublished) -> Standing:
    from thermocline.transform.workers.backfill import noted

    if run.working:
        return Standing.WORKING
    if run.touched.timestamp() * 1000 < now_ms() - lake.keep.dead_ms:
        return Standing.DEAD
    for state in lake.states(run.tables).values():
        head = state.head(run.branch)
        if head is not None and noted(state, run.run, head) is not None:
            return Standing.RESUMABLE
    return Standing.UNKNOWN if run.working is None else Standing.DEAD


def _refuse(run: Unpublished, standing: Standing, *, force: bool) -> None:
    """Raise for a run that was named and must not be dropped."""
    if standing is Standing.WORKING:
        raise BadInput(
            f"Run {run.run} is still at work.", "Wait for it, or stop its process first."
        )
    if standing is Standing.UNKNOWN and not force:
        raise BadInput(
            f"Run {run.run} began elsewhere, and may be at work there.",
            "When you know that it is not: thermo clean --force RUN.",
        )


def _named(text: str, found: Sequence[Unpublished]) -> Unpublished:
    """The run of that id, or whose id or branch begins so."""
    beginning = text.removeprefix(RUN_PREFIX).upper()
    same = [run for run in found if beginning and run.run.startswith(beginning)]
    if not same:
        raise NotFound(f"No table has a branch of run {text}.", "See `thermo clean --plan`.")
    if len(same) > 1:
        raise BadInput(
            f"{len(same)} runs with branches have an id that begins with {text}.",
            "Give more of the id.",
        )
    return same[0]
