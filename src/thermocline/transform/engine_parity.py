"""Does a query give the same rows on DuckDB and on Spark? Decided from its text and types.

Models are written in DuckDB's dialect and translated for Spark. Which of the two computes a step
depends on how much there is to read, so the rows must not depend on it. What is listed here was
tried on both (tests/integration/test_engine_parity.py); a query with anything else stays on Spark.
Where one of them fails (an overflow, a text that only the other takes for a number) it writes no
row, so that is not a difference to be ruled out.
"""

from __future__ import annotations

from collections.abc import Callable

import sqlglot
from sqlglot import errors, exp

from thermocline.contract import Contract
from thermocline.engine import query_types
from thermocline.engine.query_types import NUMBERS, TIMES, Columns, family, max_digits


def _listed(names: str) -> frozenset[str]:
    return frozenset(names.split())


_EXACT = NUMBERS - {"double"}
_ALWAYS = _listed(
    """
    Select Union Subquery CTE With From Join Where Group Having Qualify Distinct Alias TableAlias
    Table Column Star Identifier Null Boolean Paren Case If And Or Not EQ NEQ GT GTE LT LTE Is In
    Between NullSafeEQ NullSafeNEQ Neg Count Min Max Coalesce Nullif RowNumber Rank DenseRank Lag
    Lead FirstValue LastValue Window Ordered Order Filter DataType DataTypeParam Var Dot Unnest
    Lower Abs StartsWith IgnoreNulls JSONPathRoot JSONPathKey
    """
)
"""Nodes that mean the same whatever their types are."""
_CONDITIONS = _listed(
    "Column Identifier Literal Null Boolean Paren And Or Not EQ NEQ GT GTE LT LTE Is In"
)
_UNITS = {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"}
_OF_A_DAY = {"HOUR", "MINUTE", "SECOND"}
_MOST_DIGITS = 38


def different(query: exp.Query, columns: Columns) -> str | None:
    """The first construct that is not known to mean the same on both; None if there is none.

    `columns` are those of the tables that the query reads, with their types.
    """
    try:
        typed = query_types.qualify_and_annotate(query.copy(), columns)
    except errors.SqlglotError as error:
        return f"a name in it ({str(error).splitlines()[0]})"
    nodes = list(typed.walk())
    # What is not listed comes first: what is around it has no type because of it.
    unknown = (_called(each) for each in nodes if type(each).__name__ not in _LISTED)
    return next(unknown, None) or next((said for each in nodes if (said := _doubt(each))), None)


def different_when(contract: Contract) -> str | None:
    """The same of the condition by which the contract tells deletes, whose types are not known."""
    if contract.delete_when is None:
        return None
    condition = sqlglot.parse_one(contract.delete_when, dialect="spark")
    other = (each for each in condition.walk() if type(each).__name__ not in _CONDITIONS)
    return next((f"deleteWhen with {_called(each)}" for each in other), None)


def _doubt(node: exp.Expr) -> str | None:
    rule = _RULES.get(type(node).__name__)
    return None if rule is None or rule(node) else f"{_called(node)} of {_families(node)}"


def _called(node: exp.Expr) -> str:
    if isinstance(node, exp.Anonymous):
        return str(node.name).lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else str(node.key)


def _families(node: exp.Expr) -> str:
    return " and ".join(dict.fromkeys(family(each) for each in _values(node))) or "this kind"


def _values(node: exp.Expr) -> list[exp.Expr]:
    """What an expression computes with."""
    parts = (node.args.get("this"), node.args.get("expression"))
    return [each for each in parts if isinstance(each, exp.Expr)]


def _of(*families: str) -> Callable[[exp.Expr], bool]:
    def rule(node: exp.Expr) -> bool:
        return all(family(each) in {*families, "null"} for each in _values(node))

    return rule


def _plain_number(node: exp.Expr) -> bool:
    return bool(node.args.get("is_string")) or "e" not in node.name.lower()


def _sum_or_product(node: exp.Expr) -> bool:
    """Exact, or a time and an interval. Spark drops digits where there could be more than 38."""
    families = {family(each) for each in _values(node)}
    if families == {"integer"}:
        return True
    if families <= _EXACT:
        sizes = [max_digits(each) for each in _values(node)]
        most = sum(each for each in sizes if each is not None) + 1
        return None not in sizes and most <= _MOST_DIGITS
    return "interval" in families and families <= {"interval", "timestamp", "timestamptz"}


def _cast(node: exp.Expr) -> bool:
    have, want = family(node.this), family(node)
    if have in {want, "null"}:
        return want not in {"list", "struct", "map", "unknown"}
    match want:
        case "text":
            return have in {"integer", "date", "boolean"}
        case "integer":
            # Of a fraction DuckDB rounds and Spark cuts.
            return have in {"text", "boolean"} or _is_whole(node.this.unnest())
        case "decimal":
            return have in {"integer", "text"}
        case "date" | "timestamp" | "timestamptz":
            return have in {*TIMES, "text"}
    return False


def _is_whole(node: exp.Expr) -> bool:
    return isinstance(node, exp.Round) and not node.args.get("decimals") and _rounds(node)


def _rounds(node: exp.Expr) -> bool:
    places = node.args.get("decimals")
    return family(node.this) in _EXACT and (
        places is None or (isinstance(places, exp.Literal) and places.is_int)
    )


def _sums(node: exp.Expr) -> bool:
    inner = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    return family(inner) in _EXACT


def _difference(node: exp.Expr) -> bool:
    """DuckDB counts borders that are crossed, Spark whole units: alike from border to border."""
    unit = node.text("unit").upper()
    if unit == "DAY" and _of("date")(node):
        return True
    return all(
        isinstance(end, exp.DateTrunc | exp.TimestampTrunc) and end.text("unit").upper() == unit
        for end in _values(node)
    )


def _truncation(node: exp.Expr) -> bool:
    unit, of = node.text("unit").upper(), family(node.this)
    # Where a date that is truncated to less is compared, DuckDB 1.5 takes the wrong day.
    return of in TIMES and unit in (_UNITS if of != "date" else _UNITS - _OF_A_DAY)


def _interval(node: exp.Expr) -> bool:
    return isinstance(node.this, exp.Literal) and node.this.name.lstrip("-").isdecimal()


def _frame(node: exp.Expr) -> bool:
    return node.text("kind").upper() == "ROWS" and not node.args.get("exclude")


def _path(node: exp.Expr) -> bool:
    return all(isinstance(each, exp.JSONPathRoot | exp.JSONPathKey) for each in node.expressions)


_RULES: dict[str, Callable[[exp.Expr], bool]] = {
    **dict.fromkeys(("Add", "Sub", "Mul"), _sum_or_product),
    **dict.fromkeys(("IntDiv", "Mod"), _of("integer")),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _truncation),
    **dict.fromkeys(("Trim", "Translate", "Length"), _of("text")),
    "Literal": _plain_number,
    "Cast": _cast,
    "Round": _rounds,
    "Sum": _sums,
    "DPipe": _of("text", "integer"),
    "DateDiff": _difference,
    "Interval": _interval,
    "WindowSpec": _frame,
    "JSONExtractScalar": lambda node: family(node.this) == "text",
    "JSONPath": _path,
}
_LISTED = _ALWAYS | _RULES.keys()
