"""Where an answer came from: engine, snapshots, how fresh, why there, and what was read for it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from thermocline.serve.attempts import Failure
from thermocline.serve.terms import NO_SNAPSHOT, Rows

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.route import Way


@dataclass(frozen=True)
class Given:
    """Rows, the way they came, who failed to give them before, and how much was read for them.

    `scanned` are files and bytes.
    """

    rows: Rows
    way: Way
    failures: tuple[Failure, ...]
    scanned: tuple[int, int] = (0, 0)


def provenance(
    given: Given, fleet: Fleet, *, cached: bool, overdue: bool = False, ms: dict[str, float]
) -> dict[str, Any]:
    """What an answer says of itself, ready for JSON.

    A table's staleness is how long ago it was last known to be as it was read. `overdue` says
    that the answer is one of before, as a new one was not to be had.
    """
    now, lookout, way = datetime.now(UTC), fleet.lookout, given.way
    tables: dict[str, Any] = {}
    for table, snapshot in way.snapshots.items():
        head = lookout.heads.get(table)
        newest = head is not None and head.snapshot == snapshot
        as_of = lookout.looked_at if newest else fleet.left.get((table, snapshot))
        tables[table] = {
            "snapshot": str(snapshot) if snapshot != NO_SNAPSHOT else None,
            "committed_at": head.committed_at.isoformat() if head and newest else None,
            "staleness_ms": milliseconds((now - as_of).total_seconds()) if as_of else None,
        }
    files, size = (0, 0) if cached else given.scanned
    because = ["the same was answered at these snapshots"] if cached else list(way.because)
    if overdue:
        because.append("a newer answer takes longer than it should, or cannot be had at the moment")
    return {
        "engine": "cache" if cached else way.engine,
        "node": way.node,
        "tables": tables,
        "because": because,
        "overdue": overdue,
        "fallback": [{"from": who, "cause": why} for who, why, _ in given.failures],
        "scanned": {"files": files, "bytes": size},
        "ms": ms,
    }


def milliseconds(seconds: float) -> float:
    """Seconds as milliseconds, to the microsecond."""
    return round(max(seconds, 0.0) * 1000, 3)
