"""Translate DuckDB's SQL to Trino's (session in UTC).

Every rule was verified on both engines: a construct that is not in `UNCHANGED` or `RULES` differs,
or has not been compared yet.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, T, decimal_type, family, with_type
from thermocline.sql.dialect import nan, rewrite, shared_rules, signed_zero, text_rules, trino_times
from thermocline.sql.dialect.decimal_division import split_decimal_average
from thermocline.sql.dialect.letter_case import rewrite_lower_for_trino, rewrite_upper_for_trino
from thermocline.sql.dialect.rewrite import Rule, call, cast, parenthesize, refuse_translation
from thermocline.sql.dialect.shared_rules import require_family
from thermocline.sql.dialect.text_rules import text_literal

UNCHANGED = shared_rules.UNCHANGED | {"PercentRank", "CumeDist", "Ntile"}
_GROUPING_NODES = (exp.Column, exp.GroupingSets, exp.Rollup, exp.Cube)
_COMPARISONS = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ")


def set_time_precision(tree: exp.Query) -> exp.Query:
    """Set the precision of times to microseconds; by default Trino's TIMESTAMP has milliseconds."""
    for kind in tree.find_all(exp.DataType):
        if kind.this in (T.TIMESTAMP, T.TIMESTAMPNTZ, T.TIMESTAMPTZ):
            if kind.this == T.TIMESTAMPNTZ:
                kind.set("this", T.TIMESTAMP)
            kind.set("expressions", [exp.DataTypeParam(this=exp.Literal.number(6))])
    return tree


def build_nan_test(node: exp.Expr) -> exp.Expr:
    """Return Trino's test for NaN."""
    return call("IS_NAN", node.copy(), kind=T.BOOLEAN)


def _rewrite_anonymous(node: exp.Expr) -> exp.Expr:
    """Rewrite functions unknown to the parser: the bytes of a text."""
    if node.name.lower() not in text_rules.BYTE_COUNT_FUNCTIONS:
        refuse_translation(rewrite.construct_name(node))
    return call("LENGTH", call("TO_UTF8", text_rules.byte_count_argument(node)), kind=T.BIGINT)


def _rewrite_comparison(node: exp.Expr) -> exp.Expr:
    return nan.compare_nan_as_largest(node, build_nan_test)


def _rewrite_division(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.Div)
    require_family(node.left, *NUMBERS, of=node)
    require_family(node.right, *NUMBERS, of=node)
    left, right = (
        cast(node.left, T.DOUBLE),
        cast(signed_zero.remove_zero_sign(node.right), T.DOUBLE),
    )
    return with_type(exp.Div(this=left, expression=right, typed=True, safe=False), T.DOUBLE)


def _rewrite_integer_division(node: exp.Expr) -> exp.Expr:
    """Rewrite `//` and `%`: null where Trino fails. Trino's `/` of integers is `//`."""
    assert isinstance(node, exp.Binary)
    families = ("integer",) if isinstance(node, exp.IntDiv) else ("integer", "decimal")
    require_family(node.left, *families, of=node)
    require_family(node.right, *families, of=node)
    divisor = parenthesize(node.right)
    if not rewrite.integer_value(node.right):
        divisor = exp.Nullif(this=node.right, expression=exp.Literal.number(0))
    if isinstance(node, exp.IntDiv):
        left = parenthesize(node.left)
        return exp.Div(this=left, expression=divisor, typed=True, safe=False)
    return exp.Mod(this=parenthesize(node.left), expression=divisor)


def _rewrite_floor(node: exp.Expr) -> exp.Expr:
    if family(node.this) == "integer":
        return cast(node.this, T.DOUBLE)
    require_family(node.this, "decimal", "double", of=node)
    return node


def _rewrite_round(node: exp.Expr) -> exp.Expr:
    """Rewrite ROUND: Trino keeps the rounded digits as zeros."""
    places = shared_rules.round_digits(node)
    if places is None or family(node.this) != "decimal":
        return node
    return cast(node.copy(), decimal_type(38, places))


def _rewrite_cast(node: exp.Expr) -> exp.Expr:
    match shared_rules.cast_families(node):
        case "text", "text" | "null" | "integer" | "decimal" | "boolean" | "date":
            return cast(node.this, T.VARCHAR)
        case "integer", "decimal":
            return node
        case _:
            return shared_rules.rewrite_cast(node)


def _rewrite_length(node: exp.Expr) -> exp.Expr:
    if family(node.this) == "list":
        return call("CARDINALITY", node.this, kind=T.BIGINT)
    require_family(node.this, "text", of=node)
    return node


def _rewrite_like(node: exp.Expr) -> exp.Expr:
    require_family(node.this, "text", of=node)
    require_family(node.expression, "text", of=node)
    if isinstance(node, exp.ILike):
        lowered = [call("LOWER", each) for each in (node.this, node.expression)]
        negate = node.args.get("negate")
        return exp.Like(this=lowered[0], expression=lowered[1], negate=negate)
    return node


def _rewrite_right(node: exp.Expr) -> exp.Expr:
    node = text_rules.check_left_right(node)
    return _build_suffix(node.this, rewrite.integer_value(node.expression) or 0)


def _build_suffix(of: exp.Expr, count: int) -> exp.Expr:
    """Rewrite RIGHT: the last characters of a text, or all of them."""
    after = exp.Sub(this=call("LENGTH", of.copy()), expression=exp.Literal.number(count - 1))
    start = call("GREATEST", after, exp.Literal.number(1))
    return call("SUBSTR", of, start, kind=T.TEXT)


def _rewrite_contains(node: exp.Expr) -> exp.Expr:
    node = text_rules.check_containment(node)
    place = call("STRPOS", node.this, node.expression, kind=T.BIGINT)
    return with_type(exp.paren(exp.GT(this=place, expression=exp.Literal.number(0))), T.BOOLEAN)


def _rewrite_ends_with(node: exp.Expr) -> exp.Expr:
    """Rewrite ENDS_WITH, which Trino lacks: compare the last characters."""
    node = text_rules.check_containment(node)
    end = node.expression
    if not isinstance(end, exp.Literal):
        refuse_translation("ENDS_WITH with a suffix that is not a constant")
    last = _build_suffix(node.this, len(end.name))
    return with_type(exp.paren(exp.EQ(this=last, expression=end)), T.BOOLEAN)


def _rewrite_trim(node: exp.Expr) -> exp.Expr:
    """Rewrite TRIM: DuckDB removes spaces, Trino all white space."""
    require_family(node.this, "text", of=node)
    if node.expression is None or not node.args.get("expression"):
        node.set("expression", text_literal(" "))
    if not node.args.get("position"):
        node.set("position", "BOTH")
    return node


def _rewrite_position(node: exp.Expr) -> exp.Expr:
    node = text_rules.check_position(node)
    return call("STRPOS", node.this, node.args["substr"], kind=T.BIGINT)


def _rewrite_split_part(node: exp.Expr) -> exp.Expr:
    """Rewrite SPLIT_PART: after the last part, DuckDB returns an empty text, Trino null."""
    node = text_rules.check_split_part(node)
    index = node.args["part_index"]
    found = call("SPLIT_PART", node.this.copy(), node.args["delimiter"], index)
    filled = exp.Coalesce(this=found, expressions=[text_literal("")])
    known = exp.not_(exp.Is(this=node.this, expression=exp.Null()))
    return with_type(exp.Case(ifs=[exp.If(this=known, true=filled)]), T.TEXT)


def _check_min(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = family(node.this)
    if of in {"list", "struct", "map", "unknown"} or node.expressions:
        refuse_translation(f"{rewrite.construct_name(node)} of {of}")
    return None


def _rewrite_max(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """Rewrite MAX: Trino ignores NaN, in DuckDB NaN is the greatest value."""
    _check_min(node, place)
    if not nan.may_be_nan(node.this):
        return None
    some = place(call("BOOL_OR", build_nan_test(node.this)))
    largest = place(exp.Max(this=node.this.copy()))
    nothing = cast(call("NAN"), T.DOUBLE if family(node.this) == "double" else T.FLOAT)
    return exp.Case(ifs=[exp.If(this=some, true=nothing)], default=largest)


def _rewrite_sum(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    require_family(of, *NUMBERS, "real", of=node)
    if family(of) == "real":
        return place(exp.Sum(this=_cast_to_double(node.this)))
    return None


def _rewrite_average(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    require_family(of, *NUMBERS, "real", of=node)
    if family(of) == "real":
        return place(exp.Avg(this=_cast_to_double(node.this)))
    if family(of) != "decimal":
        return None
    total, count = split_decimal_average(node.this, of, place)
    return exp.paren(exp.Div(this=total, expression=count, typed=True, safe=False))


def _cast_to_double(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Distinct):
        refuse_translation("DISTINCT of REAL numbers")
    return cast(node.copy(), T.DOUBLE)


def _rewrite_between(node: exp.Expr) -> exp.Expr:
    nan.refuse_fractions(node, [node.args["low"], node.args["high"]], "BETWEEN")
    return rewrite.rewrite_between(node)


def _rewrite_in(node: exp.Expr) -> exp.Expr:
    query = node.args.get("query")
    listed = [*node.expressions, *(query.unnest().selects if query is not None else ())]
    nan.refuse_fractions(node, listed, "IN")
    return rewrite.rewrite_in(node)


def _check_case(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Case) and node.this is not None:
        nan.refuse_fractions(node, [node.this], "CASE")
    return shared_rules.RULES["Case"](node)


def _check_nullif(node: exp.Expr) -> exp.Expr:
    nan.refuse_fractions(node, [node.this, node.expression], "NULLIF")
    return shared_rules.RULES["Nullif"](node)


def _rewrite_greatest_least(node: exp.Expr) -> exp.Expr:
    """Rewrite GREATEST and LEAST: Trino returns null for any null, DuckDB ignores nulls."""
    found = [node.this, *node.expressions]
    nan.refuse_fractions(node, found, rewrite.construct_name(node))
    rewrite.require_same_family(found, rewrite.construct_name(node))
    if len(found) != 2 or not node.args.get("ignore_nulls"):
        refuse_translation(f"{rewrite.construct_name(node)} of more than two values")
    both = call(rewrite.construct_name(node), *(each.copy() for each in found))
    return exp.Coalesce(this=both, expressions=found)


def _rewrite_is(node: exp.Expr) -> exp.Expr:
    """Rewrite IS TRUE, which Trino lacks; the parser's `=` would return null for null."""
    node = shared_rules.RULES["Is"](node)
    if not isinstance(node.expression, exp.Boolean):
        return node
    held = node.this if node.expression.this else exp.not_(exp.paren(node.this))
    return with_type(exp.Coalesce(this=held, expressions=[exp.false()]), T.BOOLEAN)


def _rewrite_select(node: exp.Expr) -> exp.Expr:
    """Rewrite SEMI and ANTI JOIN, which Trino lacks, as a condition."""
    assert isinstance(node, exp.Select)
    joins = node.args.get("joins") or []
    halves = [join for join in joins if join.text("kind").upper() in {"SEMI", "ANTI"}]
    if any(join.text("side").upper() in {"RIGHT", "FULL"} for join in joins) and halves:
        refuse_translation("a SEMI or ANTI JOIN next to a RIGHT or FULL JOIN")
    for join in halves:
        on = join.args.get("on")
        if on is None:
            refuse_translation(f"a {join.text('kind').upper()} JOIN without ON")
        rows = exp.select("1").from_(join.this, copy=False).where(on, copy=False)
        held: exp.Expr = exp.Exists(this=rows)
        if join.text("kind").upper() == "ANTI":
            held = exp.not_(held)
        join.pop()
        node = node.where(held, copy=False)
    return shared_rules.RULES["Select"](node)


def _rewrite_order(node: exp.Expr) -> exp.Expr:
    return nan.sort_nan_as_largest(shared_rules.RULES["Order"](node), build_nan_test)


def _check_group(node: exp.Expr) -> exp.Expr:
    """Check grouping sets: Trino accepts only columns."""
    for several in node.find_all(*_GROUPING_NODES[1:]):
        for each in several.expressions:
            keys = each.expressions if isinstance(each, exp.Tuple) else [each.unnest()]
            if not all(isinstance(key, _GROUPING_NODES) for key in keys):
                refuse_translation("ROLLUP, CUBE or GROUPING SETS of a value that is no column")
    return shared_rules.RULES["Group"](node)


def _rewrite_list_element(node: exp.Expr) -> exp.Expr:
    return call("ELEMENT_AT", node.this, shared_rules.list_index(node))


RULES: dict[str, Rule] = {
    **shared_rules.RULES,
    **rewrite.build_aggregate_rules(
        {"Avg": _rewrite_average, "Sum": _rewrite_sum, "Max": _rewrite_max, "Min": _check_min},
        shared_rules.RULES["Window"],
    ),
    **dict.fromkeys(_COMPARISONS, _rewrite_comparison),
    **dict.fromkeys(("IntDiv", "Mod"), _rewrite_integer_division),
    **dict.fromkeys(("Floor", "Ceil"), _rewrite_floor),
    **dict.fromkeys(("Cast", "TryCast"), _rewrite_cast),
    **dict.fromkeys(("Like", "ILike"), _rewrite_like),
    **trino_times.RULES,
    **dict.fromkeys(("Greatest", "Least"), _rewrite_greatest_least),
    **dict.fromkeys(("Case", "If"), _check_case),
    "Anonymous": _rewrite_anonymous,
    "Div": _rewrite_division, "Pow": signed_zero.rewrite_power, "Round": _rewrite_round,
    "Length": _rewrite_length,
    "ArraySize": _rewrite_length,
    "Lower": rewrite_lower_for_trino, "Upper": rewrite_upper_for_trino,
    "Escape": text_rules.check_escape,
    "RegexpLike": text_rules.check_regexp, "Left": text_rules.check_left_right,
    "Substring": text_rules.check_substring, "Right": _rewrite_right, "Trim": _rewrite_trim,
    "StrPosition": _rewrite_position,
    "Replace": text_rules.check_replace, "SplitPart": _rewrite_split_part,
    "Between": _rewrite_between, "In": _rewrite_in,
    "Nullif": _check_nullif, "Select": _rewrite_select, "Is": _rewrite_is,
    "Order": _rewrite_order, "Group": _check_group,
    "Bracket": _rewrite_list_element, "Contains": _rewrite_contains, "EndsWith": _rewrite_ends_with,
    "RegexpReplace": text_rules.rewrite_regexp_replace, "GroupConcat": text_rules.check_string_agg,
}  # fmt: skip
