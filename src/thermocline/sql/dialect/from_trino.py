"""Trino's meaning in DuckDB's words.

Types in the tree are Trino's. What is said here is DuckDB's SQL: it is either sent to a DuckDB as
it is, or said once more in Spark's words.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import (
    NUMBERS,
    TIMES,
    T,
    decimal,
    family,
    scale,
    typed,
)
from thermocline.sql.dialect import (
    nan,
    shared_rules,
    text_rules,
    trino_aggregates,
    trino_casts,
    trino_patterns,
)
from thermocline.sql.dialect.decimal_division import quotient
from thermocline.sql.dialect.rewrite import (
    Rule,
    between,
    call,
    cast,
    named,
    number,
    spreading,
    unfaithful,
    within,
    wrapped,
)
from thermocline.sql.dialect.shared_rules import need
from thermocline.sql.dialect.text_rules import text
from thermocline.sql.guard import DIVISION_BY_ZERO

SAME = shared_rules.SAME | {
    "PercentRank", "CumeDist", "Ntile", "Year", "Month", "Day", "Hour", "Minute", "Second",
    "Quarter", "WeekOfYear", "DayOfYear", "DayOfMonth", "DayOfWeekIso", "LastDay", "TimeToUnix",
    "AnyValue", "Grouping",
}  # fmt: skip
_COMPARISONS = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ")
_FORMAT = frozenset({"%Y", "%m", "%d", "%H", "%M", "%S"})


def is_nan(node: exp.Expr) -> exp.Expr:
    """DuckDB's test for NaN."""
    return typed(exp.IsNan(this=node.copy()), T.BOOLEAN)


def _compared(node: exp.Expr) -> exp.Expr:
    return nan.like_ieee(node, is_nan)


def _nonzero(node: exp.Expr) -> exp.Expr:
    """A divisor that fails the query where it is zero, as it does in Trino; DuckDB gives null."""
    if number(node):
        return node
    zero = exp.EQ(this=wrapped(node.copy()), expression=exp.Literal.number(0))
    failing = call("error", text(DIVISION_BY_ZERO), kind=node.type)
    guarded = exp.Case(ifs=[exp.If(this=zero, true=failing)], default=node.copy())
    return typed(exp.paren(guarded), node.type or T.UNKNOWN)


def _divided(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.Div)
    left, right = family(node.left), family(node.right)
    need(node.left, *NUMBERS, of=node)
    need(node.right, *NUMBERS, of=node)
    if "double" in {left, right}:
        return typed(exp.Div(this=node.left, expression=node.right, typed=False), T.DOUBLE)
    if (left, right) == ("integer", "integer"):
        return typed(exp.IntDiv(this=wrapped(node.left), expression=_nonzero(node.right)), T.BIGINT)
    return quotient(node.left, _nonzero(node.right))


def _average(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    need(of, *NUMBERS, of=node)
    if family(of) != "decimal":
        return None
    digits = scale(of)
    if digits is None:
        unfaithful("AVG of decimals whose digits are not known")
    total = place(typed(exp.Sum(this=node.this.copy()), decimal(38, digits)))
    count = place(typed(exp.Count(this=node.this.copy()), T.BIGINT))
    total.type, count.type = decimal(38, digits), exp.DataType(this=T.BIGINT)
    return quotient(total, count, digits)


def _most(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """Trino passes NaN over as long as there is anything else."""
    if family(node.this) in {"list", "struct", "map", "unknown"} or node.expressions:
        unfaithful(f"{named(node)} of {family(node.this)}")
    if not (isinstance(node, exp.Max) and nan.may_be(node.this)):
        return None
    others = exp.Case(ifs=[exp.If(this=exp.not_(is_nan(node.this)), true=node.this.copy())])
    return exp.Coalesce(
        this=place(exp.Max(this=others)), expressions=[place(exp.Max(this=node.this.copy()))]
    )


def _whole(node: exp.Expr) -> exp.Expr:
    need(node.this, *NUMBERS, of=node)
    return node.this if family(node.this) == "integer" else node


def _rounded(node: exp.Expr) -> exp.Expr:
    if shared_rules.decimals(node) is None or family(node.this) != "decimal":
        return node
    kept = scale(node.this)
    if kept is None:
        unfaithful("ROUND of a decimal whose digits are not known")
    return cast(node.copy(), decimal(38, kept))


def _moved(node: exp.Expr) -> exp.Expr:
    """A date and an interval give a date."""
    if (
        isinstance(node, exp.Add)
        and family(node.left) == "interval"
        and family(node.right) in TIMES
    ):
        node = typed(exp.Add(this=node.right, expression=node.left), node.type or T.UNKNOWN)
    left, right = shared_rules.adding(node)
    if left == "date" and right != "interval":
        unfaithful(f"{named(node)} of {left} and {right}")
    if left != "date":
        return node
    return cast(node.copy(), T.DATE)


def _multiplied(node: exp.Expr) -> exp.Expr:
    """Numbers; or an interval so many times."""
    assert isinstance(node, exp.Binary)
    if {family(node.left), family(node.right)} == {"interval", "integer"}:
        return node
    return shared_rules.RULES["Mul"](node)


def _from_seconds(node: exp.Expr) -> exp.Expr:
    """FROM_UNIXTIME, to the millisecond."""
    need(node.this, *NUMBERS, of=node)
    if any(node.args.get(other) for other in ("zone", "hours", "minutes", "scale", "format")):
        unfaithful("FROM_UNIXTIME with a zone")
    thousand = exp.Literal.number("1000e0")
    later = exp.Add(
        this=exp.Mul(this=wrapped(node.this), expression=thousand),
        expression=exp.Literal.number("0.5e0"),
    )
    whole = cast(call("floor", later, kind=T.DOUBLE), T.BIGINT)
    return cast(call("epoch_ms", whole, kind=T.TIMESTAMPNTZ), T.TIMESTAMPTZ)


def _joined(node: exp.Expr) -> exp.Expr:
    """CONCAT_WS of texts: both pass nulls over, and give null for a separator that is null."""
    for each in node.expressions:
        need(each, "text", of=node)
    return call("concat_ws", *node.expressions, kind=T.TEXT)


def _later(node: exp.Expr) -> exp.Expr:
    """DATE_ADD of a plain number."""
    need(node.this, *TIMES, of=node)
    count = number(node.expression)
    if count is None:
        unfaithful("DATE_ADD of a count that is no constant")
    unit = shared_rules.unit(node)
    found = exp.Add(
        this=wrapped(node.this),
        expression=exp.Interval(this=exp.Literal.string(str(count)), unit=exp.Var(this=unit)),
    )
    of = family(node.this)
    if of == "date":
        return cast(found, T.DATE)
    return typed(exp.paren(found), T.TIMESTAMPTZ if of == "timestamptz" else T.TIMESTAMPNTZ)


def _difference(node: exp.Expr) -> exp.Expr:
    """Whole units between two times; DuckDB's DATE_DIFF counts their boundaries.

    Trino leaves out of both what is finer than a millisecond.
    """
    unit = shared_rules.unit(node).lower()
    if unit not in {"day", "hour", "minute", "second"}:
        unfaithful(f"DATE_DIFF by {unit}")
    families = {family(node.this), family(node.expression)}
    if len(families) != 1 or not families <= TIMES:
        unfaithful(f"DATE_DIFF of {' and '.join(sorted(families))}")
    ends = [node.expression, node.this]
    if "date" not in families:
        ends = [call("date_trunc", text("millisecond"), end) for end in ends]
    return call("date_sub", text(unit), *ends, kind=T.BIGINT)


def _truncated(node: exp.Expr) -> exp.Expr:
    need(node.this, *TIMES, of=node)
    shared_rules.unit(node)
    return cast(node.copy(), T.DATE) if family(node.this) == "date" else node


def _extracted(node: exp.Expr) -> exp.Expr:
    part = node.name.upper()
    need(node.expression, *TIMES, of=node)
    if part in {"DOW", "DAYOFWEEK", "DAY_OF_WEEK"}:
        return typed(exp.DayOfWeekIso(this=node.expression), T.BIGINT)
    if part not in {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOY", "HOUR", "MINUTE", "SECOND"}:
        unfaithful(f"EXTRACT of {part.lower()}")
    return node


def _upper(node: exp.Expr) -> exp.Expr:
    """Only DuckDB has an upper case of ß: so what lies between is made upper case."""
    need(node.this, "text", of=node)
    parts = call("string_split", node.this, text("ß"))
    upper = call("upper", exp.column("part"))
    each = exp.Lambda(this=upper, expressions=[exp.to_identifier("part")])
    return call("array_to_string", call("list_transform", parts, each), text("ß"), kind=T.TEXT)


def _of_text(node: exp.Expr) -> exp.Expr:
    need(node.this, "text", of=node)
    return node


def _size(node: exp.Expr) -> exp.Expr:
    need(node.this, "list", of=node)
    return call("len", node.this, kind=T.BIGINT)


def _like(node: exp.Expr) -> exp.Expr:
    need(node.this, "text", of=node)
    need(node.expression, "text", of=node)
    return node


def _trimmed(node: exp.Expr) -> exp.Expr:
    """Trino takes away whatever is white, DuckDB spaces; a set of characters both."""
    need(node.this, "text", of=node)
    if not node.args.get("expression"):
        unfaithful("TRIM without saying of what")
    return node


def _concat(node: exp.Expr) -> exp.Expr:
    for each in node.expressions or [node.this, node.args.get("expression")]:
        need(each, "text", of=node)
    return node


def _formatted(node: exp.Expr) -> exp.Expr:
    """Trino rounds a time to milliseconds before it writes it."""
    need(node.this, *TIMES, of=node)
    pattern = node.args.get("format")
    words = pattern.name if isinstance(pattern, exp.Literal) else "%"
    parts = {words[at : at + 2] for at in range(len(words)) if words[at] == "%"}
    if not parts <= _FORMAT:
        unfaithful("DATE_FORMAT beyond %Y %m %d %H %i %s")
    of = family(node.this)
    if of != "date":
        kind = T.TIMESTAMPTZ if of == "timestamptz" else T.TIMESTAMPNTZ
        node.set("this", trino_casts.rounded(node.this, 3, kind))
    return node


def _summed(node: exp.Expr) -> exp.Expr:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    need(of, *NUMBERS, of=node)
    return node


def _remainder(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.Binary)
    need(node.left, "integer", "decimal", of=node)
    need(node.right, "integer", "decimal", of=node)
    node.set("expression", _nonzero(node.right))
    return node


def _between(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.this, node.args["low"], node.args["high"]], "BETWEEN")
    return between(node)


def _within(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.this], "IN")
    return within(node)


def _case(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Case) and node.this is not None and family(node.this) in nan.FRACTIONS:
        searched = node.copy()
        value = searched.this
        searched.set("this", None)
        for branch in searched.args["ifs"]:
            if branch.this == value:
                unfaithful("CASE x WHEN x", "Trino takes it for true, for NaN as well")
            sides = (typed(exp.paren(each.copy()), each.type) for each in (value, branch.this))
            equal = exp.EQ(this=next(sides), expression=next(sides))
            branch.set("this", _compared(equal))
        node = searched
    return shared_rules.RULES["Case"](node)


def _extremes(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.this, *node.expressions], named(node))
    return shared_rules.RULES["Coalesce"](node)


def _nullif(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.this, node.expression], "NULLIF")
    return shared_rules.RULES["Nullif"](node)


def _order(node: exp.Expr) -> exp.Expr:
    return nan.sorted_below(shared_rules.RULES["Order"](node), is_nan)


def _list_item(node: exp.Expr) -> exp.Expr:
    return call("list_extract", node.this, shared_rules.place_in_list(node))


RULES: dict[str, Rule] = {
    **shared_rules.RULES,
    **spreading(
        {
            "Avg": _average, "Max": _most, "Min": _most,
            "ApproxDistinct": trino_aggregates.distinct,
            "ApproxQuantile": trino_aggregates.percentile,
        },
        shared_rules.RULES["Window"],
    ),
    **dict.fromkeys(_COMPARISONS, _compared),
    **dict.fromkeys(("Floor", "Ceil"), _whole),
    **dict.fromkeys(("Add", "Sub"), _moved),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _truncated),
    **dict.fromkeys(("Cast", "TryCast"), trino_casts.convert),
    **dict.fromkeys(("Concat", "DPipe"), _concat),
    **dict.fromkeys(("Case", "If"), _case),
    **dict.fromkeys(("Greatest", "Least"), _extremes),
    "ArrayAgg": trino_aggregates.listed, "Mul": _multiplied, "UnixToTime": _from_seconds,
    "ConcatWs": _joined, "RegexpReplace": trino_patterns.replaced,
    "RegexpExtract": trino_patterns.extracted,
    "Div": _divided, "Round": _rounded, "DateAdd": _later, "DateDiff": _difference,
    "Extract": _extracted, "Date": trino_casts.to_date, "Upper": _upper, "Lower": _of_text,
    "Length": _of_text,
    "ArraySize": _size, "Like": _like, "Escape": text_rules.escape,
    "RegexpLike": trino_patterns.matched,
    "Substring": text_rules.substring, "Trim": _trimmed, "StrPosition": text_rules.position,
    "Replace": text_rules.replaced, "TimeToStr": _formatted, "Sum": _summed,
    "Mod": _remainder, "Between": _between, "In": _within, "Nullif": _nullif,
    "Bracket": _list_item, "Order": _order,
}  # fmt: skip
