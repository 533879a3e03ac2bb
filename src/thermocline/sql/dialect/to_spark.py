"""Translate DuckDB's SQL to Spark's (ANSI mode, session in UTC, decimals without loss).

Every rule was verified on both engines: a construct that is not in `UNCHANGED` or `RULES` differs,
or has not been compared yet.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, TIMES, T, family, with_type
from thermocline.sql.dialect import rewrite, shared_rules, signed_zero, text_rules
from thermocline.sql.dialect.decimal_division import split_decimal_average
from thermocline.sql.dialect.letter_case import rewrite_lower_for_spark, rewrite_upper_for_spark
from thermocline.sql.dialect.rewrite import Rule, call, cast, parenthesize, refuse_translation
from thermocline.sql.dialect.shared_rules import require_family
from thermocline.sql.dialect.text_rules import text_literal

UNCHANGED = shared_rules.UNCHANGED | {"PercentRank", "CumeDist", "Ntile"}


def _rewrite_division(node: exp.Expr) -> exp.Expr:
    """Rewrite `/` of doubles: ANSI mode fails for a zero divisor; here zeros have no sign."""
    assert isinstance(node, exp.Div)
    require_family(node.left, *NUMBERS, of=node)
    require_family(node.right, *NUMBERS, of=node)
    if rewrite.integer_value(node.right):
        divisor = cast(node.right, T.DOUBLE)
        return exp.Div(this=cast(node.left, T.DOUBLE), expression=divisor, typed=True)
    left, right = cast(node.left, T.DOUBLE), cast(node.right, T.DOUBLE)
    # Only a division by zero returns null; and a negative power of 0 is infinity, not an error.
    unsigned = cast(signed_zero.remove_zero_sign(node.right.copy()), T.DOUBLE)
    power = call("POWER", unsigned, exp.Literal.number(-1))
    by_zero = exp.Mul(this=left.copy(), expression=power)
    quotient = call("TRY_DIVIDE", left, right)
    return with_type(exp.Coalesce(this=quotient, expressions=[by_zero]), T.DOUBLE)


def _rewrite_integer_division(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.IntDiv)
    require_family(node.left, "integer", of=node)
    require_family(node.right, "integer", of=node)
    divisor = exp.Nullif(this=node.right, expression=exp.Literal.number(0))
    return with_type(exp.IntDiv(this=parenthesize(node.left), expression=divisor), T.BIGINT)


def _rewrite_remainder(node: exp.Expr) -> exp.Expr:
    """Rewrite `%`: DuckDB returns null for a zero divisor, or NaN for doubles."""
    assert isinstance(node, exp.Mod)
    require_family(node.left, "integer", "decimal", of=node)
    require_family(node.right, "integer", "decimal", of=node)
    divisor = exp.Nullif(this=node.right, expression=exp.Literal.number(0))
    return exp.Mod(this=parenthesize(node.left), expression=divisor)


def _rewrite_anonymous(node: exp.Expr) -> exp.Expr:
    """Rewrite functions unknown to the parser: the bytes of a text, and `error`."""
    if node.name.lower() in text_rules.BYTE_COUNT_FUNCTIONS:
        return call("OCTET_LENGTH", text_rules.byte_count_argument(node), kind=T.BIGINT)
    if node.name != "error":
        refuse_translation(rewrite.construct_name(node))
    return call("raise_error", *node.expressions, kind=node.type)


_COMPARISONS = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ", "Between", "In")


def _rewrite_comparison(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.In) and node.args.get("query") and not _is_condition(node):
        refuse_translation("IN of a subquery as a value", "Spark returns false instead of null")
    node = shared_rules.RULES[type(node).__name__](node)
    for side in (node.this, node.args.get("expression")):
        if side is not None:
            side.replace(_force_spark_read(side))
    return node


def _is_condition(node: exp.Expr) -> bool:
    """Return whether only the truth of a value matters, so that null is equivalent to false.

    Spark pushes a surrounding NOT down to it.
    """
    held: exp.Expr | None = node
    while held is not None and isinstance(held.parent, exp.Connector | exp.Not | exp.Paren):
        held = held.parent
    if held is None or isinstance(held.parent, exp.If):
        return held is not None and held.arg_key == "this"
    return isinstance(held.parent, exp.Where | exp.Having | exp.Join | exp.Qualify)


def _force_spark_read(node: exp.Expr) -> exp.Expr:
    """Wrap a value so that Spark evaluates the predicate instead of pushing it to Iceberg.

    Iceberg's minimum and maximum of a float column ignore NaN, and order -0.0 below 0.0. Pruning
    and MAX by these statistics would be wrong. They do not apply to a sum.
    """
    return (
        signed_zero.remove_zero_sign(node.copy())
        if isinstance(node, exp.Column | exp.Dot)
        else node
    )


def _rewrite_addition(node: exp.Expr) -> exp.Expr:
    return shared_rules.rewrite_addition(node, _count_days)


def _count_days(end: exp.Expr, start: exp.Expr) -> exp.Expr:
    return cast(call("DATEDIFF", end, start), T.BIGINT)


def _rewrite_floor(node: exp.Expr) -> exp.Expr:
    """Rewrite FLOOR and CEIL: Spark returns an integer for doubles, without NaN and up to 2^63."""
    if family(node.this) == "integer":
        return cast(node.this, T.DOUBLE)
    require_family(node.this, "decimal", of=node)
    return node


def _rewrite_round(node: exp.Expr) -> exp.Expr:
    """Rewrite ROUND: Spark rounds the printed digits of a double, DuckDB its exact value."""
    digits = node.args.get("decimals")
    if digits is not None and rewrite.integer_value(digits) is None:
        refuse_translation("ROUND to digits that are not a constant")
    require_family(node.this, *NUMBERS, of=node)
    if family(node.this) != "double" or digits is None:
        return node
    factor = cast(exp.Literal.number(10 ** abs(rewrite.integer_value(digits) or 0)), T.DOUBLE)
    if (rewrite.integer_value(digits) or 0) < 0:
        refuse_translation("ROUND of a double to negative digits")
    up = exp.Round(this=exp.Mul(this=parenthesize(node.this), expression=factor))
    return with_type(exp.paren(exp.Div(this=up, expression=factor.copy(), typed=True)), T.DOUBLE)


def _rewrite_cast(node: exp.Expr) -> exp.Expr:
    match shared_rules.cast_families(node):
        case "text", "text" | "null" | "integer" | "decimal" | "boolean" | "date" | "timestamp":
            return cast(node.this, T.TEXT)
        case "integer", "decimal":
            node.set("this", exp.Round(this=node.this))
            return node
        case "integer", "double":
            node.set("this", call("RINT", node.this))
            return node
        case _:
            return shared_rules.rewrite_cast(node)


def _rewrite_length(node: exp.Expr) -> exp.Expr:
    if family(node.this) == "list":
        return cast(call("SIZE", node.this), T.BIGINT)
    require_family(node.this, "text", of=node)
    return cast(call("CHAR_LENGTH", node.this), T.BIGINT)


def _rewrite_like(node: exp.Expr) -> exp.Expr:
    """Rewrite LIKE: without ESCAPE, Spark uses the backslash, DuckDB no escape character."""
    require_family(node.this, "text", of=node)
    pattern = shared_rules.like_pattern(node)
    if pattern is None:
        refuse_translation(f"{rewrite.construct_name(node)} with a pattern that is not a constant")
    escaped = isinstance(node.parent, exp.Escape)
    if isinstance(node, exp.ILike):
        if any(letter in pattern for letter in "İΣς"):
            refuse_translation("ILIKE with letters whose case differs between engines")
        pattern, negate = pattern.lower(), node.args.get("negate")
        node = exp.Like(
            this=rewrite_lower_for_spark(exp.Lower(this=node.this)),
            expression=text_literal(pattern),
            negate=negate,
        )
    if "\\" not in pattern or escaped:
        return node
    mark = next((char for char in "!#~^|@" if char not in pattern), None)
    if mark is None:
        refuse_translation("LIKE with a backslash and too many other special characters")
    return exp.Escape(this=node.copy(), expression=text_literal(mark))


def _rewrite_position(node: exp.Expr) -> exp.Expr:
    node = text_rules.check_position(node)
    return cast(call("LOCATE", node.args["substr"], node.this), T.BIGINT)


def _rewrite_time_part(node: exp.Expr) -> exp.Expr:
    """Rewrite a part of a time. Spark counts weekdays from Sunday as 1, and returns INT."""
    require_family(node.this, *TIMES, of=node)
    kind = type(node).__name__
    match kind:
        case "DayOfWeek":
            found: exp.Expr = exp.Sub(
                this=call("DAYOFWEEK", node.this), expression=exp.Literal.number(1)
            )
        case "DayOfWeekIso":
            found = exp.Add(this=call("WEEKDAY", node.this), expression=exp.Literal.number(1))
        case "Week" | "WeekOfYear":
            found = call("WEEKOFYEAR", node.this)
        case "DayOfMonth" | "DayOfYear":
            found = call(kind.upper(), node.this)
        case _:
            found = call(kind.upper(), node.this)
    return cast(found, T.BIGINT)


_PARTS = {
    "YEAR": exp.Year, "MONTH": exp.Month, "DAY": exp.Day, "HOUR": exp.Hour, "MINUTE": exp.Minute,
    "SECOND": exp.Second, "QUARTER": exp.Quarter, "DOW": exp.DayOfWeek, "DAYOFWEEK": exp.DayOfWeek,
    "ISODOW": exp.DayOfWeekIso, "WEEK": exp.Week, "DOY": exp.DayOfYear, "DAYOFYEAR": exp.DayOfYear,
}  # fmt: skip


def _rewrite_extract(node: exp.Expr) -> exp.Expr:
    part = node.name.upper()
    if part == "EPOCH":
        return _rewrite_epoch(exp.TimeToUnix(this=node.expression))
    if part not in _PARTS:
        refuse_translation(f"EXTRACT of {part.lower()}")
    return _rewrite_time_part(_PARTS[part](this=node.expression))


def _rewrite_epoch(node: exp.Expr) -> exp.Expr:
    require_family(node.this, *TIMES, of=node)
    micros = cast(call("UNIX_MICROS", cast(node.this, T.TIMESTAMPTZ)), T.DOUBLE)
    million = cast(exp.Literal.number(1_000_000), T.DOUBLE)
    return with_type(exp.paren(exp.Div(this=micros, expression=million, typed=True)), T.DOUBLE)


def _rewrite_truncation(node: exp.Expr) -> exp.Expr:
    """Rewrite DATE_TRUNC: Spark always returns a time with a zone."""
    require_family(node.this, *TIMES, of=node)
    of = family(node.this)
    found = call("DATE_TRUNC", text_literal(shared_rules.time_unit(node)), node.this)
    return with_type(found, T.TIMESTAMPTZ) if of == "timestamptz" else cast(found, T.TIMESTAMPNTZ)


def _rewrite_date_diff(node: exp.Expr) -> exp.Expr:
    """Rewrite DATE_DIFF, which counts unit boundaries; Spark's counts whole units."""
    require_family(node.this, *TIMES, of=node)
    require_family(node.expression, *TIMES, of=node)
    end, start = node.this, node.expression
    match shared_rules.time_unit(node):
        case "DAY":
            return _count_days(cast(end, T.DATE), cast(start, T.DATE))
        case "YEAR":
            years = exp.Sub(this=call("YEAR", end), expression=call("YEAR", start))
            return cast(years, T.BIGINT)
        case "MONTH":
            months = [
                exp.Add(
                    this=exp.Mul(this=call("YEAR", each), expression=exp.Literal.number(12)),
                    expression=call("MONTH", each.copy()),
                )
                for each in (end, start)
            ]
            return cast(
                exp.Sub(this=exp.paren(months[0]), expression=exp.paren(months[1])), T.BIGINT
            )
        case "HOUR" | "MINUTE" | "SECOND" as unit:
            seconds = [
                call(
                    "UNIX_SECONDS",
                    call("DATE_TRUNC", text_literal(unit), cast(each, T.TIMESTAMPTZ)),
                )
                for each in (end, start)
            ]
            size = {"HOUR": 3600, "MINUTE": 60, "SECOND": 1}[unit]
            apart = exp.paren(exp.Sub(this=seconds[0], expression=seconds[1]))
            units = exp.IntDiv(this=apart, expression=exp.Literal.number(size))
            return with_type(exp.paren(units), T.BIGINT)
        case unit:
            return refuse_translation(f"DATE_DIFF by {unit.lower()}")


def _rewrite_min_max(node: exp.Expr) -> exp.Expr:
    if family(node.this) in {"list", "struct", "map", "unknown"}:
        refuse_translation(f"{rewrite.construct_name(node)} of {family(node.this)}")
    if node.expressions:
        refuse_translation(f"{rewrite.construct_name(node)} of several values")
    node.set("this", _force_spark_read(node.this))
    return node


def _check_sum(node: exp.Expr) -> exp.Expr:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    require_family(of, *NUMBERS, "real", of=node)
    return node


def _rewrite_average(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """Rewrite an aggregate of decimals: DuckDB returns a double, Spark a decimal."""
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    require_family(of, *NUMBERS, "real", of=node)
    if family(of) != "decimal":
        return None
    return call("TRY_DIVIDE", *split_decimal_average(node.this, of, place), kind=T.DOUBLE)


def _check_median(node: exp.Expr) -> exp.Expr:
    require_family(node.this, "integer", "double", of=node)
    return node


def _check_group(node: exp.Expr) -> exp.Expr:
    """Refuse grouping sets with a total: for no rows Spark returns no total."""
    if node.expressions and all(_holds_total(each) for each in node.expressions):
        refuse_translation(
            "ROLLUP, CUBE or the grouping set ()", "Spark returns no total for no rows"
        )
    return shared_rules.RULES["Group"](node)


def _holds_total(node: exp.Expr) -> bool:
    """Return whether one of the grouping sets is empty."""
    if isinstance(node, exp.GroupingSets):
        return any(_holds_total(each) for each in node.expressions)
    empty = isinstance(node, exp.Tuple) and not node.expressions
    return empty or isinstance(node, exp.Rollup | exp.Cube)


def _check_string_agg(node: exp.Expr) -> exp.Expr:
    """Check STRING_AGG: Spark 4.1 cannot plan it next to a DISTINCT aggregate."""
    select = node.find_ancestor(exp.Select)
    distinct = [] if select is None else select.find_all(exp.Distinct)
    if any(isinstance(each.parent, exp.AggFunc) for each in distinct):
        refuse_translation("STRING_AGG next to an aggregate of DISTINCT values")
    return text_rules.check_string_agg(node)


def _rewrite_quantile(node: exp.Expr) -> exp.Expr:
    """Rewrite QUANTILE_CONT of integers: engines interpolate floats differently."""
    require_family(node.this, "integer", of=node)
    at = node.expression
    if not (isinstance(at, exp.Literal) and not at.is_string):
        refuse_translation("QUANTILE_CONT with a fraction that is not a constant")
    return call("PERCENTILE", node.this, at, kind=T.DOUBLE)


def _rewrite_list_element(node: exp.Expr) -> exp.Expr:
    return call("TRY_ELEMENT_AT", node.this, shared_rules.list_index(node))


def _check_greatest_least(node: exp.Expr) -> exp.Expr:
    if not node.args.get("ignore_nulls"):
        refuse_translation(rewrite.construct_name(node), "nulls")
    found = [node.this, *node.expressions]
    if {family(each) for each in found} - NUMBERS - TIMES - {"text"}:
        refuse_translation(rewrite.construct_name(node))
    rewrite.require_same_family(found, rewrite.construct_name(node))
    return node


RULES: dict[str, Rule] = {
    **shared_rules.RULES,
    **rewrite.build_aggregate_rules({"Avg": _rewrite_average}, shared_rules.RULES["Window"]),
    **dict.fromkeys(_COMPARISONS, _rewrite_comparison),
    **dict.fromkeys(("Add", "Sub"), _rewrite_addition),
    **dict.fromkeys(("Floor", "Ceil"), _rewrite_floor),
    **dict.fromkeys(("Cast", "TryCast"), _rewrite_cast),
    **dict.fromkeys(("Like", "ILike"), _rewrite_like),
    **dict.fromkeys(("Left", "Right"), text_rules.check_left_right),
    **dict.fromkeys(("Min", "Max"), _rewrite_min_max),
    **dict.fromkeys(("Year", "Month", "Day", "Hour", "Minute", "Second", "Quarter", "DayOfWeek",
                     "DayOfWeekIso", "Week", "WeekOfYear", "DayOfYear", "DayOfMonth"),
                    _rewrite_time_part),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _rewrite_truncation),
    **dict.fromkeys(("Greatest", "Least"), _check_greatest_least),
    "Anonymous": _rewrite_anonymous,
    "Div": _rewrite_division, "Pow": signed_zero.rewrite_power,
    "IntDiv": _rewrite_integer_division, "Mod": _rewrite_remainder,
    "Round": _rewrite_round, "Length": _rewrite_length, "Lower": rewrite_lower_for_spark,
    "Upper": rewrite_upper_for_spark,
    "Escape": text_rules.check_escape, "RegexpLike": text_rules.check_regexp,
    "Substring": text_rules.check_substring,
    "Trim": text_rules.check_trim, "StrPosition": _rewrite_position,
    "Replace": text_rules.check_replace,
    "SplitPart": text_rules.check_split_part, "Extract": _rewrite_extract,
    "TimeToUnix": _rewrite_epoch,
    "DateDiff": _rewrite_date_diff,
    **dict.fromkeys(("Contains", "EndsWith"), text_rules.check_containment),
    "RegexpReplace": text_rules.rewrite_regexp_replace, "GroupConcat": _check_string_agg,
    "Group": _check_group,
    "PercentileCont": _rewrite_quantile,
    "Sum": _check_sum, "Median": _check_median, "Bracket": _rewrite_list_element,
    "ArraySize": _rewrite_length,
}  # fmt: skip
