"""What DuckDB, Spark and Trino mean alike, and the rules that hold for whoever it is said to."""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, TIMES, T, family
from thermocline.sql.dialect.rewrite import (
    Rule,
    alike,
    between,
    cast,
    compared,
    interval,
    named,
    number,
    time_literal,
    unfaithful,
    within,
)

SAME = frozenset({
    "Subquery", "CTE", "From", "Where", "Having", "Qualify", "Ordered", "Values", "Tuple",
    "Alias", "TableAlias", "Table", "Star", "Identifier", "Null", "Boolean", "Paren", "Rollup",
    "Cube", "GroupingSets", "DataType", "DataTypeParam", "Var", "And", "Or", "Not", "Exists",
    "Count", "Sum", "Min", "Max", "RowNumber", "Rank", "DenseRank", "Lag", "Lead", "FirstValue",
    "LastValue", "LogicalAnd", "LogicalOr",  "Neg", "Abs", "StartsWith", "MD5",
    "Stddev", "StddevPop", "StddevSamp", "Variance", "VariancePop", "Sqrt", "Exp", "Ln", "Pow",
    "Filter", "Window", "ColumnDef",
})  # fmt: skip
"""Kinds of nodes that stay as they are, once their parts have been said."""

LARGEST = 2**63 - 1
TEXTABLE = frozenset({"text", "integer"})
"""Families whose values every engine writes as the same text."""
UNITS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")


def need(node: exp.Expr, *families: str, of: exp.Expr | None = None) -> None:
    """Refuse an argument of another family."""
    found = family(node)
    if found not in families and found != "null":
        unfaithful(f"{named(of) if of is not None else named(node)} of {found}")


def unit(node: exp.Expr) -> str:
    """The unit of a function of times."""
    name = node.text("unit").upper()
    if name not in UNITS:
        unfaithful(f"{named(node)} by {name.lower() or 'a unit that is no constant'}")
    return name


def _literal(node: exp.Expr) -> exp.Expr:
    text = node.name
    if node.args.get("is_string"):
        return node
    if "e" in text.lower():
        return node
    digits = text.replace(".", "")
    if len(digits) > 38 or ("." not in text and int(text) > LARGEST):
        unfaithful("a number of so many digits")
    return node


def _ordered_set(node: exp.Expr) -> exp.Expr:
    if node.args.get("by_name") or node.args.get("on") or node.args.get("side"):
        unfaithful("a set operation BY NAME")
    left, right = (side.unnest() for side in (node.this, node.expression))
    if len(left.selects) == len(right.selects):
        for one, other in zip(left.selects, right.selects, strict=True):
            alike([one, other], named(node))
    return node


def _select(node: exp.Expr) -> exp.Expr:
    for argument, words in (("windows", "WINDOW"), ("sample", "SAMPLE"), ("laterals", "LATERAL"),
                            ("kind", "SELECT AS"), ("pivots", "PIVOT"), ("prewhere", "PREWHERE"),
                            ("connect", "CONNECT"), ("hint", "a hint")):  # fmt: skip
        if node.args.get(argument):
            unfaithful(words)
    return node


def _with(node: exp.Expr) -> exp.Expr:
    if node.args.get("recursive"):
        unfaithful("WITH RECURSIVE")
    return node


def _distinct(node: exp.Expr) -> exp.Expr:
    if isinstance(node.parent, exp.Count) and len(node.expressions) != 1:
        unfaithful("COUNT(DISTINCT) of several columns")
    return node


def _join(node: exp.Expr) -> exp.Expr:
    if node.args.get("method") or node.args.get("using"):
        unfaithful(f"a {node.text('method') or 'USING'} JOIN", "its columns are not known")
    return node


def _group(node: exp.Expr) -> exp.Expr:
    if node.args.get("all") is not None or node.args.get("totals"):
        unfaithful("GROUP BY ALL", "its columns are not known")
    return node


def _limit(node: exp.Expr) -> exp.Expr:
    if number(node.expression) is None:
        unfaithful(f"{named(node)} of something that is no plain number")
    return node


def _order(node: exp.Expr) -> exp.Expr:
    for each in node.expressions:
        if each.args.get("with_fill") or isinstance(each.this, exp.Var):
            unfaithful("ORDER BY ALL")
    return node


def _column(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Star):
        return node
    if not node.text("table") and not isinstance(node.find_ancestor(exp.Order), exp.Order):
        unfaithful(f"the column {node.name[:60]}", "it is not known whose it is")
    return node


def _dot(node: exp.Expr) -> exp.Expr:
    if family(node.this) != "struct" or not isinstance(node.expression, exp.Identifier):
        unfaithful("the member of something that is no struct")
    return node


def _conditional(node: exp.Expr) -> exp.Expr:
    """CASE and IF: one type for all their results, and a comparison for each WHEN."""
    if isinstance(node, exp.If):
        if isinstance(node.parent, exp.Case):
            return node
        alike([node.args.get("true"), node.args.get("false")], "IF")
        return node
    branches = node.args["ifs"]
    alike([*(each.args["true"] for each in branches), node.args.get("default")], "CASE")
    if node.this is not None:
        alike([node.this, *(each.this for each in branches)], "CASE")
    return node


def _several(node: exp.Expr) -> exp.Expr:
    alike([node.this, *node.expressions], named(node))
    return node


def _nullif(node: exp.Expr) -> exp.Expr:
    if family(node.this) != family(node.expression):
        unfaithful("NULLIF of two types")
    return node


def place_in_list(node: exp.Expr) -> exp.Expr:
    """Which element of a list is asked for, counted from 1, or backwards from -1.

    The parser counts from 0, whatever the dialect.
    """
    need(node.this, "list", of=node)
    index = number(node.expressions[0]) if len(node.expressions) == 1 else None
    place = None if index is None else index + 1 - (node.args.get("offset") or 0)
    if place is None or place == 0:
        unfaithful("a list's element at a place that is no constant")
    return exp.Literal.number(place)


def _is(node: exp.Expr) -> exp.Expr:
    if not isinstance(node.expression, exp.Null | exp.Boolean):
        unfaithful("IS")
    return node


def _spec(node: exp.Expr) -> exp.Expr:
    ends = {node.args.get("start"), node.args.get("end")}
    plain = ends <= {"UNBOUNDED", "CURRENT ROW", None}
    if node.args.get("exclude") or (node.text("kind").upper() != "ROWS" and not plain):
        unfaithful("a window's RANGE or GROUPS")
    return node


def _window(node: exp.Expr) -> exp.Expr:
    if node.args.get("alias") or node.args.get("first") is not None:
        unfaithful("a named WINDOW")
    return node


def _text_argument(node: exp.Expr) -> exp.Expr:
    for each in (node.this, node.args.get("expression")):
        if each is not None:
            need(each, "text", of=node)
    return node


def _numeric_argument(node: exp.Expr) -> exp.Expr:
    for each in (node.this, node.args.get("expression")):
        if each is not None and not isinstance(each, exp.Distinct):
            need(each, *NUMBERS, of=node)
    return node


def _countable(node: exp.Expr) -> exp.Expr:
    if node.expressions:
        unfaithful("COUNT of several columns")
    return node


def _joined_text(node: exp.Expr) -> exp.Expr:
    """Texts joined; integers among them as texts, which a COALESCE with '' would not make them."""
    for each in list(node.expressions or [node.this, node.expression]):
        need(each, *TEXTABLE, of=node)
        if family(each) == "integer":
            parent, key, index = each.parent, each.arg_key, each.index
            assert parent is not None
            parent.set(key or "this", cast(each, T.TEXT), index)
    return node


def _null(node: exp.Expr) -> exp.Expr:
    """A result that is only NULL is an INTEGER in DuckDB; elsewhere it has no type."""
    return cast(node, T.INT) if isinstance(node.parent, exp.Alias | exp.Select) else node


def _table(node: exp.Expr) -> exp.Expr:
    if not isinstance(node.this, exp.Identifier) or node.args.get("pivots"):
        unfaithful("a table that is no plain name")
    return node


def pattern(node: exp.Expr) -> str | None:
    """The text of LIKE's pattern where it is a constant."""
    found = node.expression
    return found.name if isinstance(found, exp.Literal) and found.is_string else None


def adding(node: exp.Expr) -> tuple[str, str]:
    """The families of both sides of + or -, among those that can be said."""
    assert isinstance(node, exp.Binary)
    sides = family(node.left), family(node.right)
    numeric = set(sides) <= NUMBERS | {"null"} or sides == ("real", "real")
    timely = sides[0] in TIMES and sides[1] == "interval"
    if numeric or timely or sides in {("date", "integer"), ("date", "date")}:
        return sides
    return unfaithful(f"{named(node)} of {sides[0]} and {sides[1]}")


def as_timestamp(node: exp.Expr) -> exp.Expr:
    """A date as the timestamp of its midnight, which DuckDB makes of it beside an interval."""
    return cast(node, T.TIMESTAMPNTZ) if family(node) == "date" else node


def cast_to_time(node: exp.Expr, source: str) -> exp.Expr:
    """A cast to a date or timestamp; of texts only constants, which are read here."""
    if source == "text":
        if not isinstance(node.this, exp.Literal):
            unfaithful("a cast of a text to a time", "engines read different spellings")
        return time_literal(node.this.name, node.args["to"].this)
    return node


def decimals(node: exp.Expr) -> int | None:
    """The constant number of digits of a ROUND; None where it has none."""
    need(node.this, *NUMBERS, of=node)
    digits = node.args.get("decimals")
    places = None if digits is None else number(digits)
    if digits is not None and (places is None or places < 0):
        unfaithful("ROUND to a number of digits that is no constant from 0 on")
    return places


RULES: dict[str, Rule] = {
    **dict.fromkeys(("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ"), compared),
    **dict.fromkeys(("Union", "Except", "Intersect"), _ordered_set),
    **dict.fromkeys(("Case", "If"), _conditional),
    **dict.fromkeys(("Coalesce",), _several),
    **dict.fromkeys(("StartsWith", "MD5"), _text_argument),
    **dict.fromkeys(("Neg", "Abs", "Sum", "Stddev", "StddevPop", "StddevSamp", "Variance",
                     "VariancePop", "Sqrt", "Exp", "Ln", "Pow", "Mul"), _numeric_argument),
    **dict.fromkeys(("DPipe", "Concat"), _joined_text),
    **dict.fromkeys(("Limit", "Offset"), _limit),
    "Between": between, "In": within, "Interval": interval, "Literal": _literal, "Select": _select,
    "With": _with, "Distinct": _distinct, "Join": _join, "Group": _group, "Order": _order,
    "Column": _column, "Dot": _dot, "Nullif": _nullif, "Is": _is, "WindowSpec": _spec,
    "Window": _window, "Count": _countable, "Table": _table, "Null": _null,
}  # fmt: skip
