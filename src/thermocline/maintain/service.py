"""Apply maintenance: one pass, or pass after pass."""

from __future__ import annotations

import fcntl
import math
import os
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING, Any

from thermocline.config import private_files
from thermocline.errors import ThermoclineError, Transient
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.journal import record_results
from thermocline.maintain.maintenance_plan import MaintenancePlan, plan_tables
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.removal import plan_forced_removal
from thermocline.maintain.task import (
    COUNTS,
    Discarded,
    MaintenanceTask,
    TaskEffect,
    describe_task,
)
from thermocline.telemetry import SILENT, Progress, log

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

APPLIED = ("published", "done")
"""The outcomes of tasks that did what was planned."""


@dataclass(frozen=True)
class TaskResult:
    """What became of a task, and why: published, done (without a commit), discarded or failed."""

    task: MaintenanceTask
    started_at: datetime
    seconds: float
    cpu_seconds: float
    effect: TaskEffect

    @property
    def outcome(self) -> str:
        """Return what became of the task."""
        return self.effect.outcome

    @property
    def reason(self) -> str:
        """Return why, if it was not done."""
        return self.effect.reason

    @property
    def counts(self) -> Mapping[str, int | None]:
        """Return what was counted, by the names in COUNTS."""
        known = {**self.task.counts, **self.effect.counts}
        return {name: known.get(name) for name in COUNTS}

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        made = self.effect.snapshot
        return {
            "kind": str(self.task.kind),
            "table": self.task.table,
            "partition": self.task.partition,
            "started_at": self.started_at.isoformat(),
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "outcome": self.outcome,
            "reason": self.reason,
            "snapshot": None if made is None else str(made),
            **self.counts,
        }


@dataclass(frozen=True)
class MaintenanceReport:
    """What a pass did, and what it left for the next."""

    results: tuple[TaskResult, ...] = ()
    plan: MaintenancePlan = field(default_factory=lambda: MaintenancePlan(()))

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {
            "results": [result.as_dict() for result in self.results],
            "postponed": [describe_task(task) for task in self.plan.postponed],
            "skipped": dict(self.plan.skipped),
        }


class MaintenanceUnderWay(Transient):
    """Another process of this project is maintaining the lake."""


class MaintenanceService:
    """Maintains the tables of a lake. Remembers what it has read of their manifests."""

    def __init__(
        self, lake: Lake, policy: MaintenancePolicy, reader: FileStatsReader | None = None
    ) -> None:
        self._lake = lake
        self._policy = policy
        self._reader = reader or FileStatsReader()

    def plan(self, tables: Collection[str] | None = None) -> MaintenancePlan:
        """Return what a pass would do, without doing it."""
        return self.plan_states(self._lake.states(tables))

    def plan_states(
        self, states: Mapping[str, TableState], budget: float = math.inf
    ) -> MaintenancePlan:
        """Return what a pass over these tables would do within `budget` CPU seconds."""
        policy = replace(self._policy, budget=min(budget, self._policy.budget))
        return plan_tables(self._lake, states, self._reader, policy)

    def apply(
        self, plan: MaintenancePlan, progress: Progress = SILENT, stop: Event | None = None
    ) -> MaintenanceReport:
        """Apply a plan, at most one commit per task. A task that fails does not stop the others."""
        results = []
        with _lease(self._lake):
            progress.step("maintain", total=len(plan.tasks))
            for task in plan.tasks:
                if stop is not None and stop.is_set():
                    break
                results.append(_apply_task(self._lake, task))
                progress.advance(1, f"{task.kind} {task.table} {task.partition}".strip())
            applied = sum(result.outcome in APPLIED for result in results)
            progress.done(f"{applied:,} of {len(plan.tasks):,} tasks applied")
            record_results(self._lake, results)
        return MaintenanceReport(tuple(results), plan)

    def plan_forced_removal(self, table: str, age_seconds: float) -> MaintenancePlan:
        """Return what would be removed of a table's unreferenced files, whenever they became so."""
        state = self._lake.states([table])[table]
        try:
            task = plan_forced_removal(self._lake, state, int(age_seconds * 1000))
        except Discarded as reason:
            return MaintenancePlan((), skipped={table: f"nothing is removed from it: {reason}"})
        return MaintenancePlan((task,) if task.due else ())


def _apply_task(lake: Lake, task: MaintenanceTask) -> TaskResult:
    started_at, began, cpu = datetime.now(UTC), time.monotonic(), time.process_time()
    try:
        effect = task.apply(lake)
    except Discarded as reason:
        effect = TaskEffect(outcome="discarded", reason=str(reason))
    except ThermoclineError as error:
        effect = TaskEffect(outcome="failed", reason=error.cause)
    log(
        "maintain", effect.outcome, kind=str(task.kind), table=task.table,
        partition=task.partition, reason=effect.reason,
    )  # fmt: skip
    seconds, used = time.monotonic() - began, time.process_time() - cpu
    return TaskResult(task, started_at, seconds, used, effect)


@contextmanager
def _lease(lake: Lake) -> Iterator[None]:
    """Have one maintainer of a project on this machine; others elsewhere are safe, and wasteful."""
    path = private_files.ensure_folder(lake.settings.project) / "maintain.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise MaintenanceUnderWay(
                "Another process maintains this lake.",
                "Wait until it ends.",
            ) from None
        yield
    finally:
        os.close(handle)
