"""How old an answer may be: what is tolerated while a new one is made, and what at worst."""

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
    """For how many seconds after an answer stopped being the newest it is given.

    `tolerance` counts always. `overdue` counts when the newest is not to be had in time, and only
    for those who did not say how old an answer may be.
    """

    fleet: Fleet
    tolerance: float
    overdue: float

    def tolerance_for(self, ask: QueryRequest) -> float:
        """How many seconds ago a copy or an answer may have stopped being the newest."""
        if ask.max_staleness is None:
            return self.tolerance
        return min(self.tolerance, ask.max_staleness)

    def is_fresh(self, result: EngineResult, ask: QueryRequest) -> bool:
        """Whether an answer is given while a new one is made."""
        return not _pins_snapshot(ask) and self._seconds_behind(result) <= self.tolerance_for(ask)

    def is_acceptable(self, result: EngineResult, ask: QueryRequest) -> bool:
        """Whether an answer is better than waiting much longer, or than none."""
        longest = self.overdue if ask.max_staleness is None else self.tolerance_for(ask)
        return not _pins_snapshot(ask) and self._seconds_behind(result) <= longest

    def is_overdue(self, result: EngineResult, ask: QueryRequest) -> bool:
        """Whether an answer is older than it should be."""
        return not _pins_snapshot(ask) and self._seconds_behind(result) > self.tolerance_for(ask)

    def _seconds_behind(self, result: EngineResult) -> float:
        """How many seconds ago an answer stopped being the newest; 0 when it is."""
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


def _pins_snapshot(ask: QueryRequest) -> bool:
    """Whether a snapshot is asked for: an older answer never does for that."""
    return ask.snapshot is not None or ask.min_snapshot is not None
