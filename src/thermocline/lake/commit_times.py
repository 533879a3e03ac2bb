"""Keep commit times monotonic, whatever the clock does.

Iceberg's Java library, and so Spark and Trino, refuses to read a table whose snapshot log or
metadata log goes back by more than a minute, and to commit to a table that is more than a minute
ahead of its clock. So each commit uses the clock's time, or one millisecond after the table's last
time if that is later (`monotonic_catalog`). This module also detects and repairs tables whose times
other writers left out of order. `raw` is a metadata file's JSON.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

from thermocline.errors import Transient
from thermocline.lake.metadata import TableState

TOLERANCE = 60_000
"""Milliseconds by which Iceberg's Java library lets times go back."""
_LOGS = ("metadata-log", "snapshot-log")


def now_ms() -> int:
    """Return the clock's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def from_ms(millis: int) -> datetime:
    """Convert milliseconds since 1970 to a time in UTC."""
    return datetime.fromtimestamp(millis / 1000, tz=UTC)


def last_ms(raw: Mapping[str, Any]) -> int:
    """Return the latest time in a table's metadata."""
    logged = [int(entry["timestamp-ms"]) for log in _LOGS for entry in raw.get(log) or ()]
    return max([int(raw["last-updated-ms"]), *logged])


def next_ms(last: int) -> int:
    """Return the time of the next commit after a table's last time."""
    return max(now_ms(), last + 1)


def backward_ms(raw: Mapping[str, Any]) -> int:
    """Return the most that a table's times go back; 0 if they are in order."""
    worst = 0
    for log in _LOGS:
        times = [entry["timestamp-ms"] for entry in raw.get(log) or ()]
        times.append(raw["last-updated-ms"])
        worst = max((worst, *(a - b for a, b in pairwise(times))))
    return int(worst)


def ahead_ms(raw: Mapping[str, Any]) -> int:
    """Return how far a table's last time is ahead of the clock; 0 if it is not."""
    return max(0, last_ms(raw) - now_ms())


def repair_times(state: TableState) -> dict[str, Any]:
    """Return a table's next metadata with its times in order and none ahead of the clock.

    A time that goes back is moved after the one before it, as our commits do; times ahead of the
    clock are moved back, in order. Snapshots stay unchanged.
    """
    raw, now = state.raw, now_ms()
    here = {"metadata-file": state.metadata_location, "timestamp-ms": raw["last-updated-ms"]}
    logs = {"metadata-log": [*(raw.get("metadata-log") or ()), here],
            "snapshot-log": raw.get("snapshot-log") or []}  # fmt: skip
    repaired, ends = dict(raw), []
    for log, entries in logs.items():
        times = _order_times([entry["timestamp-ms"] for entry in entries], now)
        repaired[log] = [{**e, "timestamp-ms": at} for e, at in zip(entries, times, strict=True)]
        ends += times[-1:]
    repaired["last-updated-ms"] = max(ends)
    return repaired


def _order_times(times: list[int], now: int) -> list[int]:
    rising: list[int] = []
    for at in times:
        rising.append(max(at, rising[-1] + 1) if rising and at < rising[-1] else at)
    limit = now
    for index in range(len(rising) - 1, -1, -1):
        rising[index] = min(rising[index], limit)
        limit = rising[index] - 1 if rising[index] == limit else limit
    return rising


def refuse_future_commits(state: TableState) -> None:
    """Raise Transient for a table that is ahead of the clock, so that Spark cannot commit to it."""
    ahead = ahead_ms(state.raw)
    if ahead <= TOLERANCE:
        return
    last = datetime.fromtimestamp(last_ms(state.raw) / 1000, tz=UTC)
    raise Transient(
        f"{state.table}: its last commit is from {last:%Y-%m-%d %H:%M:%S} UTC, "
        f"{ahead / 60_000:,.0f} minutes ahead of this machine's clock, and Spark cannot commit.",
        "Set the clock right; if that commit's time was wrong: thermo doctor --fix.",
    )
