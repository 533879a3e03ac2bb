"""Evaluate constant time expressions: literals, the clock, and arithmetic on them.

Times are UTC without a zone, in microseconds; a date is its midnight. The result is None for an
expression that is not understood, which the caller must treat as unknown.
"""

from __future__ import annotations

import calendar
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp

UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week",
         "month", "quarter", "year")  # fmt: skip
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
_SECONDS = {"microsecond": 1e-6, "millisecond": 1e-3, "second": 1.0, "minute": 60.0,
            "hour": 3600.0, "day": 86400.0, "week": 604800.0}  # fmt: skip


def evaluate_moment(node: exp.Expr, now: datetime) -> datetime | None:
    """Return the time of a constant expression, or None. `now` is the current time."""
    try:
        return _evaluate(node, now)
    except (ValueError, OverflowError, TypeError):
        return None


def truncate_time(at: datetime, unit: str) -> datetime:
    """Return the start of the unit that contains a time."""
    at = at.replace(microsecond=0) if unit not in UNITS[:2] else at
    match unit:
        case "microsecond":
            return at
        case "millisecond":
            return at.replace(microsecond=at.microsecond // 1000 * 1000)
        case "second":
            return at
        case "minute":
            return at.replace(second=0)
        case "hour":
            return at.replace(minute=0, second=0)
    day = at.replace(hour=0, minute=0, second=0)
    match unit:
        case "day":
            return day
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case "quarter":
            return day.replace(month=(day.month - 1) // 3 * 3 + 1, day=1)
        case "year":
            return day.replace(month=1, day=1)
    raise ValueError(unit)


def shift_time(at: datetime, count: float, unit: str) -> datetime:
    """Return a time shifted by units. A day that the month lacks becomes its last day."""
    if unit in _MONTHS:
        months = at.year * 12 + at.month - 1 + round(count) * _MONTHS[unit]
        year, month = divmod(months, 12)
        last = calendar.monthrange(year, month + 1)[1]
        return at.replace(year=year, month=month + 1, day=min(at.day, last))
    if unit in {"day", "week"}:
        return at + timedelta(days=count * (7 if unit == "week" else 1))
    return at + timedelta(seconds=count * _SECONDS[unit])


def parse_unit(node: exp.Expr | None) -> str | None:
    """Return the unit that a word names, in the singular."""
    if node is None:
        return None
    word = node.name.lower().removesuffix("s")
    return word if word in UNITS else None


def parse_moment(text: str) -> datetime:
    """Parse a date, or a date and time, with or without a zone."""
    stripped = text.strip()
    if stripped.upper().endswith(" UTC"):
        stripped = stripped[:-4] + "+00:00"
    at = datetime.fromisoformat(stripped)
    return at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at


def _evaluate(node: exp.Expr, now: datetime) -> datetime | None:
    from sqlglot import exp

    match node:
        case exp.Paren():
            return _evaluate(node.this, now)
        case exp.Literal(is_string=True):
            return parse_moment(node.name)
        case exp.CurrentTimestamp() | exp.Localtimestamp() | exp.CurrentDatetime():
            return now
        case exp.Anonymous() if node.name.lower() == "now" and not node.expressions:
            return now
        case exp.CurrentDate():
            return truncate_time(now, "day")
        case exp.Cast() | exp.TryCast():
            return _evaluate_cast(node, now)
        case exp.Date() | exp.TsOrDsToDate() | exp.FromISO8601Date():
            return None if node.args.get("zone") else _evaluate_truncation(node.this, "day", now)
        case exp.FromISO8601Timestamp() | exp.TimeStrToTime() | exp.Timestamp():
            return _evaluate(node.this, now)
        case exp.TimestampTrunc() | exp.DateTrunc():
            return _evaluate_truncation(node.this, parse_unit(node.args.get("unit")), now)
        case exp.DateFromParts():
            parts = [int(node.args[name].name) for name in ("year", "month", "day")]
            return datetime(parts[0], parts[1], parts[2])  # UTC, like all times here
    return _evaluate_sum(node, now)


def _evaluate_cast(node: exp.Cast, now: datetime) -> datetime | None:
    from sqlglot import exp

    if node.is_type(exp.DType.DATE):
        return _evaluate_truncation(node.this, "day", now)
    if node.is_type(exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPNTZ):
        return _evaluate(node.this, now)
    return None


def _evaluate_truncation(node: exp.Expr, unit: str | None, now: datetime) -> datetime | None:
    at = _evaluate(node, now)
    return None if at is None or unit is None else truncate_time(at, unit)


def _evaluate_sum(node: exp.Expr, now: datetime) -> datetime | None:
    """Evaluate a time plus or minus a duration."""
    from sqlglot import exp

    later = (exp.Add, exp.DateAdd, exp.TsOrDsAdd, exp.TimestampAdd, exp.DatetimeAdd)
    earlier = (exp.Sub, exp.DateSub, exp.TimestampSub, exp.DatetimeSub)
    if not isinstance(node, later + earlier):
        return None
    at = _evaluate(node.this, now)
    duration = _evaluate_duration(node.args["expression"], parse_unit(node.args.get("unit")))
    if at is None or duration is None:
        return None
    count, unit = duration
    return shift_time(at, -count if isinstance(node, earlier) else count, unit)


def _evaluate_duration(node: exp.Expr, unit: str | None) -> tuple[float, str] | None:
    from sqlglot import exp

    if isinstance(node, exp.Interval):
        unit = parse_unit(node.args.get("unit"))
        count = _evaluate_number(node.this) if node.this is not None else None
        return None if unit is None or count is None else (count, unit)
    count = _evaluate_number(node)
    # A number added to a date is a number of days.
    return None if count is None else (count, unit or "day")


def _evaluate_number(node: exp.Expr) -> float | None:
    from sqlglot import exp

    sign: Callable[[float], float] = float
    while isinstance(node, exp.Paren | exp.Neg):
        if isinstance(node, exp.Neg):
            sign = float if sign is _negate else _negate
        node = node.this
    return sign(float(node.name)) if isinstance(node, exp.Literal) else None


def _negate(number: float) -> float:
    return -number
