"""Maintenance of a lake's tables: what would be done, doing it, and what was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from threading import Event
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, NotFound
from thermocline.maintain import service_status
from thermocline.maintain.column_statistics import ColumnStatistics, compute_statistics
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.journal import JOURNAL, read_history
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.service import MaintenanceReport, MaintenanceService
from thermocline.maintain.standing_service import StandingService
from thermocline.maintain.table_details import TableDetails, describe_table
from thermocline.maintain.table_health import TableHealth, evaluate_table
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.maintain.maintenance_plan import MaintenancePlan
    from thermocline.maintain.service_status import ServiceStatus

HISTORY_LIMIT = 50


class Maintenance:
    """Maintains tables beside their writers: compacts, expires and removes, verified."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._policy = MaintenancePolicy.from_settings(lake.settings.maintain)
        self._service = MaintenanceService(lake, self._policy)
        self._stats = FileStatsReader()

    def plan(self, tables: Sequence[str] = ()) -> MaintenancePlan:
        """Return what a pass would do and why, best first, without doing it."""
        return self._service.plan(self._select(tables))

    def apply(
        self,
        plan: MaintenancePlan | None = None,
        *,
        progress: Progress = SILENT,
        stop: Event | None = None,
    ) -> MaintenanceReport:
        """Apply a plan, by default a new one over all tables; each task is one commit.

        A task whose files were changed meanwhile is discarded, and planned again by the next pass.
        """
        return self._service.apply(self.plan() if plan is None else plan, progress, stop)

    def watch(self, stop: Event, progress: Progress = SILENT) -> Iterator[MaintenanceReport]:
        """Maintain the lake until `stop` is set; yield the report of each pass that had work."""
        yield from StandingService(self._lake, self._policy).run(stop, progress)

    def pause(self) -> None:
        """Let every maintenance service of this project rest until `resume`."""
        service_status.pause(self._lake.settings.project)

    def resume(self) -> None:
        """Let the maintenance services of this project work again."""
        service_status.resume(self._lake.settings.project)

    def is_paused(self) -> bool:
        """Whether the maintenance services of this project are to rest."""
        return service_status.is_paused(self._lake.settings.project)

    def status(self) -> ServiceStatus | None:
        """Return what the project's maintenance service reported last, if one has run."""
        return service_status.read_status(self._lake.settings.project)

    def remove_unreferenced(
        self,
        table: str,
        older_than: timedelta,
        *,
        confirm: str | None = None,
        progress: Progress = SILENT,
    ) -> MaintenanceReport:
        """Delete files of a table that nothing references now, without the grace period.

        Readers of expired snapshots and writers that are unknown here can lose files that were
        changed before `older_than`. So it is only reported what would be deleted, as the report's
        plan, unless `confirm` is the table's name.
        """
        if older_than < timedelta(0):
            raise BadInput(
                "Files cannot be older than a time in the future.",
                "Give an age such as 24h: what was changed later is kept.",
            )
        if confirm is not None and confirm != table:
            raise BadInput(
                f"The confirmation names {confirm}, not {table}.",
                f"To delete its unreferenced files: --confirm {table}",
            )
        [name] = self._select([table])
        plan = self._service.plan_forced_removal(name, older_than.total_seconds())
        if confirm is None:
            return MaintenanceReport(plan=plan)
        return self._service.apply(plan, progress)

    def history(self, limit: int = HISTORY_LIMIT) -> list[dict[str, Any]]:
        """Return the newest tasks of all passes, newest first."""
        return read_history(self._lake, limit)

    def health(self, tables: Sequence[str] = ()) -> list[TableHealth]:
        """Return how well tables can be read and what holds their history, worst first."""
        states = self._lake.states(self._select(tables))
        found = [
            evaluate_table(self._lake, state, self._stats, self._policy)
            for state in states.values()
        ]
        return sorted(found, key=lambda health: (health.score, health.table))

    def compute_statistics(self, table: str) -> ColumnStatistics:
        """Compute the distinct values of all columns with Spark, for query planners.

        A table that has hardly changed since keeps the statistics that it has.
        """
        [name] = self._select([table])
        return compute_statistics(self._lake, name)

    def describe(self, table: str) -> TableDetails:
        """Return one table in detail: partitions, reads, updates, alerts, and advice."""
        [name] = self._select([table])
        return describe_table(self._lake, self._lake.state(name), self._stats, self._policy)

    def _select(self, tables: Sequence[str]) -> list[str]:
        known = self._lake.tables()
        unknown = sorted(set(tables) - set(known))
        if unknown:
            raise NotFound(
                f"There is no table {', '.join(unknown)}.", "`thermo tables` lists them."
            )
        # The journal is written by maintenance itself: joined on request, not in every pass.
        return list(tables) or [table for table in known if table != JOURNAL]
