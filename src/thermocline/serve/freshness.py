"""How stale an answer may be: normally, and while no newer one is available."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.serve.provenance import EngineResult
from thermocline.serve.route import seconds_behind
from thermocline.serve.values import QueryRequest

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet


@dataclass(frozen=True)
class Freshness:
    """How many seconds after an answer stopped being the newest it may still be returned.

    `tolerance` always applies. `overdue` applies when no newer answer is available in time, and
    only to requests without `max_staleness`.
    """

    fleet: Fleet
    tolerance: float
    overdue: float

    def tolerance_for(self, request: QueryRequest) -> float:
        """Return how many seconds ago a copy or an answer may have stopped being the newest."""
        if request.max_staleness is None:
            return self.tolerance
        return min(self.tolerance, request.max_staleness)

    def is_fresh(self, result: EngineResult, request: QueryRequest) -> bool:
        """Return whether an answer may be returned while a new one is computed."""
        return not _pins_snapshot(request) and self._seconds_behind(result) <= self.tolerance_for(
            request
        )

    def is_acceptable(self, result: EngineResult, request: QueryRequest) -> bool:
        """Return whether an answer is better than a long wait or an error."""
        longest = self.overdue if request.max_staleness is None else self.tolerance_for(request)
        return not _pins_snapshot(request) and self._seconds_behind(result) <= longest

    def is_overdue(self, result: EngineResult, request: QueryRequest) -> bool:
        """Return whether an answer is staler than its tolerance."""
        return not _pins_snapshot(request) and self._seconds_behind(result) > self.tolerance_for(
            request
        )

    def _seconds_behind(self, result: EngineResult) -> float:
        """Return how many seconds ago an answer stopped being the newest; 0 when it still is."""
        heads, superseded_at, now = (
            self.fleet.lake_state.table_heads,
            self.fleet.superseded_at,
            datetime.now(UTC),
        )
        behind = [
            seconds_behind(table, snapshot, superseded_at, now)
            for table, snapshot in result.access_path.snapshots.items()
            if table not in heads or heads[table].snapshot != snapshot
        ]
        return max(behind, default=0.0)


def _pins_snapshot(request: QueryRequest) -> bool:
    """Return whether the request names a snapshot: an older answer is never acceptable then."""
    return request.snapshot is not None or request.min_snapshot is not None
