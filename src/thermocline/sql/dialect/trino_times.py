"""Dates and times of DuckDB's in Trino's words."""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import TIMES, T, family, typed
from thermocline.sql.dialect import shared_rules
from thermocline.sql.dialect.rewrite import Rule, call, cast, unfaithful, wrapped
from thermocline.sql.dialect.shared_rules import need
from thermocline.sql.dialect.text_rules import text


def _moved(node: exp.Expr) -> exp.Expr:
    left, right = shared_rules.adding(node)
    assert isinstance(node, exp.Binary)
    if (left, right) == ("date", "date"):
        if isinstance(node, exp.Add):
            unfaithful("the sum of two dates")
        return call("DATE_DIFF", text("day"), node.right, node.left, kind=T.BIGINT)
    if (left, right) == ("date", "integer"):
        days = node.right if isinstance(node, exp.Add) else exp.Neg(this=wrapped(node.right))
        return call("DATE_ADD", text("day"), days, node.left, kind=T.DATE)
    if right == "interval":
        node.set("this", shared_rules.as_timestamp(node.left))
    return node


_PARTS = {
    "Year": "YEAR", "Month": "MONTH", "Day": "DAY", "DayOfMonth": "DAY", "Hour": "HOUR",
    "Minute": "MINUTE", "Second": "SECOND", "Quarter": "QUARTER", "Week": "WEEK",
    "WeekOfYear": "WEEK", "DayOfYear": "DAY_OF_YEAR", "DayOfWeekIso": "DAY_OF_WEEK",
    "DayOfWeek": "DAY_OF_WEEK",
}  # fmt: skip
_WORDS = {
    "YEAR": "Year", "MONTH": "Month", "DAY": "Day", "HOUR": "Hour", "MINUTE": "Minute",
    "SECOND": "Second", "QUARTER": "Quarter", "WEEK": "Week", "DOY": "DayOfYear",
    "DAYOFYEAR": "DayOfYear", "DOW": "DayOfWeek", "DAYOFWEEK": "DayOfWeek",
    "ISODOW": "DayOfWeekIso",
}  # fmt: skip


def _time_part(node: exp.Expr) -> exp.Expr:
    return _found_part(type(node).__name__, node.this, node)


def _found_part(kind: str, of: exp.Expr, node: exp.Expr) -> exp.Expr:
    """A part of a time. DuckDB counts days of the week from Sunday as 0, Trino to it as 7."""
    need(of, *TIMES, of=node)
    if kind in {"Hour", "Minute", "Second"}:
        of = shared_rules.as_timestamp(of)
    found = call(_PARTS[kind], of, kind=T.BIGINT)
    if kind != "DayOfWeek":
        return found
    return typed(exp.paren(exp.Mod(this=found, expression=exp.Literal.number(7))), T.BIGINT)


def _extracted(node: exp.Expr) -> exp.Expr:
    part = node.name.upper()
    if part == "EPOCH":
        return _epoch(exp.TimeToUnix(this=node.expression))
    if part not in _WORDS:
        unfaithful(f"EXTRACT of {part.lower()}")
    return _found_part(_WORDS[part], node.expression, node)


def _epoch(node: exp.Expr) -> exp.Expr:
    need(node.this, *TIMES, of=node)
    return call("TO_UNIXTIME", shared_rules.as_timestamp(node.this), kind=T.DOUBLE)


def _truncated(node: exp.Expr) -> exp.Expr:
    need(node.this, *TIMES, of=node)
    unit = text(shared_rules.unit(node).lower())
    kind = T.TIMESTAMPTZ if family(node.this) == "timestamptz" else T.TIMESTAMPNTZ
    return call("DATE_TRUNC", unit, shared_rules.as_timestamp(node.this), kind=kind)


def _difference(node: exp.Expr) -> exp.Expr:
    """How many boundaries of a unit lie between two times; Trino's own counts whole units."""
    need(node.this, *TIMES, of=node)
    need(node.expression, *TIMES, of=node)
    unit = shared_rules.unit(node).lower()
    if unit == "week":
        unfaithful("DATE_DIFF by week")
    ends = [
        call("DATE_TRUNC", text(unit), cast(each, T.TIMESTAMPNTZ))
        for each in (node.expression, node.this)
    ]
    return call("DATE_DIFF", text(unit), *ends, kind=T.BIGINT)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "Sub"), _moved),
    **dict.fromkeys(tuple(_PARTS), _time_part),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _truncated),
    "Extract": _extracted, "TimeToUnix": _epoch, "DateDiff": _difference,
}  # fmt: skip
