"""What a query may consist of, to be computed in parts: everything else is not safe.

A construct is listed if its value follows from the row, the group or the window that it stands
over: it is deterministic and does not depend on the order in which rows are read. Whatever has
no entry (a function that nobody looked at, the clock, a sample, a subquery in a condition) is
refused by name.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from thermocline.transform.impact.errors import Unsafe


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Relational constructs: the arguments that have a rule. Any other that is set is refused.
_ARGUMENTS: dict[str, frozenset[str]] = {
    "Select": _names("with_ expressions from_ joins where group having qualify distinct"),
    "Union": _names("with_ this expression distinct"),
    "Except": _names("with_ this expression distinct"),
    "Intersect": _names("with_ this expression distinct"),
    "Subquery": _names("with_ this alias"),
    "CTE": _names("this alias materialized"),
    "With": _names("expressions"),
    "From": _names("this"),
    "Join": _names("this on side kind"),
    "Table": _names("this db alias"),
    "Column": _names("this table"),
    "TableAlias": _names("this columns"),
    "Unnest": _names("expressions alias"),
    "Where": _names("this"),
    "Having": _names("this"),
    "Qualify": _names("this"),
    "Group": _names("expressions"),
    "Distinct": _names("expressions"),
    "Window": _names("this partition_by order spec over"),
    "WindowSpec": _names("kind start start_side end end_side"),
    "Order": _names("this expressions"),
    "Ordered": _names("this desc nulls_first"),
    "Filter": _names("this expression"),
    "In": _names("this expressions"),
    "Count": _names("this expressions big_int"),
}
_JOIN_WORDS = {"", "INNER", "CROSS", "OUTER", "LEFT", "RIGHT", "FULL", "SEMI", "ANTI"}

_PLAIN = _names(
    """
    Dot Identifier Literal Null Boolean Paren Alias Tuple Case If And Or Not EQ NEQ GT GTE
    LT LTE NullSafeEQ NullSafeNEQ Is Between Like ILike Escape Add Sub Mul Div IntDiv Mod Neg
    BitwiseAnd BitwiseOr BitwiseXor BitwiseNot DPipe Concat ConcatWs Cast TryCast DataType
    DataTypeParam ColumnDef Interval Var Coalesce Nullif Greatest Least
    """
)
_FUNCTIONS = _names(
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
"""Scalar functions: the value follows from the arguments."""
_AGGREGATES = _names(
    """
    Sum Count CountIf Min Max Avg LogicalAnd LogicalOr Median PercentileCont PercentileDisc
    Stddev StddevSamp StddevPop Variance VariancePop
    """
)
"""Aggregates: the value follows from the bag of rows, in whatever order they come."""
_ORDERED_LISTS = _names("ArrayAgg GroupConcat")
"""Aggregates that keep rows in an order: only with one that leaves no choice."""
_RANKING = _names(
    "RowNumber Rank DenseRank PercentRank CumeDist Ntile Lag Lead FirstValue LastValue NthValue"
)
"""Window functions: the value follows from the window's rows in the order that they state."""
_MODIFIERS = _names("IgnoreNulls RespectNulls Star")
_LISTED = (
    _PLAIN | _FUNCTIONS | _AGGREGATES | _ORDERED_LISTS | _RANKING | _MODIFIERS | _ARGUMENTS.keys()
)
_CLOCK_WORDS = {"now", "today", "yesterday", "tomorrow"}
"""Texts that an engine may take for a moment that passes when they are cast to a time."""


def require_allowed(query: exp.Expr) -> None:
    """Raise Unsafe for the first construct of a bound query that has no rule."""
    for node in query.walk():
        kind = type(node).__name__
        if kind not in _LISTED:
            raise Unsafe(named(node))
        arguments = _ARGUMENTS.get(kind)
        if arguments is not None:
            _refuse_others(node, arguments)
        rule = _RULES.get(kind)
        if rule is not None:
            rule(node)


def is_aggregate(node: exp.Expr) -> bool:
    """Whether a node combines the rows of a group (a window function is not meant)."""
    kind = type(node).__name__
    return kind in _AGGREGATES or kind in _ORDERED_LISTS


def aggregates(node: exp.Expr) -> bool:
    """Whether an expression holds an aggregate over a group, one that is no window's."""
    return any(is_aggregate(found) and _window_of(found) is None for found in node.walk())


def named(node: exp.Expr) -> str:
    """A construct in words that its author will recognize."""
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        return f"{node.name.lower()}(), which is not known to be deterministic"
    if isinstance(node, exp.Func):
        return f"{node.sql_name().lower()}(), which is not known to be deterministic"
    return type(node).__name__.upper()


def _refuse_others(node: exp.Expr, arguments: frozenset[str]) -> None:
    for name, value in node.args.items():
        if value and name not in arguments:
            raise Unsafe(f"{type(node).__name__.upper()} with {name.strip('_').upper()}")


def _window_of(node: exp.Expr) -> exp.Window | None:
    """The window that a function is called over, if it is."""
    parent = node.parent
    while isinstance(parent, exp.IgnoreNulls | exp.RespectNulls | exp.Filter):
        node, parent = parent, parent.parent
    return parent if isinstance(parent, exp.Window) and parent.this is node else None


def _star(node: exp.Expr) -> None:
    if not isinstance(node.parent, exp.Count):
        raise Unsafe("a star whose columns are not known")


def _column(node: exp.Expr) -> None:
    if not node.text("table"):
        raise Unsafe(f"{node.name}, a name that no source has")


def _join(node: exp.Expr) -> None:
    for word in (node.text("side"), node.text("kind")):
        if word.upper() not in _JOIN_WORDS:
            raise Unsafe(f"{word} JOIN")
    if isinstance(node.this, exp.Unnest) and node.text("side"):
        raise Unsafe("an outer join to UNNEST")


def _select(node: exp.Expr) -> None:
    parent = node.parent
    while isinstance(parent, exp.Subquery):
        if isinstance(parent.parent, exp.From | exp.Join):
            return
        parent = parent.parent
    if parent is not None and not isinstance(parent, exp.CTE | exp.SetOperation):
        raise Unsafe("a subquery in a condition or in the select list")


def _unnest(node: exp.Expr) -> None:
    if not isinstance(node.parent, exp.From | exp.Join):
        raise Unsafe("UNNEST in the select list")


def _distinct(node: exp.Expr) -> None:
    if node.args.get("on"):
        raise Unsafe("DISTINCT ON")


def _ranking(node: exp.Expr) -> None:
    window = _window_of(node)
    if window is None or not window.args.get("order"):
        raise Unsafe(f"{node.sql_name().lower()}() without an order")  # type: ignore[attr-defined]


def _window(node: exp.Expr) -> None:
    if node.args.get("spec") and not node.args.get("order"):
        raise Unsafe("a window's frame without an order")


def _ordered_list(node: exp.Expr) -> None:
    """A list's order leaves no choice if it is by the very values that are listed."""
    ordered = node.find(exp.Order)
    inner = ordered.this if ordered is not None else None
    values = inner.expressions if isinstance(inner, exp.Distinct) else [inner]
    by = [each.this for each in ordered.expressions] if ordered is not None else []
    if ordered is None or len(values) != 1 or values[0] not in by:
        raise Unsafe(f"{named(node).partition(',')[0]} in an order that leaves a choice")


def _cast(node: exp.Expr) -> None:
    inner = node.this
    if isinstance(inner, exp.Literal) and inner.name.strip().lower() in _CLOCK_WORDS:
        raise Unsafe(f"'{inner.name}', which depends on when it is asked")


_RULES: dict[str, Callable[[exp.Expr], None]] = {
    "Star": _star,
    "Column": _column,
    "Join": _join,
    "Select": _select,
    "Unnest": _unnest,
    "Distinct": _distinct,
    "Window": _window,
    "Cast": _cast,
    "TryCast": _cast,
    **dict.fromkeys(_ORDERED_LISTS, _ordered_list),
    **dict.fromkeys(_RANKING, _ranking),
}
