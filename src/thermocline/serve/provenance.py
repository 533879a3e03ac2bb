"""The provenance of an answer: engine, snapshots, staleness, reasons, and what was scanned."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from thermocline.serve.attempts import FailedAttempt
from thermocline.serve.values import NO_SNAPSHOT, EncodedRows

if TYPE_CHECKING:
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.route import AccessPath


@dataclass(frozen=True)
class EngineResult:
    """Rows, their access path, the failed attempts before, and what was read for them.

    `scanned` are files and bytes.
    """

    rows: EncodedRows
    access_path: AccessPath
    failures: tuple[FailedAttempt, ...]
    scanned: tuple[int, int] = (0, 0)


def build_provenance(
    result: EngineResult, fleet: Fleet, *, cached: bool, overdue: bool = False, ms: dict[str, float]
) -> dict[str, Any]:
    """Return the provenance of an answer, ready for JSON.

    A table's staleness is how long ago its snapshot was last known to be the newest. `overdue`
    marks a stale answer, returned because a newer one was not available in time.
    """
    now, lake_state, access_path = datetime.now(UTC), fleet.lake_state, result.access_path
    tables: dict[str, Any] = {}
    for table, snapshot in access_path.snapshots.items():
        head = lake_state.table_heads.get(table)
        newest = head is not None and head.snapshot == snapshot
        as_of = lake_state.polled_at if newest else fleet.superseded_at.get((table, snapshot))
        tables[table] = {
            "snapshot": str(snapshot) if snapshot != NO_SNAPSHOT else None,
            "committed_at": head.committed_at.isoformat() if head and newest else None,
            "staleness_ms": to_milliseconds((now - as_of).total_seconds()) if as_of else None,
        }
    files, size = (0, 0) if cached else result.scanned
    because = ["cached result at these snapshots"] if cached else list(access_path.because)
    if overdue:
        because.append("a newer answer takes too long, or is not available at the moment")
    return {
        "engine": "cache" if cached else access_path.engine,
        "node": access_path.node,
        "tables": tables,
        "because": because,
        "overdue": overdue,
        "fallback": [{"from": who, "cause": why} for who, why, _ in result.failures],
        "scanned": {"files": files, "bytes": size},
        "ms": ms,
    }


def to_milliseconds(seconds: float) -> float:
    """Return seconds as milliseconds, rounded to microseconds."""
    return round(max(seconds, 0.0) * 1000, 3)
