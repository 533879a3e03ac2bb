"""Maintenance of a lake's tables: what would be done, doing it, and what was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Event
from typing import TYPE_CHECKING, Any

from thermocline.errors import NotFound
from thermocline.maintain import service_status
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.journal import JOURNAL, read_history
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.service import MaintenanceService
from thermocline.maintain.standing_service import StandingService
from thermocline.maintain.table_health import TableHealth, evaluate_table
from thermocline.telemetry import SILENT, Progress

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.maintain.maintenance_plan import MaintenancePlan
    from thermocline.maintain.service import MaintenanceReport
    from thermocline.maintain.service_status import ServiceStatus

HISTORY_LIMIT = 50


class Maintenance:
    """Joins small files and applies deletes, beside writers, verified before it is published."""

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

    def _select(self, tables: Sequence[str]) -> list[str]:
        known = self._lake.tables()
        unknown = sorted(set(tables) - set(known))
        if unknown:
            raise NotFound(
                f"There is no table {', '.join(unknown)}.", "`thermo tables` lists them."
            )
        # The journal is written by maintenance itself: joined on request, not in every pass.
        return list(tables) or [table for table in known if table != JOURNAL]
