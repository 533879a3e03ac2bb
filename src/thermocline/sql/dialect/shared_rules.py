"""Constructs with one meaning in DuckDB, Spark and Trino, and the rules that all targets share."""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, TIMES, T, family
from thermocline.sql.dialect.rewrite import (
    Rule,
    build_time_literal,
    cast,
    construct_name,
    integer_value,
    refuse_translation,
    require_same_family,
    rewrite_between,
    rewrite_comparison,
    rewrite_in,
    rewrite_interval,
)

UNCHANGED = frozenset({
    "Subquery", "CTE", "From", "Where", "Having", "Qualify", "Ordered", "Values", "Tuple",
    "Alias", "TableAlias", "Table", "Star", "Identifier", "Null", "Boolean", "Paren", "Rollup",
    "Cube", "GroupingSets", "DataType", "DataTypeParam", "Var", "And", "Or", "Not", "Exists",
    "Count", "Sum", "Min", "Max", "RowNumber", "Rank", "DenseRank", "Lag", "Lead", "FirstValue",
    "LastValue", "LogicalAnd", "LogicalOr",  "Neg", "Abs", "StartsWith", "MD5",
    "Stddev", "StddevPop", "StddevSamp", "Variance", "VariancePop", "Sqrt", "Exp", "Ln", "Pow",
    "Filter", "Window", "ColumnDef",
})  # fmt: skip
"""Node types that stay unchanged once their children are rewritten."""

MAX_INTEGER = 2**63 - 1
TEXT_CONVERTIBLE = frozenset({"text", "integer"})
"""Families whose values have the same text in every engine."""
UNITS = ("YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND")


def require_family(node: exp.Expr, *families: str, of: exp.Expr | None = None) -> None:
    """Refuse an argument of another family."""
    found = family(node)
    if found not in families and found != "null":
        refuse_translation(
            f"{construct_name(of) if of is not None else construct_name(node)} of {found}"
        )


def time_unit(node: exp.Expr) -> str:
    """Return the unit of a time function."""
    name = node.text("unit").upper()
    if name not in UNITS:
        refuse_translation(
            f"{construct_name(node)} by {name.lower() or 'a unit that is not a constant'}"
        )
    return name


def _check_literal(node: exp.Expr) -> exp.Expr:
    text = node.name
    if node.args.get("is_string"):
        return node
    if "e" in text.lower():
        return node
    digits = text.replace(".", "")
    if len(digits) > 38 or ("." not in text and int(text) > MAX_INTEGER):
        refuse_translation("a number with too many digits")
    return node


def _check_set_operation(node: exp.Expr) -> exp.Expr:
    if node.args.get("by_name") or node.args.get("on") or node.args.get("side"):
        refuse_translation("a set operation BY NAME")
    left, right = (side.unnest() for side in (node.this, node.expression))
    if len(left.selects) == len(right.selects):
        for one, other in zip(left.selects, right.selects, strict=True):
            require_same_family([one, other], construct_name(node))
    return node


def _check_select(node: exp.Expr) -> exp.Expr:
    for argument, words in (("windows", "WINDOW"), ("sample", "SAMPLE"), ("laterals", "LATERAL"),
                            ("kind", "SELECT AS"), ("pivots", "PIVOT"), ("prewhere", "PREWHERE"),
                            ("connect", "CONNECT"), ("hint", "a hint")):  # fmt: skip
        if node.args.get(argument):
            refuse_translation(words)
    return node


def _check_with(node: exp.Expr) -> exp.Expr:
    if node.args.get("recursive"):
        refuse_translation("WITH RECURSIVE")
    return node


def _check_distinct(node: exp.Expr) -> exp.Expr:
    if isinstance(node.parent, exp.Count) and len(node.expressions) != 1:
        refuse_translation("COUNT(DISTINCT) of several columns")
    return node


def _check_join(node: exp.Expr) -> exp.Expr:
    if node.args.get("method") or node.args.get("using"):
        refuse_translation(f"a {node.text('method') or 'USING'} JOIN", "its columns are unknown")
    return node


def _check_group(node: exp.Expr) -> exp.Expr:
    if node.args.get("all") is not None or node.args.get("totals"):
        refuse_translation("GROUP BY ALL", "its columns are unknown")
    return node


def _check_limit(node: exp.Expr) -> exp.Expr:
    if integer_value(node.expression) is None:
        refuse_translation(
            f"{construct_name(node)} of an expression that is not an integer literal"
        )
    return node


def _check_order(node: exp.Expr) -> exp.Expr:
    for each in node.expressions:
        if each.args.get("with_fill") or isinstance(each.this, exp.Var):
            refuse_translation("ORDER BY ALL")
    return node


def _check_column(node: exp.Expr) -> exp.Expr:
    if isinstance(node.this, exp.Star):
        return node
    if not node.text("table") and not isinstance(node.find_ancestor(exp.Order), exp.Order):
        refuse_translation(f"the column {node.name[:60]}", "its table is unknown")
    return node


def _check_dot(node: exp.Expr) -> exp.Expr:
    if family(node.this) != "struct" or not isinstance(node.expression, exp.Identifier):
        refuse_translation("a field of a value that is not a struct")
    return node


def _check_conditional(node: exp.Expr) -> exp.Expr:
    """Require one type for all results of CASE and IF, and check the comparison of each WHEN."""
    if isinstance(node, exp.If):
        if isinstance(node.parent, exp.Case):
            return node
        require_same_family([node.args.get("true"), node.args.get("false")], "IF")
        return node
    branches = node.args["ifs"]
    require_same_family(
        [*(each.args["true"] for each in branches), node.args.get("default")], "CASE"
    )
    if node.this is not None:
        require_same_family([node.this, *(each.this for each in branches)], "CASE")
    return node


def _check_arguments_agree(node: exp.Expr) -> exp.Expr:
    require_same_family([node.this, *node.expressions], construct_name(node))
    return node


def _check_nullif(node: exp.Expr) -> exp.Expr:
    if family(node.this) != family(node.expression):
        refuse_translation("NULLIF with two types")
    return node


def list_index(node: exp.Expr) -> exp.Expr:
    """Return the index of a list element, counted from 1, or backwards from -1.

    The parser counts from 0 in every dialect.
    """
    require_family(node.this, "list", of=node)
    index = integer_value(node.expressions[0]) if len(node.expressions) == 1 else None
    place = None if index is None else index + 1 - (node.args.get("offset") or 0)
    if place is None or place == 0:
        refuse_translation("a list element at an index that is not a constant")
    return exp.Literal.number(place)


def _check_is(node: exp.Expr) -> exp.Expr:
    if not isinstance(node.expression, exp.Null | exp.Boolean):
        refuse_translation("IS")
    return node


def _check_window_spec(node: exp.Expr) -> exp.Expr:
    ends = {node.args.get("start"), node.args.get("end")}
    unbounded = ends <= {"UNBOUNDED", "CURRENT ROW", None}
    if node.args.get("exclude") or (node.text("kind").upper() != "ROWS" and not unbounded):
        refuse_translation("a window frame with RANGE or GROUPS")
    return node


def _check_window(node: exp.Expr) -> exp.Expr:
    if node.args.get("alias") or node.args.get("first") is not None:
        refuse_translation("a named WINDOW")
    return node


def _check_text_arguments(node: exp.Expr) -> exp.Expr:
    for each in (node.this, node.args.get("expression")):
        if each is not None:
            require_family(each, "text", of=node)
    return node


def _check_numeric_arguments(node: exp.Expr) -> exp.Expr:
    for each in (node.this, node.args.get("expression")):
        if each is not None and not isinstance(each, exp.Distinct):
            require_family(each, *NUMBERS, of=node)
    return node


def _check_count(node: exp.Expr) -> exp.Expr:
    if node.expressions:
        refuse_translation("COUNT of several columns")
    return node


def _rewrite_concat(node: exp.Expr) -> exp.Expr:
    """Cast integers in a concatenation to text, which a COALESCE with '' would not do."""
    for each in list(node.expressions or [node.this, node.expression]):
        require_family(each, *TEXT_CONVERTIBLE, of=node)
        if family(each) == "integer":
            parent, key, index = each.parent, each.arg_key, each.index
            assert parent is not None
            parent.set(key or "this", cast(each, T.TEXT), index)
    return node


def _rewrite_null(node: exp.Expr) -> exp.Expr:
    """Cast a NULL result to INTEGER, as in DuckDB; elsewhere it has no type."""
    return cast(node, T.INT) if isinstance(node.parent, exp.Alias | exp.Select) else node


def _check_table(node: exp.Expr) -> exp.Expr:
    if not isinstance(node.this, exp.Identifier) or node.args.get("pivots"):
        refuse_translation("a table that is not a simple name")
    return node


def like_pattern(node: exp.Expr) -> str | None:
    """Return the pattern of LIKE if it is a constant."""
    found = node.expression
    return found.name if isinstance(found, exp.Literal) and found.is_string else None


def addition_families(node: exp.Expr) -> tuple[str, str]:
    """Return the families of both operands of + or -; refuse the others."""
    assert isinstance(node, exp.Binary)
    sides = family(node.left), family(node.right)
    numeric = set(sides) <= NUMBERS | {"null"} or sides == ("real", "real")
    timely = sides[0] in TIMES and sides[1] == "interval"
    if numeric or timely or sides in {("date", "integer"), ("date", "date")}:
        return sides
    return refuse_translation(f"{construct_name(node)} of {sides[0]} and {sides[1]}")


def rewrite_addition(
    node: exp.Expr, count_days: Callable[[exp.Expr, exp.Expr], exp.Expr]
) -> exp.Expr:
    """Rewrite + and -; `count_days` returns the engine's difference of two dates, end and start."""
    left, right = addition_families(node)
    assert isinstance(node, exp.Binary)
    if (left, right) == ("date", "date"):
        if isinstance(node, exp.Add):
            refuse_translation("the sum of two dates")
        return count_days(node.left, node.right)
    if right == "interval":
        node.set("this", to_timestamp(node.left))
    return node


def to_timestamp(node: exp.Expr) -> exp.Expr:
    """Cast a date to the timestamp of its midnight, as DuckDB does with an interval."""
    return cast(node, T.TIMESTAMPNTZ) if family(node) == "date" else node


def cast_families(node: exp.Expr) -> tuple[str, str]:
    """Return the families of a cast's target and source; refuse TRY_CAST of a string."""
    source = family(node.this)
    if isinstance(node, exp.TryCast) and source == "text":
        refuse_translation(
            "TRY_CAST of a string", "engines accept different formats of numbers and dates"
        )
    return family(node), source


def rewrite_cast(node: exp.Expr) -> exp.Expr:
    """Rewrite a cast that Spark and Trino evaluate as DuckDB does; refuse any other."""
    target, source = cast_families(node)
    match target, source:
        case "integer", "integer" | "boolean" | "text" | "null":
            return node
        case "double", "integer" | "decimal" | "double" | "real" | "text" | "null":
            return node
        case "decimal", "integer" | "decimal" | "text" | "null":
            return node
        case "boolean", "integer" | "boolean" | "null":
            return node
        case (
            "date" | "timestamp" | "timestamptz",
            "date" | "timestamp" | "timestamptz" | "text" | "null",
        ):
            return rewrite_time_cast(node, source)
        case _:
            return refuse_translation(f"a cast of {source} to {target}")


def rewrite_time_cast(node: exp.Expr, source: str) -> exp.Expr:
    """Rewrite a cast to a date or timestamp; strings must be constants, which are parsed here."""
    if source == "text":
        if not isinstance(node.this, exp.Literal):
            refuse_translation("a cast of a string to a time", "engines accept different formats")
        return build_time_literal(node.this.name, node.args["to"].this)
    return node


def round_digits(node: exp.Expr) -> int | None:
    """Return the constant number of digits of ROUND, or None if it has no argument."""
    require_family(node.this, *NUMBERS, of=node)
    digits = node.args.get("decimals")
    places = None if digits is None else integer_value(digits)
    if digits is not None and (places is None or places < 0):
        refuse_translation("ROUND to digits that are not a constant of at least 0")
    return places


RULES: dict[str, Rule] = {
    **dict.fromkeys(("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ"),
                    rewrite_comparison),
    **dict.fromkeys(("Union", "Except", "Intersect"), _check_set_operation),
    **dict.fromkeys(("Case", "If"), _check_conditional),
    **dict.fromkeys(("Coalesce",), _check_arguments_agree),
    **dict.fromkeys(("StartsWith", "MD5"), _check_text_arguments),
    **dict.fromkeys(("Neg", "Abs", "Sum", "Stddev", "StddevPop", "StddevSamp", "Variance",
                     "VariancePop", "Sqrt", "Exp", "Ln", "Pow", "Mul"), _check_numeric_arguments),
    **dict.fromkeys(("DPipe", "Concat"), _rewrite_concat),
    **dict.fromkeys(("Limit", "Offset"), _check_limit),
    "Between": rewrite_between, "In": rewrite_in, "Interval": rewrite_interval,
    "Literal": _check_literal, "Select": _check_select,
    "With": _check_with, "Distinct": _check_distinct, "Join": _check_join, "Group": _check_group,
    "Order": _check_order,
    "Column": _check_column, "Dot": _check_dot, "Nullif": _check_nullif, "Is": _check_is,
    "WindowSpec": _check_window_spec,
    "Window": _check_window, "Count": _check_count, "Table": _check_table, "Null": _rewrite_null,
}  # fmt: skip
