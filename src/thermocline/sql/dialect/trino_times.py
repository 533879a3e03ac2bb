"""Translate DuckDB's dates and times to Trino."""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import TIMES, T, family, with_type
from thermocline.sql.dialect import shared_rules
from thermocline.sql.dialect.rewrite import Rule, call, cast, parenthesize, refuse_translation
from thermocline.sql.dialect.shared_rules import require_family
from thermocline.sql.dialect.text_rules import text_literal


def _rewrite_addition(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.Binary)
    if shared_rules.addition_families(node) == ("date", "integer"):
        days = node.right if isinstance(node, exp.Add) else exp.Neg(this=parenthesize(node.right))
        return call("DATE_ADD", text_literal("day"), days, node.left, kind=T.DATE)
    return shared_rules.rewrite_addition(node, _count_days)


def _count_days(end: exp.Expr, start: exp.Expr) -> exp.Expr:
    return call("DATE_DIFF", text_literal("day"), start, end, kind=T.BIGINT)


_PARTS = {
    "Year": "YEAR", "Month": "MONTH", "Day": "DAY", "DayOfMonth": "DAY", "Hour": "HOUR",
    "Minute": "MINUTE", "Second": "SECOND", "Quarter": "QUARTER", "Week": "WEEK",
    "WeekOfYear": "WEEK", "DayOfYear": "DAY_OF_YEAR", "DayOfWeekIso": "DAY_OF_WEEK",
    "DayOfWeek": "DAY_OF_WEEK",
}  # fmt: skip
_EXTRACT_PARTS = {
    "YEAR": "Year", "MONTH": "Month", "DAY": "Day", "HOUR": "Hour", "MINUTE": "Minute",
    "SECOND": "Second", "QUARTER": "Quarter", "WEEK": "Week", "DOY": "DayOfYear",
    "DAYOFYEAR": "DayOfYear", "DOW": "DayOfWeek", "DAYOFWEEK": "DayOfWeek",
    "ISODOW": "DayOfWeekIso",
}  # fmt: skip


def _rewrite_time_part(node: exp.Expr) -> exp.Expr:
    return _build_time_part(type(node).__name__, node.this, node)


def _build_time_part(kind: str, of: exp.Expr, node: exp.Expr) -> exp.Expr:
    """Rewrite a part of a time. Sunday is weekday 0 in DuckDB and 7 in Trino."""
    require_family(of, *TIMES, of=node)
    if kind in {"Hour", "Minute", "Second"}:
        of = shared_rules.to_timestamp(of)
    found = call(_PARTS[kind], of, kind=T.BIGINT)
    if kind != "DayOfWeek":
        return found
    return with_type(exp.paren(exp.Mod(this=found, expression=exp.Literal.number(7))), T.BIGINT)


def _rewrite_extract(node: exp.Expr) -> exp.Expr:
    part = node.name.upper()
    if part == "EPOCH":
        return _rewrite_epoch(exp.TimeToUnix(this=node.expression))
    if part not in _EXTRACT_PARTS:
        refuse_translation(f"EXTRACT of {part.lower()}")
    return _build_time_part(_EXTRACT_PARTS[part], node.expression, node)


def _rewrite_epoch(node: exp.Expr) -> exp.Expr:
    require_family(node.this, *TIMES, of=node)
    return call("TO_UNIXTIME", shared_rules.to_timestamp(node.this), kind=T.DOUBLE)


def _rewrite_truncation(node: exp.Expr) -> exp.Expr:
    require_family(node.this, *TIMES, of=node)
    unit = text_literal(shared_rules.time_unit(node).lower())
    kind = T.TIMESTAMPTZ if family(node.this) == "timestamptz" else T.TIMESTAMPNTZ
    return call("DATE_TRUNC", unit, shared_rules.to_timestamp(node.this), kind=kind)


def _rewrite_date_diff(node: exp.Expr) -> exp.Expr:
    """Rewrite DATE_DIFF, which counts unit boundaries; Trino's counts whole units."""
    require_family(node.this, *TIMES, of=node)
    require_family(node.expression, *TIMES, of=node)
    unit = shared_rules.time_unit(node).lower()
    if unit == "week":
        refuse_translation("DATE_DIFF by week")
    ends = [
        call("DATE_TRUNC", text_literal(unit), cast(each, T.TIMESTAMPNTZ))
        for each in (node.expression, node.this)
    ]
    return call("DATE_DIFF", text_literal(unit), *ends, kind=T.BIGINT)


RULES: dict[str, Rule] = {
    **dict.fromkeys(("Add", "Sub"), _rewrite_addition),
    **dict.fromkeys(tuple(_PARTS), _rewrite_time_part),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _rewrite_truncation),
    "Extract": _rewrite_extract, "TimeToUnix": _rewrite_epoch, "DateDiff": _rewrite_date_diff,
}  # fmt: skip
