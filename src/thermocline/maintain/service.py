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
from thermocline.maintain.file_rewrite import Discarded, RewriteResult, rewrite_files
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.journal import record_results
from thermocline.maintain.maintenance_plan import MaintenancePlan, Task, plan_tables
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.telemetry import SILENT, Progress, log

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState


@dataclass(frozen=True)
class TaskResult:
    """What became of a task: published, discarded or failed, and why."""

    task: Task
    started_at: datetime
    seconds: float
    cpu_seconds: float
    outcome: str
    reason: str = ""
    rewrite: RewriteResult | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        made = self.rewrite
        return {
            "table": self.task.table,
            "partition": self.task.partition,
            "started_at": self.started_at.isoformat(),
            "seconds": round(self.seconds, 3),
            "cpu_seconds": round(self.cpu_seconds, 3),
            "outcome": self.outcome,
            "reason": self.reason,
            "snapshot": made and str(made.snapshot),
            "rows": made and made.rows,
            "files_before": self.task.files,
            "files_after": made and made.files_after,
            "bytes_before": self.task.bytes,
            "bytes_after": made and made.bytes_after,
            "delete_files_removed": made and made.delete_files_removed,
            "carried_deletes": made and made.carried_deletes,
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
            "postponed": [task.as_dict() for task in self.plan.postponed],
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
        """Apply a plan, one commit per task. A task that fails does not stop the others."""
        results = []
        with _lease(self._lake):
            progress.step("maintain", total=len(plan.tasks))
            for task in plan.tasks:
                if stop is not None and stop.is_set():
                    break
                results.append(_apply_task(self._lake, task))
                progress.advance(1, f"{task.table} {task.partition}".strip())
            published = sum(result.outcome == "published" for result in results)
            progress.done(f"{published:,} of {len(plan.tasks):,} rewrites published")
            record_results(self._lake, results)
        return MaintenanceReport(tuple(results), plan)


def _apply_task(lake: Lake, task: Task) -> TaskResult:
    started_at, began, cpu = datetime.now(UTC), time.monotonic(), time.process_time()

    def result(outcome: str, reason: str = "", rewrite: RewriteResult | None = None) -> TaskResult:
        seconds, used = time.monotonic() - began, time.process_time() - cpu
        log("maintain", outcome, table=task.table, partition=task.partition, reason=reason)
        return TaskResult(task, started_at, seconds, used, outcome, reason, rewrite)

    try:
        return result("published", rewrite=rewrite_files(lake, task.rewrite))
    except Discarded as reason:
        return result("discarded", str(reason))
    except ThermoclineError as error:
        return result("failed", error.cause)


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
