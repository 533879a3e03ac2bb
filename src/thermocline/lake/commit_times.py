"""Commit times never go back, whatever the clock does.

Iceberg's Java library, and so Spark and Trino, refuses to read a table whose logs of snapshots or
of metadata files go back by more than a minute, and to commit to one that is more than a minute
ahead of its clock. So every commit of ours takes the clock's time, or one millisecond after the
table's last time where that is later (`timed_catalog`). Tables that other writers left otherwise
are found and mended here, as values: `raw` is a metadata file's JSON.
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
"""Milliseconds by which Iceberg's Java library allows times to go back."""
_LOGS = ("metadata-log", "snapshot-log")


def now_ms() -> int:
    """The clock's time in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


def from_ms(millis: int) -> datetime:
    """A time in milliseconds since 1970, in UTC."""
    return datetime.fromtimestamp(millis / 1000, tz=UTC)


def last_ms(raw: Mapping[str, Any]) -> int:
    """The latest time that a table's metadata has."""
    logged = [int(entry["timestamp-ms"]) for log in _LOGS for entry in raw.get(log) or ()]
    return max([int(raw["last-updated-ms"]), *logged])


def next_ms(last: int) -> int:
    """The time of the commit after a table's last one."""
    return max(now_ms(), last + 1)


def backward_ms(raw: Mapping[str, Any]) -> int:
    """By how much a table's times go back at most; 0 where they are in order."""
    worst = 0
    for log in _LOGS:
        times = [entry["timestamp-ms"] for entry in raw.get(log) or ()]
        times.append(raw["last-updated-ms"])
        worst = max((worst, *(a - b for a, b in pairwise(times))))
    return int(worst)


def ahead_ms(raw: Mapping[str, Any]) -> int:
    """By how much a table's last time is ahead of the clock; 0 where it is not."""
    return max(0, last_ms(raw) - now_ms())


def repair_times(state: TableState) -> dict[str, Any]:
    """A table's next metadata, with its times in order and none ahead of the clock.

    A time that goes back is moved behind the one before it, as a commit would have done; times
    ahead of the clock are moved back, in their order. Snapshots stay as they are.
    """
    raw, now = state.raw, now_ms()
    here = {"metadata-file": state.metadata_location, "timestamp-ms": raw["last-updated-ms"]}
    logs = {"metadata-log": [*(raw.get("metadata-log") or ()), here],
            "snapshot-log": raw.get("snapshot-log") or []}  # fmt: skip
    done, ends = dict(raw), []
    for log, entries in logs.items():
        times = _order_times([entry["timestamp-ms"] for entry in entries], now)
        done[log] = [{**e, "timestamp-ms": at} for e, at in zip(entries, times, strict=True)]
        ends += times[-1:]
    done["last-updated-ms"] = max(ends)
    return done


def _order_times(times: list[int], now: int) -> list[int]:
    rising: list[int] = []
    for at in times:
        rising.append(max(at, rising[-1] + 1) if rising and at < rising[-1] else at)
    least = now
    for place in range(len(rising) - 1, -1, -1):
        rising[place] = min(rising[place], least)
        least = rising[place] - 1 if rising[place] == least else least
    return rising


def refuse_future_commits(state: TableState) -> None:
    """Raise Transient for a table that Spark could not commit to: the clock is behind it."""
    ahead = ahead_ms(state.raw)
    if ahead <= TOLERANCE:
        return
    last = datetime.fromtimestamp(last_ms(state.raw) / 1000, tz=UTC)
    raise Transient(
        f"{state.table}: its last commit is from {last:%Y-%m-%d %H:%M:%S} UTC, "
        f"{ahead / 60_000:,.0f} minutes ahead of this machine's clock, and Spark cannot commit.",
        "Set the clock right; if that commit's time was wrong: thermo doctor --fix.",
    )
