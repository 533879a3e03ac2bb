"""Translate Trino's SQL to DuckDB's.

Types in the tree are Trino's. The result is DuckDB's SQL, which either DuckDB runs, or `to_spark`
translates for Spark.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import (
    NUMBERS,
    TIMES,
    T,
    decimal_type,
    family,
    scale,
    with_type,
)
from thermocline.sql.dialect import (
    nan,
    rewrite,
    shared_rules,
    text_rules,
    trino_aggregates,
    trino_casts,
    trino_patterns,
)
from thermocline.sql.dialect.decimal_division import divide_decimals
from thermocline.sql.dialect.rewrite import Rule, call, cast, parenthesize, refuse_translation
from thermocline.sql.dialect.shared_rules import require_family
from thermocline.sql.dialect.text_rules import text_literal
from thermocline.sql.guard import DIVISION_BY_ZERO

UNCHANGED = shared_rules.UNCHANGED | {
    "PercentRank", "CumeDist", "Ntile", "Year", "Month", "Day", "Hour", "Minute", "Second",
    "Quarter", "WeekOfYear", "DayOfYear", "DayOfMonth", "DayOfWeekIso", "LastDay", "TimeToUnix",
    "AnyValue", "Grouping",
}  # fmt: skip
_COMPARISONS = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ")
_PORTABLE_FORMATS = frozenset({"%Y", "%m", "%d", "%H", "%M", "%S"})


def build_nan_test(node: exp.Expr) -> exp.Expr:
    """Return DuckDB's test for NaN."""
    return with_type(exp.IsNan(this=node.copy()), T.BOOLEAN)


def _rewrite_comparison(node: exp.Expr) -> exp.Expr:
    return nan.compare_nan_as_ieee(node, build_nan_test)


def _fail_on_zero(node: exp.Expr) -> exp.Expr:
    """Make a zero divisor fail the query, as in Trino; DuckDB returns null."""
    if rewrite.integer_value(node):
        return node
    zero = exp.EQ(this=parenthesize(node.copy()), expression=exp.Literal.number(0))
    failing = call("error", text_literal(DIVISION_BY_ZERO), kind=node.type)
    guarded = exp.Case(ifs=[exp.If(this=zero, true=failing)], default=node.copy())
    return with_type(exp.paren(guarded), node.type or T.UNKNOWN)


def _rewrite_division(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.Div)
    left, right = family(node.left), family(node.right)
    require_family(node.left, *NUMBERS, of=node)
    require_family(node.right, *NUMBERS, of=node)
    if "double" in {left, right}:
        return with_type(exp.Div(this=node.left, expression=node.right, typed=False), T.DOUBLE)
    if (left, right) == ("integer", "integer"):
        return with_type(
            exp.IntDiv(this=parenthesize(node.left), expression=_fail_on_zero(node.right)), T.BIGINT
        )
    return divide_decimals(node.left, _fail_on_zero(node.right))


def _rewrite_average(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    require_family(of, *NUMBERS, of=node)
    if family(of) != "decimal":
        return None
    digits = scale(of)
    if digits is None:
        refuse_translation("AVG of decimals of unknown precision")
    total = place(with_type(exp.Sum(this=node.this.copy()), decimal_type(38, digits)))
    count = place(with_type(exp.Count(this=node.this.copy()), T.BIGINT))
    total.type, count.type = decimal_type(38, digits), exp.DataType(this=T.BIGINT)
    return divide_decimals(total, count, digits)


def _rewrite_min_max(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """Ignore NaN unless there is no other value, as Trino does."""
    if family(node.this) in {"list", "struct", "map", "unknown"} or node.expressions:
        refuse_translation(f"{rewrite.construct_name(node)} of {family(node.this)}")
    if not (isinstance(node, exp.Max) and nan.may_be_nan(node.this)):
        return None
    others = exp.Case(ifs=[exp.If(this=exp.not_(build_nan_test(node.this)), true=node.this.copy())])
    return exp.Coalesce(
        this=place(exp.Max(this=others)), expressions=[place(exp.Max(this=node.this.copy()))]
    )


def _rewrite_floor(node: exp.Expr) -> exp.Expr:
    require_family(node.this, *NUMBERS, of=node)
    return node.this if family(node.this) == "integer" else node


def _rewrite_round(node: exp.Expr) -> exp.Expr:
    if shared_rules.round_digits(node) is None or family(node.this) != "decimal":
        return node
    kept = scale(node.this)
    if kept is None:
        refuse_translation("ROUND of a decimal of unknown precision")
    return cast(node.copy(), decimal_type(38, kept))


def _rewrite_addition(node: exp.Expr) -> exp.Expr:
    """Keep the type date for a date plus an interval, as Trino does."""
    if (
        isinstance(node, exp.Add)
        and family(node.left) == "interval"
        and family(node.right) in TIMES
    ):
        node = with_type(exp.Add(this=node.right, expression=node.left), node.type or T.UNKNOWN)
    left, right = shared_rules.addition_families(node)
    if left == "date" and right != "interval":
        refuse_translation(f"{rewrite.construct_name(node)} of {left} and {right}")
    if left != "date":
        return node
    return cast(node.copy(), T.DATE)


def _rewrite_multiplication(node: exp.Expr) -> exp.Expr:
    """Rewrite a product of numbers, or of an interval and a number."""
    assert isinstance(node, exp.Binary)
    if {family(node.left), family(node.right)} == {"interval", "integer"}:
        return node
    return shared_rules.RULES["Mul"](node)


def _rewrite_from_unixtime(node: exp.Expr) -> exp.Expr:
    """Rewrite FROM_UNIXTIME, to the millisecond."""
    require_family(node.this, *NUMBERS, of=node)
    if any(node.args.get(other) for other in ("zone", "hours", "minutes", "scale", "format")):
        refuse_translation("FROM_UNIXTIME with a zone")
    thousand = exp.Literal.number("1000e0")
    later = exp.Add(
        this=exp.Mul(this=parenthesize(node.this), expression=thousand),
        expression=exp.Literal.number("0.5e0"),
    )
    whole = cast(call("floor", later, kind=T.DOUBLE), T.BIGINT)
    return cast(call("epoch_ms", whole, kind=T.TIMESTAMPNTZ), T.TIMESTAMPTZ)


def _rewrite_concat_ws(node: exp.Expr) -> exp.Expr:
    """Rewrite CONCAT_WS: both engines skip nulls, and return null for a null separator."""
    for each in node.expressions:
        require_family(each, "text", of=node)
    return call("concat_ws", *node.expressions, kind=T.TEXT)


def _rewrite_date_add(node: exp.Expr) -> exp.Expr:
    """Rewrite DATE_ADD of an integer literal."""
    require_family(node.this, *TIMES, of=node)
    count = rewrite.integer_value(node.expression)
    if count is None:
        refuse_translation("DATE_ADD with a count that is not a constant")
    unit = shared_rules.time_unit(node)
    found = exp.Add(
        this=parenthesize(node.this),
        expression=exp.Interval(this=exp.Literal.string(str(count)), unit=exp.Var(this=unit)),
    )
    of = family(node.this)
    if of == "date":
        return cast(found, T.DATE)
    return with_type(exp.paren(found), T.TIMESTAMPTZ if of == "timestamptz" else T.TIMESTAMPNTZ)


def _rewrite_date_diff(node: exp.Expr) -> exp.Expr:
    """Rewrite DATE_DIFF, which counts whole units; DuckDB's counts unit boundaries.

    Trino ignores digits below a millisecond in both times.
    """
    unit = shared_rules.time_unit(node).lower()
    if unit not in {"day", "hour", "minute", "second"}:
        refuse_translation(f"DATE_DIFF by {unit}")
    families = {family(node.this), family(node.expression)}
    if len(families) != 1 or not families <= TIMES:
        refuse_translation(f"DATE_DIFF of {' and '.join(sorted(families))}")
    ends = [node.expression, node.this]
    if "date" not in families:
        ends = [call("date_trunc", text_literal("millisecond"), end) for end in ends]
    return call("date_sub", text_literal(unit), *ends, kind=T.BIGINT)


def _rewrite_truncation(node: exp.Expr) -> exp.Expr:
    require_family(node.this, *TIMES, of=node)
    shared_rules.time_unit(node)
    return cast(node.copy(), T.DATE) if family(node.this) == "date" else node


def _rewrite_extract(node: exp.Expr) -> exp.Expr:
    part = node.name.upper()
    require_family(node.expression, *TIMES, of=node)
    if part in {"DOW", "DAYOFWEEK", "DAY_OF_WEEK"}:
        return with_type(exp.DayOfWeekIso(this=node.expression), T.BIGINT)
    if part not in {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOY", "HOUR", "MINUTE", "SECOND"}:
        refuse_translation(f"EXTRACT of {part.lower()}")
    return node


def _rewrite_upper(node: exp.Expr) -> exp.Expr:
    """Upper-case the text between ß: only DuckDB has an upper-case ß."""
    require_family(node.this, "text", of=node)
    parts = call("string_split", node.this, text_literal("ß"))
    upper = call("upper", exp.column("part"))
    each = exp.Lambda(this=upper, expressions=[exp.to_identifier("part")])
    return call(
        "array_to_string", call("list_transform", parts, each), text_literal("ß"), kind=T.TEXT
    )


def _check_text_argument(node: exp.Expr) -> exp.Expr:
    require_family(node.this, "text", of=node)
    return node


def _rewrite_array_size(node: exp.Expr) -> exp.Expr:
    require_family(node.this, "list", of=node)
    return call("len", node.this, kind=T.BIGINT)


def _check_like(node: exp.Expr) -> exp.Expr:
    require_family(node.this, "text", of=node)
    require_family(node.expression, "text", of=node)
    return node


def _check_trim(node: exp.Expr) -> exp.Expr:
    """Rewrite TRIM: Trino removes all white space, DuckDB spaces; both accept a character set."""
    require_family(node.this, "text", of=node)
    if not node.args.get("expression"):
        refuse_translation("TRIM without a set of characters")
    return node


def _check_concat(node: exp.Expr) -> exp.Expr:
    for each in node.expressions or [node.this, node.args.get("expression")]:
        require_family(each, "text", of=node)
    return node


def _rewrite_date_format(node: exp.Expr) -> exp.Expr:
    """Rewrite DATE_FORMAT: Trino rounds a time to milliseconds before it formats it."""
    require_family(node.this, *TIMES, of=node)
    pattern = node.args.get("format")
    words = pattern.name if isinstance(pattern, exp.Literal) else "%"
    parts = {words[at : at + 2] for at in range(len(words)) if words[at] == "%"}
    if not parts <= _PORTABLE_FORMATS:
        refuse_translation("DATE_FORMAT with codes other than %Y %m %d %H %i %s")
    of = family(node.this)
    if of != "date":
        kind = T.TIMESTAMPTZ if of == "timestamptz" else T.TIMESTAMPNTZ
        node.set("this", trino_casts.round_time(node.this, 3, kind))
    return node


def _check_sum(node: exp.Expr) -> exp.Expr:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    require_family(of, *NUMBERS, of=node)
    return node


def _rewrite_remainder(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.Binary)
    require_family(node.left, "integer", "decimal", of=node)
    require_family(node.right, "integer", "decimal", of=node)
    node.set("expression", _fail_on_zero(node.right))
    return node


def _rewrite_between(node: exp.Expr) -> exp.Expr:
    nan.refuse_fractions(node, [node.this, node.args["low"], node.args["high"]], "BETWEEN")
    return rewrite.rewrite_between(node)


def _rewrite_in(node: exp.Expr) -> exp.Expr:
    nan.refuse_fractions(node, [node.this], "IN")
    return rewrite.rewrite_in(node)


def _rewrite_case(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Case) and node.this is not None and family(node.this) in nan.FRACTIONS:
        searched = node.copy()
        value = searched.this
        searched.set("this", None)
        for branch in searched.args["ifs"]:
            if branch.this == value:
                refuse_translation("CASE x WHEN x", "Trino treats it as true, even for NaN")
            sides = (with_type(exp.paren(each.copy()), each.type) for each in (value, branch.this))
            equal = exp.EQ(this=next(sides), expression=next(sides))
            branch.set("this", _rewrite_comparison(equal))
        node = searched
    return shared_rules.RULES["Case"](node)


def _check_greatest_least(node: exp.Expr) -> exp.Expr:
    nan.refuse_fractions(node, [node.this, *node.expressions], rewrite.construct_name(node))
    return shared_rules.RULES["Coalesce"](node)


def _check_nullif(node: exp.Expr) -> exp.Expr:
    nan.refuse_fractions(node, [node.this, node.expression], "NULLIF")
    return shared_rules.RULES["Nullif"](node)


def _rewrite_order(node: exp.Expr) -> exp.Expr:
    return nan.sort_nan_as_trino(shared_rules.RULES["Order"](node), build_nan_test)


def _rewrite_list_element(node: exp.Expr) -> exp.Expr:
    return call("list_extract", node.this, shared_rules.list_index(node))


RULES: dict[str, Rule] = {
    **shared_rules.RULES,
    **rewrite.build_aggregate_rules(
        {
            "Avg": _rewrite_average, "Max": _rewrite_min_max, "Min": _rewrite_min_max,
            "ApproxDistinct": trino_aggregates.rewrite_approx_distinct,
            "ApproxQuantile": trino_aggregates.rewrite_approx_percentile,
        },
        shared_rules.RULES["Window"],
    ),
    **dict.fromkeys(_COMPARISONS, _rewrite_comparison),
    **dict.fromkeys(("Floor", "Ceil"), _rewrite_floor),
    **dict.fromkeys(("Add", "Sub"), _rewrite_addition),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _rewrite_truncation),
    **dict.fromkeys(("Cast", "TryCast"), trino_casts.rewrite_cast),
    **dict.fromkeys(("Concat", "DPipe"), _check_concat),
    **dict.fromkeys(("Case", "If"), _rewrite_case),
    **dict.fromkeys(("Greatest", "Least"), _check_greatest_least),
    "ArrayAgg": trino_aggregates.rewrite_array_agg, "Mul": _rewrite_multiplication,
    "UnixToTime": _rewrite_from_unixtime,
    "ConcatWs": _rewrite_concat_ws, "RegexpReplace": trino_patterns.rewrite_regexp_replace,
    "RegexpExtract": trino_patterns.rewrite_regexp_extract,
    "Div": _rewrite_division, "Round": _rewrite_round, "DateAdd": _rewrite_date_add,
    "DateDiff": _rewrite_date_diff,
    "Extract": _rewrite_extract, "Date": trino_casts.rewrite_date, "Upper": _rewrite_upper,
    "Lower": _check_text_argument,
    "Length": _check_text_argument,
    "ArraySize": _rewrite_array_size, "Like": _check_like, "Escape": text_rules.check_escape,
    "RegexpLike": trino_patterns.rewrite_regexp_like,
    "Substring": text_rules.check_substring, "Trim": _check_trim,
    "StrPosition": text_rules.check_position,
    "Replace": text_rules.check_replace, "TimeToStr": _rewrite_date_format, "Sum": _check_sum,
    "Mod": _rewrite_remainder, "Between": _rewrite_between, "In": _rewrite_in,
    "Nullif": _check_nullif,
    "Bracket": _rewrite_list_element, "Order": _rewrite_order,
}  # fmt: skip
