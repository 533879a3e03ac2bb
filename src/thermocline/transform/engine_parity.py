"""Decide from a query's text and types whether DuckDB and Spark return the same rows for it.

Models are written in DuckDB's dialect and translated for Spark. The engine of a step depends on
how much it reads, so the rows must not depend on the engine. Everything listed here is tested on
both (tests/integration/test_engine_parity.py); a query with anything else stays on Spark. Where
one engine fails (an overflow, a text that only the other parses as a number), it writes no row, so
a failure does not count as a difference.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlglot
from sqlglot import errors, exp

from thermocline.contract import Contract
from thermocline.engine import query_types
from thermocline.engine.query_types import NUMBERS, TIMES, Columns, family, max_digits
from thermocline.errors import first_line


def _split(names: str) -> frozenset[str]:
    return frozenset(names.split())


_EXACT = NUMBERS - {"double"}
_ALWAYS_EQUAL = _split(
    """
    Select Union Subquery CTE With From Join Where Group Having Qualify Distinct Alias TableAlias
    Table Column Star Identifier Null Boolean Paren Case If And Or Not EQ NEQ GT GTE LT LTE Is In
    Between NullSafeEQ NullSafeNEQ Neg Count Min Max Coalesce Nullif RowNumber Rank DenseRank Lag
    Lead FirstValue LastValue Window Ordered Order Filter DataType DataTypeParam Var Dot Unnest
    Lower Abs StartsWith IgnoreNulls JSONPathRoot JSONPathKey
    """
)
"""Nodes that mean the same on both engines, for all types."""
_CONDITIONS = _split(
    "Column Identifier Literal Null Boolean Paren And Or Not EQ NEQ GT GTE LT LTE Is In"
)
_UNITS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"}
_TIME_UNITS = {"HOUR", "MINUTE", "SECOND"}
_MAX_DIGITS = 38


def find_difference(query: exp.Query, columns: Columns) -> str | None:
    """Return the first construct that may differ between the engines; None if there is none.

    `columns` are the columns of the tables that the query reads, with their types.
    """
    try:
        typed = query_types.qualify_and_annotate(query.copy(), columns)
    except errors.SqlglotError as error:
        return f"a name in it ({first_line(error)})"
    nodes = list(typed.walk())
    # Unlisted nodes first: the nodes around them have no type because of them.
    unknown = (_describe_node(each) for each in nodes if type(each).__name__ not in _ALLOWED)
    return next(unknown, None) or next(
        (violation for each in nodes if (violation := _find_rule_violation(each))), None
    )


def find_delete_difference(contract: Contract) -> str | None:
    """Return the first such construct in the contract's deleteWhen, whose types are unknown."""
    if contract.delete_when is None:
        return None
    condition = sqlglot.parse_one(contract.delete_when, dialect="spark")
    other = (each for each in condition.walk() if type(each).__name__ not in _CONDITIONS)
    return next((f"deleteWhen with {_describe_node(each)}" for each in other), None)


def _find_rule_violation(node: exp.Expr) -> str | None:
    rule = _RULES.get(type(node).__name__)
    return (
        None
        if rule is None or rule(node)
        else f"{_describe_node(node)} of {_describe_families(node)}"
    )


def _describe_node(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else str(node.key)


def _describe_families(node: exp.Expr) -> str:
    return " and ".join(dict.fromkeys(family(each) for each in _operands(node))) or "this kind"


def _operands(node: exp.Expr) -> list[exp.Expr]:
    """Return the operands of an expression."""
    parts = (node.args.get("this"), node.args.get("expression"))
    return [each for each in parts if isinstance(each, exp.Expr)]


def _requires(*families: str) -> Callable[[exp.Expr], bool]:
    def rule(node: exp.Expr) -> bool:
        return all(family(each) in {*families, "null"} for each in _operands(node))

    return rule


def _is_exact_literal(node: exp.Expr) -> bool:
    return bool(node.args.get("is_string")) or "e" not in node.name.lower()


def _is_exact_arithmetic(node: exp.Expr) -> bool:
    """Exact, or a time and an interval. Spark drops digits where there could be more than 38."""
    families = {family(each) for each in _operands(node)}
    if families == {"integer"}:
        return True
    if families <= _EXACT:
        sizes = [max_digits(each) for each in _operands(node)]
        most = sum(each for each in sizes if each is not None) + 1
        return None not in sizes and most <= _MAX_DIGITS
    return "interval" in families and families <= {"interval", "timestamp", "timestamptz"}


def _is_equal_cast(node: exp.Expr) -> bool:
    source, target = family(node.this), family(node)
    if source in {target, "null"}:
        return target not in {"list", "struct", "map", "unknown"}
    match target:
        case "text":
            return source in {"integer", "date", "boolean"}
        case "integer":
            # DuckDB rounds a fraction, Spark truncates it.
            return source in {"text", "boolean"} or _is_whole(node.this.unnest())
        case "decimal":
            return source in {"integer", "text"}
        case "date" | "timestamp" | "timestamptz":
            return source in {*TIMES, "text"}
    return False


def _is_whole(node: exp.Expr) -> bool:
    return isinstance(node, exp.Round) and not node.args.get("decimals") and _is_exact_round(node)


def _is_exact_round(node: exp.Expr) -> bool:
    places = node.args.get("decimals")
    return family(node.this) in _EXACT and (
        places is None or (isinstance(places, exp.Literal) and places.is_int)
    )


def _is_exact_sum(node: exp.Expr) -> bool:
    inner = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    return family(inner) in _EXACT


def _is_equal_date_diff(node: exp.Expr) -> bool:
    """DuckDB counts crossed unit boundaries, Spark whole units: equal between boundaries."""
    unit = node.text("unit").upper()
    if unit == "DAY" and _requires("date")(node):
        return True
    return all(
        isinstance(end, exp.DateTrunc | exp.TimestampTrunc) and end.text("unit").upper() == unit
        for end in _operands(node)
    )


def _is_equal_truncation(node: exp.Expr) -> bool:
    unit, of = node.text("unit").upper(), family(node.this)
    # DuckDB 1.5 compares the wrong day when a date is truncated to a unit below a day.
    return of in TIMES and unit in (_UNITS if of != "date" else _UNITS - _TIME_UNITS)


def _is_whole_interval(node: exp.Expr) -> bool:
    return isinstance(node.this, exp.Literal) and node.this.name.lstrip("-").isdecimal()


def _is_rows_frame(node: exp.Expr) -> bool:
    return node.text("kind").upper() == "ROWS" and not node.args.get("exclude")


def _is_key_path(node: exp.Expr) -> bool:
    return all(isinstance(each, exp.JSONPathRoot | exp.JSONPathKey) for each in node.expressions)


_RULES: dict[str, Callable[[exp.Expr], bool]] = {
    **dict.fromkeys(("Add", "Sub", "Mul"), _is_exact_arithmetic),
    **dict.fromkeys(("IntDiv", "Mod"), _requires("integer")),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _is_equal_truncation),
    **dict.fromkeys(("Trim", "Translate", "Length"), _requires("text")),
    "Literal": _is_exact_literal,
    "Cast": _is_equal_cast,
    "Round": _is_exact_round,
    "Sum": _is_exact_sum,
    "DPipe": _requires("text", "integer"),
    "DateDiff": _is_equal_date_diff,
    "Interval": _is_whole_interval,
    "WindowSpec": _is_rows_frame,
    "JSONExtractScalar": lambda node: family(node.this) == "text",
    "JSONPath": _is_key_path,
}
_ALLOWED = _ALWAYS_EQUAL | _RULES.keys()
