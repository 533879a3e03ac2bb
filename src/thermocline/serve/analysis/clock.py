"""Pin the clock of a query: "now" is the same time on every engine.

Clock functions are replaced by the time at which the query arrived. So the time range that decides
the route is the one that is executed, a second engine gives the same answer a minute later, and a
result that only depends on the day can be cached for the day.
"""

from __future__ import annotations

from datetime import UTC, datetime
from enum import IntEnum
from typing import TYPE_CHECKING

from thermocline.sql.guard import QueryRefused

if TYPE_CHECKING:
    from sqlglot import exp

_DATES = ("CurrentDate", "UtcDate")
_ZONED = ("CurrentTimestamp",)
_UNZONED = ("CurrentDatetime", "Localtimestamp", "UtcTimestamp")
_TIMES = ("CurrentTime", "Localtime", "UtcTime")
_ALIASES = {"now": "CurrentTimestamp", "today": "CurrentDate"}


class Clock(IntEnum):
    """The precision with which a query uses the clock."""

    NEVER = 0
    DAY = 1
    INSTANT = 2


def pin_clock(tree: exp.Query, now: datetime) -> Clock:
    """Replace clock functions in a query by `now`; return the finest precision used."""
    from sqlglot import exp

    finest = Clock.NEVER
    for node in list(tree.find_all(exp.Func)):
        kind = type(node).__name__
        if isinstance(node, exp.Anonymous):
            kind = _ALIASES.get(node.name.lower(), kind)
            if node.name.lower() == "age" and len(node.expressions) == 1:
                raise QueryRefused(
                    "age() with one argument depends on the clock.", "Pass both times."
                )
        if kind not in (*_DATES, *_ZONED, *_UNZONED, *_TIMES):
            continue
        given = node.args.get("this")
        if isinstance(given, exp.Expr) and not (isinstance(given, exp.Literal) and given.is_int):
            raise QueryRefused("The clock is in UTC only.", "Use AT TIME ZONE.")
        node.replace(_literal(kind, now.astimezone(UTC)))
        finest = max(finest, Clock.DAY if kind in _DATES else Clock.INSTANT)
    return finest


def _literal(kind: str, now: datetime) -> exp.Expr:
    from sqlglot import exp

    utc = now.replace(tzinfo=None)
    if kind in _DATES:
        return exp.cast(exp.Literal.string(utc.date().isoformat()), "date")
    if kind in _TIMES:
        return exp.cast(exp.Literal.string(utc.time().isoformat("microseconds")), "time")
    text = utc.isoformat(" ", "microseconds")
    if kind in _ZONED:
        return exp.cast(exp.Literal.string(f"{text}+00:00"), "timestamptz")
    return exp.cast(exp.Literal.string(text), "timestamp")
