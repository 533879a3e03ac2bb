"""DuckDB's meaning in Trino's words (session in UTC).

Every rule here was found by asking both: what is not in `SAME` or `RULES` was seen to differ, or
was not looked at yet.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, T, decimal, family, typed
from thermocline.sql.dialect import nan, shared_rules, signed_zero, text_rules, trino_times
from thermocline.sql.dialect.decimal_division import averaged
from thermocline.sql.dialect.letter_case import trino_lower, trino_upper
from thermocline.sql.dialect.rewrite import (
    Rule,
    alike,
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

SAME = shared_rules.SAME | {"PercentRank", "CumeDist", "Ntile"}
_GROUPED = (exp.Column, exp.GroupingSets, exp.Rollup, exp.Cube)
_COMPARISONS = ("EQ", "NEQ", "GT", "GTE", "LT", "LTE", "NullSafeEQ", "NullSafeNEQ")


def finished(tree: exp.Query) -> exp.Query:
    """Times in microseconds: without a word of it, Trino's TIMESTAMP has milliseconds."""
    for kind in tree.find_all(exp.DataType):
        if kind.this in (T.TIMESTAMP, T.TIMESTAMPNTZ, T.TIMESTAMPTZ):
            if kind.this == T.TIMESTAMPNTZ:
                kind.set("this", T.TIMESTAMP)
            kind.set("expressions", [exp.DataTypeParam(this=exp.Literal.number(6))])
    return tree


def is_nan(node: exp.Expr) -> exp.Expr:
    """Trino's test for NaN."""
    return call("IS_NAN", node.copy(), kind=T.BOOLEAN)


def _called(node: exp.Expr) -> exp.Expr:
    """What the parser has no word for: the bytes of a text."""
    if node.name.lower() not in text_rules.BYTES:
        unfaithful(named(node))
    return call("LENGTH", call("TO_UTF8", text_rules.of_bytes(node)), kind=T.BIGINT)


def _compared(node: exp.Expr) -> exp.Expr:
    return nan.above_all(node, is_nan)


def _divided(node: exp.Expr) -> exp.Expr:
    assert isinstance(node, exp.Div)
    need(node.left, *NUMBERS, of=node)
    need(node.right, *NUMBERS, of=node)
    left, right = cast(node.left, T.DOUBLE), cast(signed_zero.unsigned(node.right), T.DOUBLE)
    return typed(exp.Div(this=left, expression=right, typed=True, safe=False), T.DOUBLE)


def _by_zero_null(node: exp.Expr) -> exp.Expr:
    """`//` and `%`: null where Trino fails. Its `/` of integers is the former."""
    assert isinstance(node, exp.Binary)
    families = ("integer",) if isinstance(node, exp.IntDiv) else ("integer", "decimal")
    need(node.left, *families, of=node)
    need(node.right, *families, of=node)
    divisor = wrapped(node.right)
    if not number(node.right):
        divisor = exp.Nullif(this=node.right, expression=exp.Literal.number(0))
    if isinstance(node, exp.IntDiv):
        left = wrapped(node.left)
        return exp.Div(this=left, expression=divisor, typed=True, safe=False)
    return exp.Mod(this=wrapped(node.left), expression=divisor)


def _whole(node: exp.Expr) -> exp.Expr:
    if family(node.this) == "integer":
        return cast(node.this, T.DOUBLE)
    need(node.this, "decimal", "double", of=node)
    return node


def _rounded(node: exp.Expr) -> exp.Expr:
    """Trino keeps the digits that were rounded away, as zeros."""
    places = shared_rules.decimals(node)
    if places is None or family(node.this) != "decimal":
        return node
    return cast(node.copy(), decimal(38, places))


def _cast(node: exp.Expr) -> exp.Expr:
    source, target = family(node.this), family(node)
    if isinstance(node, exp.TryCast) and source == "text":
        unfaithful("TRY_CAST of a text", "engines take different texts for numbers and dates")
    match target, source:
        case "text", "text" | "null" | "integer" | "decimal" | "boolean" | "date":
            return cast(node.this, T.VARCHAR)
        case "integer", "integer" | "decimal" | "boolean" | "text" | "null":
            pass
        case "double", "integer" | "decimal" | "double" | "real" | "text" | "null":
            pass
        case "decimal", "integer" | "decimal" | "text" | "null":
            pass
        case "boolean", "integer" | "boolean" | "null":
            pass
        case (
            "date" | "timestamp" | "timestamptz",
            "date" | "timestamp" | "timestamptz" | "text" | "null",
        ):
            return shared_rules.cast_to_time(node, source)
        case _:
            unfaithful(f"a cast of {source} to {target}")
    return node


def _length(node: exp.Expr) -> exp.Expr:
    if family(node.this) == "list":
        return call("CARDINALITY", node.this, kind=T.BIGINT)
    need(node.this, "text", of=node)
    return node


def _like(node: exp.Expr) -> exp.Expr:
    need(node.this, "text", of=node)
    need(node.expression, "text", of=node)
    if isinstance(node, exp.ILike):
        lowered = [call("LOWER", each) for each in (node.this, node.expression)]
        negate = node.args.get("negate")
        return exp.Like(this=lowered[0], expression=lowered[1], negate=negate)
    return node


def _right(node: exp.Expr) -> exp.Expr:
    node = text_rules.ends(node)
    return _last(node.this, number(node.expression) or 0)


def _last(of: exp.Expr, count: int) -> exp.Expr:
    """The last so many characters of a text, or all of them."""
    after = exp.Sub(this=call("LENGTH", of.copy()), expression=exp.Literal.number(count - 1))
    start = call("GREATEST", after, exp.Literal.number(1))
    return call("SUBSTR", of, start, kind=T.TEXT)


def _contains(node: exp.Expr) -> exp.Expr:
    node = text_rules.found_in(node)
    place = call("STRPOS", node.this, node.expression, kind=T.BIGINT)
    return typed(exp.paren(exp.GT(this=place, expression=exp.Literal.number(0))), T.BOOLEAN)


def _ends_with(node: exp.Expr) -> exp.Expr:
    """Trino has none: the last so many characters are compared."""
    node = text_rules.found_in(node)
    end = node.expression
    if not isinstance(end, exp.Literal):
        unfaithful("ENDS_WITH of something that is no constant")
    last = _last(node.this, len(end.name))
    return typed(exp.paren(exp.EQ(this=last, expression=end)), T.BOOLEAN)


def _trimmed(node: exp.Expr) -> exp.Expr:
    """DuckDB takes away spaces, Trino whatever is white."""
    need(node.this, "text", of=node)
    if node.expression is None or not node.args.get("expression"):
        node.set("expression", text(" "))
    if not node.args.get("position"):
        node.set("position", "BOTH")
    return node


def _position(node: exp.Expr) -> exp.Expr:
    node = text_rules.position(node)
    return call("STRPOS", node.this, node.args["substr"], kind=T.BIGINT)


def _part(node: exp.Expr) -> exp.Expr:
    """Behind the last part there is nothing: for DuckDB an empty text, for Trino a null."""
    node = text_rules.part(node)
    index = node.args["part_index"]
    found = call("SPLIT_PART", node.this.copy(), node.args["delimiter"], index)
    filled = exp.Coalesce(this=found, expressions=[text("")])
    known = exp.not_(exp.Is(this=node.this, expression=exp.Null()))
    return typed(exp.Case(ifs=[exp.If(this=known, true=filled)]), T.TEXT)


def _least(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = family(node.this)
    if of in {"list", "struct", "map", "unknown"} or node.expressions:
        unfaithful(f"{named(node)} of {of}")
    return None


def _most(node: exp.Expr, place: Rule) -> exp.Expr | None:
    """Trino's MAX passes NaN over; for DuckDB it is the most there is."""
    _least(node, place)
    if not nan.may_be(node.this):
        return None
    some = place(call("BOOL_OR", is_nan(node.this)))
    largest = place(exp.Max(this=node.this.copy()))
    nothing = cast(call("NAN"), T.DOUBLE if family(node.this) == "double" else T.FLOAT)
    return exp.Case(ifs=[exp.If(this=some, true=nothing)], default=largest)


def _summed(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    need(of, *NUMBERS, "real", of=node)
    if family(of) == "real":
        return place(exp.Sum(this=_doubled(node.this)))
    return None


def _average(node: exp.Expr, place: Rule) -> exp.Expr | None:
    of = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    need(of, *NUMBERS, "real", of=node)
    if family(of) == "real":
        return place(exp.Avg(this=_doubled(node.this)))
    if family(of) != "decimal":
        return None
    total, count = averaged(node.this, of, place)
    return exp.paren(exp.Div(this=total, expression=count, typed=True, safe=False))


def _doubled(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Distinct):
        unfaithful("DISTINCT of REAL numbers")
    return cast(node.copy(), T.DOUBLE)


def _between(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.args["low"], node.args["high"]], "BETWEEN")
    return between(node)


def _within(node: exp.Expr) -> exp.Expr:
    query = node.args.get("query")
    listed = [*node.expressions, *(query.unnest().selects if query is not None else ())]
    nan.no_fractions(node, listed, "IN")
    return within(node)


def _case(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Case) and node.this is not None:
        nan.no_fractions(node, [node.this], "CASE")
    return shared_rules.RULES["Case"](node)


def _nullif(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.this, node.expression], "NULLIF")
    return shared_rules.RULES["Nullif"](node)


def _extremes(node: exp.Expr) -> exp.Expr:
    """One null makes Trino's null; DuckDB passes nulls over."""
    found = [node.this, *node.expressions]
    nan.no_fractions(node, found, named(node))
    alike(found, named(node))
    if len(found) != 2 or not node.args.get("ignore_nulls"):
        unfaithful(f"{named(node)} of more than two values")
    both = call(named(node), *(each.copy() for each in found))
    return exp.Coalesce(this=both, expressions=found)


def _is(node: exp.Expr) -> exp.Expr:
    """Trino has IS TRUE for nothing but null, and the parser's `=` instead gives null for null."""
    node = shared_rules.RULES["Is"](node)
    if not isinstance(node.expression, exp.Boolean):
        return node
    held = node.this if node.expression.this else exp.not_(exp.paren(node.this))
    return typed(exp.Coalesce(this=held, expressions=[exp.false()]), T.BOOLEAN)


def _select(node: exp.Expr) -> exp.Expr:
    """A SEMI or ANTI JOIN as a condition on its rows, which Trino has no join for."""
    assert isinstance(node, exp.Select)
    joins = node.args.get("joins") or []
    halves = [join for join in joins if join.text("kind").upper() in {"SEMI", "ANTI"}]
    if any(join.text("side").upper() in {"RIGHT", "FULL"} for join in joins) and halves:
        unfaithful("a SEMI or ANTI JOIN beside a RIGHT or FULL JOIN")
    for join in halves:
        on = join.args.get("on")
        if on is None:
            unfaithful(f"a {join.text('kind').upper()} JOIN without ON")
        rows = exp.select("1").from_(join.this, copy=False).where(on, copy=False)
        held: exp.Expr = exp.Exists(this=rows)
        if join.text("kind").upper() == "ANTI":
            held = exp.not_(held)
        join.pop()
        node = node.where(held, copy=False)
    return shared_rules.RULES["Select"](node)


def _order(node: exp.Expr) -> exp.Expr:
    return nan.sorted_above(shared_rules.RULES["Order"](node), is_nan)


def _grouped(node: exp.Expr) -> exp.Expr:
    """Of several groupings at once, Trino takes columns alone."""
    for several in node.find_all(*_GROUPED[1:]):
        for each in several.expressions:
            keys = each.expressions if isinstance(each, exp.Tuple) else [each.unnest()]
            if not all(isinstance(key, _GROUPED) for key in keys):
                unfaithful("ROLLUP, CUBE or GROUPING SETS of something that is no column")
    return shared_rules.RULES["Group"](node)


def _list_item(node: exp.Expr) -> exp.Expr:
    return call("ELEMENT_AT", node.this, shared_rules.place_in_list(node))


RULES: dict[str, Rule] = {
    **shared_rules.RULES,
    **spreading({"Avg": _average, "Sum": _summed, "Max": _most, "Min": _least},
                shared_rules.RULES["Window"]),
    **dict.fromkeys(_COMPARISONS, _compared),
    **dict.fromkeys(("IntDiv", "Mod"), _by_zero_null),
    **dict.fromkeys(("Floor", "Ceil"), _whole),
    **dict.fromkeys(("Cast", "TryCast"), _cast),
    **dict.fromkeys(("Like", "ILike"), _like),
    **trino_times.RULES,
    **dict.fromkeys(("Greatest", "Least"), _extremes),
    **dict.fromkeys(("Case", "If"), _case),
    "Anonymous": _called,
    "Div": _divided, "Pow": signed_zero.power, "Round": _rounded, "Length": _length,
    "ArraySize": _length,
    "Lower": trino_lower, "Upper": trino_upper, "Escape": text_rules.escape,
    "RegexpLike": text_rules.regexp, "Left": text_rules.ends,
    "Substring": text_rules.substring, "Right": _right, "Trim": _trimmed, "StrPosition": _position,
    "Replace": text_rules.replaced, "SplitPart": _part, "Between": _between, "In": _within,
    "Nullif": _nullif, "Select": _select, "Is": _is, "Order": _order, "Group": _grouped,
    "Bracket": _list_item, "Contains": _contains, "EndsWith": _ends_with,
    "RegexpReplace": text_rules.pattern_replaced, "GroupConcat": text_rules.joined,
}  # fmt: skip
