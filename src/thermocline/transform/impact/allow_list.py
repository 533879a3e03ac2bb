"""The allow-list of query constructs that are safe for computing only some parts.

A construct is listed if its value depends only on its row, group or window: it is deterministic
and independent of the order in which rows are read. Everything else (an unreviewed function, the
clock, a sample, a subquery in a condition) is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from thermocline.transform.impact.unsafe import Unsafe


def _split(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Relational constructs with the arguments that have a rule. Any other argument is refused.
_ARGUMENTS: dict[str, frozenset[str]] = {
    "Select": _split("with_ expressions from_ joins where group having qualify distinct"),
    "Union": _split("with_ this expression distinct"),
    "Except": _split("with_ this expression distinct"),
    "Intersect": _split("with_ this expression distinct"),
    "Subquery": _split("with_ this alias"),
    "CTE": _split("this alias materialized"),
    "With": _split("expressions"),
    "From": _split("this"),
    "Join": _split("this on side kind"),
    "Table": _split("this db alias"),
    "Column": _split("this table"),
    "TableAlias": _split("this columns"),
    "Unnest": _split("expressions alias"),
    "Where": _split("this"),
    "Having": _split("this"),
    "Qualify": _split("this"),
    "Group": _split("expressions"),
    "Distinct": _split("expressions"),
    "Window": _split("this partition_by order spec over"),
    "WindowSpec": _split("kind start start_side end end_side"),
    "Order": _split("this expressions"),
    "Ordered": _split("this desc nulls_first"),
    "Filter": _split("this expression"),
    "In": _split("this expressions"),
    "Count": _split("this expressions big_int"),
}
_JOIN_WORDS = {"", "INNER", "CROSS", "OUTER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI"}

_OPERATORS = _split(
    """
    Dot Identifier Literal Null Boolean Paren Alias Tuple Case If And Or Not EQ NEQ GT GTE
    LT LTE NullSafeEQ NullSafeNEQ Is Between Like ILike Escape Add Sub Mul Div IntDiv Mod Neg
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot DPipe Concat ConcatWs Cast TryCast DataType
    DataTypeParam ColumnDef Interval Var Coalesce Nullif Greatest Least
    """
)
_FUNCTIONS = _split(
    """
    Abs Round Floor Ceil Sign Sqrt Cbrt Pow Exp Ln Log
    Lower Upper Trim Length Substring Left Right Replace SplitPart StartsWith EndsWith Contains
    StrPosition RegexpLike RegexpReplace RegexpExtract Translate Initcap Reverse Pad Repeat
    Chr Ascii MD5 SHA SHA2 Hex Unhex ToBase64 FromBase64 Levenshtein
    DateTrunc TimestampTrunc Extract Year Quarter Month Week Day Hour Minute Second
    DayOfWeek DayOfWeekIso DayOfMonth DayOfYear WeekOfYear LastDay
    AtTimeZone Split ArrayToString
    DateDiff DateAdd DateSub TimestampAdd TimestampSub TimestampDiff
    StrToTime StrToDate TimeToStr UnixToTime TimeToUnix MakeInterval DateFromParts
    JSONExtract JSONExtractScalar JSONPath JSONPathRoot JSONPathKey JSONPathSubscript
    Struct PropertyEQ StructExtract Bracket Slice Array ArraySize ArrayContains
    """
)
"""Scalar functions: the value depends on the arguments only."""
_AGGREGATES = _split(
    """
    Sum Count CountIf Min Max Avg LogicalAnd LogicalOr Median PercentileCont PercentileDisc
    Stddev StddevSamp StddevPop Variance VariancePop
    """
)
"""Aggregates: the value depends on the multiset of rows, not on their order."""
_ORDERED_LISTS = _split("ArrayAgg GroupConcat")
"""Aggregates that keep rows in an order; allowed only with a total order."""
_RANKING = _split(
    "RowNumber Rank DenseRank PercentRank CumeDist Ntile Lag Lead FirstValue LastValue NthValue"
)
"""Window functions: the value depends on the window's rows in their stated order."""
_MODIFIERS = _split("IgnoreNulls RespectNulls Star")
_ALLOWED = (
    _OPERATORS
    | _FUNCTIONS
    | _AGGREGATES
    | _ORDERED_LISTS
    | _RANKING
    | _MODIFIERS
    | _ARGUMENTS.keys()
)
_CLOCK_WORDS = {"now", "today", "yesterday", "tomorrow"}
"""Texts that an engine may cast to the current time."""


def require_allowed(query: exp.Expr) -> None:
    """Raise Unsafe for the first construct of a bound query that has no rule."""
    for node in query.walk():
        kind = type(node).__name__
        if kind not in _ALLOWED:
            raise Unsafe(describe(node))
        arguments = _ARGUMENTS.get(kind)
        if arguments is not None:
            _refuse_other_arguments(node, arguments)
        rule = _RULES.get(kind)
        if rule is not None:
            rule(node)


def is_aggregate(node: exp.Expr) -> bool:
    """Return whether a node is an aggregate function, over a group or a window."""
    kind = type(node).__name__
    return kind in _AGGREGATES or kind in _ORDERED_LISTS


def has_aggregate(node: exp.Expr) -> bool:
    """Return whether an expression holds an aggregate over a group, rather than over a window."""
    return any(is_aggregate(found) and _find_window(found) is None for found in node.walk())


def describe(node: exp.Expr) -> str:
    """Describe a construct in words that its author recognizes."""
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return f"{node.name.lower()}(), which is not known to be deterministic"
    if isinstance(node, exp.Func):
        return f"{node.sql_name().lower()}(), which is not known to be deterministic"
    return type(node).__name__.upper()


def _refuse_other_arguments(node: exp.Expr, arguments: frozenset[str]) -> None:
    for name, value in node.args.items():
        if value and name not in arguments:
            raise Unsafe(f"{type(node).__name__.upper()} with {name.strip('_').upper()}")


def _find_window(node: exp.Expr) -> exp.Window | None:
    """Return the window of a window function; None for other functions."""
    parent = node.parent
    while isinstance(parent, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        node, parent = parent, parent.parent
    return parent if isinstance(parent, exp.Window) and parent.this is node else None


def _check_star(node: exp.Expr) -> None:
    if not isinstance(node.parent, exp.Count):
        raise Unsafe("a star whose columns are not known")


def _check_column(node: exp.Expr) -> None:
    if not node.text("table"):
        raise Unsafe(f"{node.name}, a name that no source has")


def _check_join(node: exp.Expr) -> None:
    for word in (node.text("side"), node.text("kind")):
        if word.upper() not in _JOIN_WORDS:
            raise Unsafe(f"{word} JOIN")
    if isinstance(node.this, exp.Unnest) and node.text("side"):
        raise Unsafe("an outer join to UNNEST")


def _check_select(node: exp.Expr) -> None:
    parent = node.parent
    while isinstance(parent, exp.Subquery):
        if isinstance(parent.parent, exp.From | exp.Join):
            return
        parent = parent.parent
    if parent is not None and not isinstance(parent, exp.CTE | exp.SetOperation):
        raise Unsafe("a subquery in a condition or in the select list")


def _check_unnest(node: exp.Expr) -> None:
    if not isinstance(node.parent, exp.From | exp.Join):
        raise Unsafe("UNNEST in the select list")


def _check_distinct(node: exp.Expr) -> None:
    if node.args.get("on"):
        raise Unsafe("DISTINCT ON")


def _check_ranking(node: exp.Expr) -> None:
    window = _find_window(node)
    if window is None or not window.args.get("order"):
        raise Unsafe(f"{node.sql_name().lower()}() without an order")  # type: ignore[attr-defined]


def _check_window(node: exp.Expr) -> None:
    if node.args.get("spec") and not node.args.get("order"):
        raise Unsafe("a window's frame without an order")


def _check_ordered_list(node: exp.Expr) -> None:
    """Require that a list is ordered by the listed values: only then is the order total."""
    order = node.find(exp.Order)
    inner = order.this if order is not None else None
    values = inner.expressions if isinstance(inner, exp.Distinct) else [inner]
    by = [each.this for each in order.expressions] if order is not None else []
    if order is None or len(values) != 1 or values[0] not in by:
        raise Unsafe(f"{describe(node).partition(',')[0]} in an order that leaves a choice")


def _check_cast(node: exp.Expr) -> None:
    inner = node.this
    if isinstance(inner, exp.Literal) and inner.name.strip().lower() in _CLOCK_WORDS:
        raise Unsafe(f"'{inner.name}', which depends on when it is asked")


_RULES: dict[str, Callable[[exp.Expr], None]] = {
    "Star": _check_star,
    "Column": _check_column,
    "Join": _check_join,
    "Select": _check_select,
    "Unnest": _check_unnest,
    "Distinct": _check_distinct,
    "Window": _check_window,
    "Cast": _check_cast,
    "TryCast": _check_cast,
    **dict.fromkeys(_ORDERED_LISTS, _check_ordered_list),
    **dict.fromkeys(_RANKING, _check_ranking),
}
