"""Rewrite times with a zone so that DuckDB computes with them quickly.

All sessions are in UTC, where a time with a zone has the same hour and day as one without. For a
time with a zone, however, DuckDB uses a time zone calendar row by row, which takes about ten times
as long. So fields of a stored column are extracted from the same time without a zone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sqlglot import exp

from thermocline.sql.dialect.rewrite import call

if TYPE_CHECKING:
    from thermocline.engine.query_types import Columns

FindStoredTable = Callable[[exp.Table], str | None]
"""Returns the stored table that a table of the query refers to, or None."""

_TRUNCATIONS = (exp.DateTrunc, exp.TimestampTrunc)
_FIELDS = (
    exp.Year, exp.Quarter, exp.Month, exp.Week, exp.WeekOfYear, exp.Day, exp.DayOfMonth,
    exp.DayOfYear, exp.DayOfWeek, exp.DayOfWeekIso, exp.Hour, exp.Minute, exp.Date,
)  # fmt: skip
_PARTS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOY", "DOW", "ISODOW", "HOUR", "MINUTE"}


def remove_zones(tree: exp.Query, stored: FindStoredTable, columns: Columns) -> None:
    """Extract fields of stored times with a zone from the same times without a zone."""
    for node in list(tree.find_all(*_TRUNCATIONS, *_FIELDS, exp.Extract, exp.Cast, exp.Anonymous)):
        time = _field_source(node)
        if not isinstance(time, exp.Column) or not _has_zone(time, stored, columns):
            continue
        if not isinstance(node, _TRUNCATIONS):
            time.replace(_to_utc_timestamp(time))
        elif node.find_ancestor(exp.Where, exp.Join) is None:
            # It stays unchanged there: DuckDB prunes rows and files by it.
            time.replace(_to_utc_timestamp(time))
            node.replace(call("make_timestamptz", call("epoch_us", node.copy())))


def _to_utc_timestamp(time: exp.Expr) -> exp.Expr:
    """Convert a time with a zone to UTC without a zone."""
    return call("make_timestamp", call("epoch_us", time.copy()))


def _field_source(node: exp.Expr) -> exp.Expr | None:
    """Return the time whose field is extracted, or None for other functions and fields."""
    match node:
        case exp.Extract():
            return node.expression if node.name.upper() in _PARTS else None
        case exp.Anonymous() if node.name.upper() == "DATE_PART" and len(node.expressions) == 2:
            unit, time = node.expressions
            return time if unit.name.upper() in _PARTS else None
        case exp.Cast():
            plain = node.to.this == exp.DType.DATE and not node.args.get("format")
            return node.this if plain else None
        case exp.Anonymous():
            return None
        case exp.DateTrunc() | exp.TimestampTrunc():
            return None if node.args.get("zone") else node.this
        case _:
            more = any(value for key, value in node.args.items() if key != "this")
            return None if more else node.this


def _has_zone(column: exp.Column, stored: FindStoredTable, columns: Columns) -> bool:
    """Return whether a column belongs to a stored table and has times with a zone."""
    select = column.find_ancestor(exp.Select)
    if select is None or select.args.get("laterals"):
        return False
    name = column.name.lower()
    if any(isinstance(e, exp.Alias) and e.alias.lower() == name for e in select.expressions):
        return False  # it may refer to a result of that name
    kinds = []
    for source in [select.args.get("from_"), *select.args.get("joins", ())]:
        table = source.this if source is not None else None
        found = stored(table) if isinstance(table, exp.Table) else None
        if table is None or found is None or found not in columns or _has_other_columns(table):
            return False  # it may have a column of that name, of any type
        if not column.table or column.table.lower() == table.alias_or_name.lower():
            kinds += [kind for each, kind in columns[found].items() if each.lower() == name]
    return kinds == ["timestamptz"]


def _has_other_columns(table: exp.Table) -> bool:
    """Return whether joins are attached to a table."""
    return any(table.args.get(each) for each in ("joins", "laterals", "pivots"))
