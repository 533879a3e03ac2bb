"""Which part of a table should be hot: by its contract, its properties and its size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from thermocline.serve.file_sums import day_of
from thermocline.serve.values import TableHead

if TYPE_CHECKING:
    from thermocline.contract import Contract

HOT_PROPERTY = "thermocline.hot"
"""A table property; with `off` the table is never held hot."""

_MEMORY_FACTOR = 4
"""A node needs about this multiple of the bytes of Parquet files."""


@dataclass(frozen=True)
class Policy:
    """How much is held, and on how many nodes.

    Of tables with a time column, `window` is held; those without are held whole up to `whole_bytes`
    of files. `budget` is how many bytes the copies of one node may take.
    """

    window: timedelta = timedelta(days=7)
    whole_bytes: int = 32_000_000
    budget: int = 512_000_000
    replicas: int = 1


def hot_seconds(
    policy: Policy, contract: Contract | None, *, off: bool, timed: bool, size: int
) -> float | None:
    """Return how many seconds back a table is held; infinity for whole, None for not at all."""
    if off:
        return None
    if timed:
        window = contract.hot if contract and contract.hot else policy.window
        return window.total_seconds()
    is_requested = contract is not None and contract.hot is not None
    return math.inf if is_requested or size <= policy.whole_bytes else None


def window_start(head: TableHead, now: datetime) -> datetime | None:
    """Return the start of the window: a midnight, so that it moves once a day. None: all rows."""
    if head.hot is None or math.isinf(head.hot):
        return None
    day = (now - timedelta(seconds=head.hot)).astimezone(UTC)
    return day.replace(hour=0, minute=0, second=0, microsecond=0)


def estimate_bytes(head: TableHead, begin: datetime | None) -> int:
    """Return the approximate memory of a copy that holds a table from `begin` on."""
    return _MEMORY_FACTOR * head.files.within(None if begin is None else day_of(begin), None).bytes


def is_small(head: TableHead, policy: Policy) -> bool:
    """Return whether every node gets the table: it is held whole and is small."""
    is_whole = head.hot is not None and math.isinf(head.hot)
    return is_whole and head.files.total.bytes <= policy.whole_bytes
