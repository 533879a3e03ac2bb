"""The standing maintenance service: pass after pass, within its hours and its hourly budget.

A pass reads the metadata of tables that moved since the last one, and of those whose newest files
were still too young then. Once an hour it reads all tables, for work that only time makes due.
What it found is in a status file that `thermo serve` turns into metrics.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

from thermocline.config import quantities
from thermocline.errors import ThermoclineError
from thermocline.lake.commit_times import now_ms
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.journal import JOURNAL
from thermocline.maintain.service import MaintenanceService, MaintenanceUnderWay
from thermocline.maintain.service_status import (
    ServiceStatus,
    TableStatus,
    is_paused,
    write_status,
)
from thermocline.maintain.table_health import read_amplification, read_files
from thermocline.telemetry import SILENT, Progress, log

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState
    from thermocline.maintain.maintenance_plan import MaintenancePlan
    from thermocline.maintain.maintenance_policy import MaintenancePolicy
    from thermocline.maintain.service import MaintenanceReport
    from thermocline.maintain.task import MaintenanceTask

HOUR = 3600.0
MAX_RETRY_SECONDS = 300.0


class StandingService:
    """Maintains a lake until it is stopped. One instance remembers what it has read."""

    def __init__(self, lake: Lake, policy: MaintenancePolicy) -> None:
        settings = lake.settings.maintain
        self._lake = lake
        self._policy = policy
        self._reader = FileStatsReader()
        self._service = MaintenanceService(lake, policy, self._reader)
        self._every = quantities.parse_duration(settings.every)
        self._quiet_hours = quantities.parse_hours(settings.quiet_hours)
        self._budget = HourlyBudget(quantities.parse_duration(settings.hourly_budget))
        self._evaluated: dict[str, tuple[Hashable, TableStatus]] = {}
        """The version of each table's metadata, and what was found in it."""
        self._settled: dict[str, Hashable] = {}
        """Tables without work, with the version for which that is known."""
        self._read_all_at = -math.inf
        self._last_success: datetime | None = None

    def run(self, stop: Event, progress: Progress = SILENT) -> Iterator[MaintenanceReport]:
        """Do pass after pass until `stop` is set; yield the report of each that had work.

        A pass that fails is repeated, later each time. While another process maintains the lake,
        or between the quiet hours, nothing is done.
        """
        failures = 0
        while not stop.is_set():
            pause = self._every
            try:
                yield from self._do_pass(stop, progress)
                failures = 0
            except ThermoclineError as error:
                failures += 1
                pause = min(MAX_RETRY_SECONDS, self._every * 2.0**failures)
                log("maintain", "pass failed", level="WARNING", error=error.cause, retry=pause)
                self._report(f"failing: {error.cause}")
            stop.wait(pause)

    def _do_pass(self, stop: Event, progress: Progress) -> Iterator[MaintenanceReport]:
        self._lake.summarize(self._evaluate, self._evaluated)
        if (reason := self._find_reason_to_rest()) is not None:
            self._report(reason)
            return
        versions = {table: version for table, (version, _) in self._evaluated.items()}
        states = self._read_unsettled(versions)
        plan = self._service.plan_states(states, self._budget.remaining())
        if plan.tasks:
            self._report("working", (*plan.tasks, *plan.postponed))
            used = time.process_time()
            try:
                report = self._service.apply(plan, progress, stop)
            except MaintenanceUnderWay:
                self._report("another process maintains the lake")
                return
            finally:
                self._budget.spend(time.process_time() - used)
            yield report
        self._last_success = datetime.now(UTC)
        self._remember_settled(states, versions, plan)
        self._report("idle", plan.postponed)

    def _evaluate(self, state: TableState) -> TableStatus:
        policy = self._policy.for_table(state.properties)
        files = read_files(self._lake, state, self._reader, policy)
        partitions = files.partitions.values()
        return TableStatus(
            files=files.total.files,
            small_files=files.total.small_files,
            most_small_files=max((each.small_files for each in partitions), default=0),
            most_delete_bytes=max((each.delete_bytes for each in partitions), default=0),
            snapshots=len(state.snapshots),
            read_amplification=read_amplification(partitions, policy),
        )

    def _read_unsettled(self, versions: Mapping[str, Hashable]) -> Mapping[str, TableState]:
        """Return the tables that may have work: those that moved, and once an hour all of them."""
        now = time.monotonic()
        if now - self._read_all_at >= HOUR:
            self._settled.clear()
            self._read_all_at = now
        unsettled = [
            table for table, version in versions.items()
            if table != JOURNAL and self._settled.get(table) != version
        ]  # fmt: skip
        return self._lake.states(unsettled) if unsettled else {}

    def _remember_settled(
        self,
        states: Mapping[str, TableState],
        versions: Mapping[str, Hashable],
        plan: MaintenancePlan,
    ) -> None:
        """Remember the tables that have no work, and whose files are all old enough for it."""
        busy = {task.table for task in (*plan.tasks, *plan.postponed)} | plan.skipped.keys()
        cooled_ms = now_ms() - self._policy.cool_down * 1000
        for table, state in states.items():
            head = state.head()
            if table not in busy and (
                head is None or state.snapshot(head).timestamp_ms <= cooled_ms
            ):
                self._settled[table] = versions[table]

    def _find_reason_to_rest(self) -> str | None:
        if is_paused(self._lake.settings.project):
            return "paused"
        if self._quiet_hours is not None and is_within(datetime.now(UTC), self._quiet_hours):
            return "quiet hours"
        if self._budget.remaining() <= 0:
            return "the budget of this hour is used up"
        return None

    def _report(self, state: str, due: Sequence[MaintenanceTask] = ()) -> None:
        status = ServiceStatus(
            at=datetime.now(UTC),
            state=state,
            every_seconds=self._every,
            last_success=self._last_success,
            queued_tasks=len(due),
            queued_cpu_seconds=sum(task.cpu_seconds for task in due),
            tables={table: each for table, (_, each) in self._evaluated.items()},
        )
        write_status(self._lake.settings.project, status)


class HourlyBudget:
    """The CPU seconds that may be used within any hour."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._spent: deque[tuple[float, float]] = deque()

    def spend(self, seconds: float) -> None:
        """Record that CPU seconds were used."""
        self._spent.append((time.monotonic(), seconds))

    def remaining(self) -> float:
        """Return how many CPU seconds may be used now."""
        while self._spent and self._spent[0][0] < time.monotonic() - HOUR:
            self._spent.popleft()
        return self._seconds - sum(seconds for _, seconds in self._spent)


def is_within(moment: datetime, hours: tuple[int, int]) -> bool:
    """Whether a moment is within hours of the day, which may pass midnight."""
    minute, (start, end) = moment.hour * 60 + moment.minute, hours
    return start <= minute < end if start < end else minute >= start or minute < end
