"""Decide whether the result of a Trino query depends on the time zone of the session.

In Trino, a value with a time zone carries its own zone, which is UTC for all tables of the lake.
The session's zone matters where a time without a zone becomes one with a zone, where the two kinds
are compared, and for the clock. Anything else that is not understood counts as dependent.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from thermocline.engine.query_types import TIMES, T, build_schema, family
from thermocline.errors import BadInput
from thermocline.sql.dialect import qualify
from thermocline.sql.guard import guard

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.engine.query_types import Columns

_ZONE_SUFFIX = re.compile(r"(?:Z|UTC|[+-]\d\d:?\d\d|[A-Za-z]+/[A-Za-z_]+)\s*$")
_LOCAL_TIMES = TIMES - {"timestamptz"}
_ZONE_FUNCTIONS = frozenset({"now", "from_iso8601_timestamp", "from_unixtime", "to_iso8601"})
_ZONE_INDEPENDENT = frozenset({
    "DateTrunc", "TimestampTrunc", "Extract", "Year", "Quarter", "Month", "Week", "WeekOfYear",
    "Day", "DayOfMonth", "DayOfYear", "DayOfWeek", "DayOfWeekIso", "Hour", "Minute", "Second",
    "DateAdd", "DateDiff", "Date", "TimeToStr", "Min", "Max", "Count",
    "ApproxDistinct", "ArrayAgg", "Lag", "Lead", "FirstValue", "LastValue", "Coalesce", "Case",
    "If", "Nullif", "Greatest", "Least", "LastDay", "Grouping",
})  # fmt: skip
"""Functions of times without a zone that do not use the session's zone."""
_UNTYPED_NODES = frozenset({
    "Select", "Order", "Group", "Tuple", "From", "Where", "Having", "Window", "With", "CTE",
    "Subquery", "And", "Or", "Not", "Exists",
})  # fmt: skip
"""Nodes whose operands are never converted to one type."""


def depends_on_session_zone(sql: str, columns: Columns) -> bool:
    """Return whether the session's zone can change the result."""
    tree = guard(sql, "trino").tree.copy()
    try:
        tree = qualify.qualify_query(tree, "trino", build_schema(columns))
    except BadInput:
        return True
    return any(_depends(node) for node in tree.walk())


def _depends(node: exp.Expr) -> bool:
    from sqlglot import exp

    clock = (exp.CurrentDate, exp.CurrentTime, exp.CurrentTimestamp, exp.Localtime,
             exp.Localtimestamp, exp.UnixToTime)  # fmt: skip
    if isinstance(node, clock):
        return True
    if isinstance(node, exp.Anonymous):
        return node.name.lower() in _ZONE_FUNCTIONS
    if isinstance(node, exp.Cast):
        if not node.is_type(T.TIMESTAMPTZ, T.TIMETZ):
            return False
        written = (
            isinstance(node.this, exp.Literal) and _ZONE_SUFFIX.search(node.this.name) is not None
        )
        return not written and family(node.this) not in {"timestamptz", "null"}
    if isinstance(node, exp.SetOperation):
        pairs = zip(node.this.unnest().selects, node.expression.unnest().selects, strict=False)
        return any(_mixes_zones([family(one), family(other)]) for one, other in pairs)
    name = type(node).__name__
    if name in _UNTYPED_NODES:
        return False
    families = [family(each) for each in node.iter_expressions()]
    if (
        isinstance(node, exp.Func)
        and name not in _ZONE_INDEPENDENT
        and _LOCAL_TIMES & set(families)
    ):
        return True
    return _mixes_zones(families)


def _mixes_zones(families: list[str]) -> bool:
    return "timestamptz" in families and bool(_LOCAL_TIMES & set(families))
