"""Trino's meaning in DuckDB's words.

Types in the tree are Trino's. What is said here is DuckDB's SQL: it is either sent to a DuckDB as
it is, or said once more in Spark's words.
"""

from __future__ import annotations

import re

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
from thermocline.serve.failures import DIVISION_BY_ZERO
from thermocline.serve.question.dialect import nan, shared, texts
from thermocline.serve.question.dialect.exact import quotient
from thermocline.serve.question.dialect.rules import (
    Rule,
    between,
    call,
    cast,
    named,
    number,
    spreading,
    time_literal,
    unfaithful,
    within,
    wrapped,
)
from thermocline.serve.question.dialect.shared import need
from thermocline.serve.question.dialect.texts import text

SAME = shared.SAME | {
    "PercentRank", "CumeDist", "Ntile", "Year", "Month", "Day", "Hour", "Minute", "Second",
    "Quarter", "WeekOfYear", "DayOfYear", "DayOfMonth", "DayOfWeekIso", "LastDay", "TimeToUnix",
    "AnyValue",
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
    need(node.this, *NUMBERS, of=node)
    digits = node.args.get("decimals")
    if digits is None:
        return node
    places = number(digits)
    if places is None or places < 0:
        unfaithful("ROUND to a number of digits that is no constant from 0 on")
    if family(node.this) != "decimal":
        return node
    kept = scale(node.this)
    if kept is None:
        unfaithful("ROUND of a decimal whose digits are not known")
    return cast(node.copy(), decimal(38, kept))


def _moved(node: exp.Expr) -> exp.Expr:
    """A date and an interval give a date."""
    left, right = shared.adding(node)
    if left == "date" and right != "interval":
        unfaithful(f"{named(node)} of {left} and {right}")
    if left != "date":
        return node
    return cast(node.copy(), T.DATE)


def _later(node: exp.Expr) -> exp.Expr:
    """DATE_ADD of a plain number."""
    need(node.this, *TIMES, of=node)
    count = number(node.expression)
    if count is None:
        unfaithful("DATE_ADD of a count that is no constant")
    unit = shared.unit(node)
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
    unit = shared.unit(node).lower()
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
    shared.unit(node)
    return cast(node.copy(), T.DATE) if family(node.this) == "date" else node


def _extracted(node: exp.Expr) -> exp.Expr:
    part = node.name.upper()
    need(node.expression, *TIMES, of=node)
    if part in {"DOW", "DAYOFWEEK", "DAY_OF_WEEK"}:
        return typed(exp.DayOfWeekIso(this=node.expression), T.BIGINT)
    if part not in {"YEAR", "QUARTER", "MONTH", "WEEK", "DAY", "DOY", "HOUR", "MINUTE", "SECOND"}:
        unfaithful(f"EXTRACT of {part.lower()}")
    return node


def _cast(node: exp.Expr) -> exp.Expr:
    source, target = family(node.this), family(node)
    to = node.args["to"]
    if isinstance(node, exp.TryCast) and source == "text":
        unfaithful("TRY_CAST of a text", "engines take different texts for numbers and dates")
    match target, source:
        case "text", "text" if to.this == T.VARCHAR and to.expressions:
            width = to.expressions[0].this
            return exp.Substring(this=node.this, start=exp.Literal.number(1), length=width)
        case "text", "text" | "null" | "integer" | "decimal" | "boolean" | "date":
            if to.this == T.CHAR or (to.expressions and source != "text"):
                unfaithful("a cast to a text of a given length")
            return cast(node.this, T.TEXT)
        case "integer", "double":
            node.set("this", exp.Round(this=node.this))
        case "integer", "integer" | "decimal" | "boolean" | "text" | "null":
            pass
        case "double", "integer" | "decimal" | "double" | "real" | "text" | "null":
            pass
        case "decimal", "integer" | "decimal" | "text" | "null" if to.expressions:
            pass
        case "boolean", "integer" | "boolean" | "null":
            pass
        case "date", "date" | "timestamp" | "timestamptz" | "null":
            pass
        case "timestamp" | "timestamptz", "date" | "timestamp" | "timestamptz" | "null":
            # Trino's TIMESTAMP has milliseconds and rounds to them, unless it is told otherwise.
            if source != "date" and _places(to) < 6:
                unfaithful("a cast to fewer digits of a second than six")
            return cast(node.this, T.TIMESTAMPTZ if target == "timestamptz" else T.TIMESTAMPNTZ)
        case "date" | "timestamp" | "timestamptz", "text":
            return _time(node, target)
        case _:
            unfaithful(f"a cast of {source} to {target}")
    return node


def _places(to: exp.Expr) -> int:
    return number(to.expressions[0].this) or 0 if to.expressions else 3


def _time(node: exp.Expr, target: str) -> exp.Expr:
    """A time that is written as a text."""
    literal, to = node.this, node.args["to"]
    if not isinstance(literal, exp.Literal):
        unfaithful("a cast of a text to a time", "engines read different spellings")
    fraction = literal.name.partition(".")[2].split(" ")[0].split("+")[0]
    if target != "date" and len(fraction) > _places(to):
        unfaithful("a time with more digits of a second than its type")
    if re.search(r"[+-]\d\d:?\d\d$", literal.name) and target == "timestamptz":
        # Trino's value keeps its zone, and its parts are those of that zone; DuckDB's is in UTC.
        unfaithful("a time in another zone than UTC")
    kinds = {"date": T.DATE, "timestamp": T.TIMESTAMPNTZ, "timestamptz": T.TIMESTAMPTZ}
    return time_literal(literal.name, kinds[target])


def _date(node: exp.Expr) -> exp.Expr:
    """DATE(x) is a cast."""
    if node.expressions or node.args.get("zone"):
        unfaithful("DATE of several values")
    return _cast(typed(exp.Cast(this=node.this, to=exp.DataType(this=T.DATE)), T.DATE))


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
        half = exp.Interval(this=text("500"), unit=exp.Var(this="MICROSECOND"))
        later = exp.Add(this=wrapped(node.this), expression=half)
        kind = T.TIMESTAMPTZ if of == "timestamptz" else T.TIMESTAMPNTZ
        node.set("this", call("date_trunc", text("millisecond"), later, kind=kind))
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
    if isinstance(node, exp.Case) and node.this is not None:
        nan.no_fractions(node, [node.this], "CASE")
    return shared.RULES["Case"](node)


def _extremes(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.this, *node.expressions], named(node))
    return shared.RULES["Coalesce"](node)


def _nullif(node: exp.Expr) -> exp.Expr:
    nan.no_fractions(node, [node.this, node.expression], "NULLIF")
    return shared.RULES["Nullif"](node)


def _order(node: exp.Expr) -> exp.Expr:
    return nan.sorted_below(shared.RULES["Order"](node), is_nan)


def _list_item(node: exp.Expr) -> exp.Expr:
    return call("list_extract", node.this, shared.place_in_list(node))


RULES: dict[str, Rule] = {
    **shared.RULES,
    **spreading({"Avg": _average, "Max": _most, "Min": _most}, shared.RULES["Window"]),
    **dict.fromkeys(_COMPARISONS, _compared),
    **dict.fromkeys(("Floor", "Ceil"), _whole),
    **dict.fromkeys(("Add", "Sub"), _moved),
    **dict.fromkeys(("DateTrunc", "TimestampTrunc"), _truncated),
    **dict.fromkeys(("Cast", "TryCast"), _cast),
    **dict.fromkeys(("Concat", "DPipe"), _concat),
    **dict.fromkeys(("Case", "If"), _case),
    **dict.fromkeys(("Greatest", "Least"), _extremes),
    "Div": _divided, "Round": _rounded, "DateAdd": _later, "DateDiff": _difference,
    "Extract": _extracted, "Date": _date, "Upper": _upper, "Lower": _of_text, "Length": _of_text,
    "ArraySize": _size, "Like": _like, "Escape": texts.escape, "RegexpLike": texts.regexp,
    "Substring": texts.substring, "Trim": _trimmed, "StrPosition": texts.position,
    "Replace": texts.replaced, "TimeToStr": _formatted, "Sum": _summed,
    "Mod": _remainder, "Between": _between, "In": _within, "Nullif": _nullif,
    "Bracket": _list_item, "Order": _order,
}  # fmt: skip
