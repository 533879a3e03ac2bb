"""How old an answer may be: what is tolerated while a new one is made, and what at worst."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.serve.provenance import Given
from thermocline.serve.route import seconds_behind
from thermocline.serve.terms import Ask

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

    def tolerated(self, ask: Ask) -> float:
        """How many seconds ago a copy or an answer may have stopped being the newest."""
        if ask.max_staleness is None:
            return self.tolerance
        return min(self.tolerance, ask.max_staleness)

    def will_do(self, given: Given, ask: Ask) -> bool:
        """Whether an answer is given while a new one is made."""
        return not _names_one(ask) and self._behind(given) <= self.tolerated(ask)

    def will_do_at_worst(self, given: Given, ask: Ask) -> bool:
        """Whether an answer is better than waiting much longer, or than none."""
        longest = self.overdue if ask.max_staleness is None else self.tolerated(ask)
        return not _names_one(ask) and self._behind(given) <= longest

    def is_overdue(self, given: Given, ask: Ask) -> bool:
        """Whether an answer is older than it should be."""
        return not _names_one(ask) and self._behind(given) > self.tolerated(ask)

    def _behind(self, given: Given) -> float:
        """How many seconds ago an answer stopped being the newest; 0 when it is."""
        heads, left, now = self.fleet.lookout.heads, self.fleet.left, datetime.now(UTC)
        behind = [
            seconds_behind(table, snapshot, left, now)
            for table, snapshot in given.way.snapshots.items()
            if table not in heads or heads[table].snapshot != snapshot
        ]
        return max(behind, default=0.0)


def _names_one(ask: Ask) -> bool:
    """Whether a snapshot is asked for: an older answer never does for that."""
    return ask.snapshot is not None or ask.min_snapshot is not None
