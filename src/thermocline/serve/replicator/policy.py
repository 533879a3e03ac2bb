"""What should be hot, before anybody asked: by contract, by size, by what a table is."""

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
"""A table property; `off` keeps the table from ever being held."""

_MEMORY_FACTOR = 4
"""A node needs about so many times the bytes of Parquet files."""


@dataclass(frozen=True)
class Policy:
    """How much is held, and where.

    `window` is held of tables that have a time; those without are held whole up to `whole_bytes`
    of files. `budget` is how many bytes the copies of one node may have in all.
    """

    window: timedelta = timedelta(days=7)
    whole_bytes: int = 32_000_000
    budget: int = 512_000_000
    replicas: int = 1


def hot_seconds(
    policy: Policy, contract: Contract | None, *, off: bool, timed: bool, size: int
) -> float | None:
    """How far back a table is to be held; infinity for whole, None for not at all."""
    if off:
        return None
    if timed:
        window = contract.hot if contract and contract.hot else policy.window
        return window.total_seconds()
    asked_for = contract is not None and contract.hot is not None
    return math.inf if asked_for or size <= policy.whole_bytes else None


def window_start(head: TableHead, now: datetime) -> datetime | None:
    """From when on a table is held: a midnight, so that it moves once a day. None is always."""
    if head.hot is None or math.isinf(head.hot):
        return None
    day = (now - timedelta(seconds=head.hot)).astimezone(UTC)
    return day.replace(hour=0, minute=0, second=0, microsecond=0)


def estimate_bytes(head: TableHead, begin: datetime | None) -> int:
    """About how much memory a copy takes that holds a table from `begin` on."""
    return _MEMORY_FACTOR * head.files.within(None if begin is None else day_of(begin), None).bytes


def is_small(head: TableHead, policy: Policy) -> bool:
    """Whether every node gets the table: one that is held whole and is small."""
    whole = head.hot is not None and math.isinf(head.hot)
    return whole and head.files.total.bytes <= policy.whole_bytes
