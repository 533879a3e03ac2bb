"""Translate Trino's CAST and TRY_CAST to DuckDB."""

from __future__ import annotations

import re
from dataclasses import dataclass

from sqlglot import exp

from thermocline.engine.query_types import T, decimal_type, family, with_type
from thermocline.sql.dialect.rewrite import (
    build_time_literal,
    call,
    cast,
    integer_value,
    parenthesize,
    refuse_translation,
)
from thermocline.sql.dialect.text_rules import text_literal


@dataclass(frozen=True)
class _Spelling:
    """Text formats of a type: those that both engines share, and all that Trino accepts."""

    shared: str
    perhaps: str


_BLANK = r"[\x00-\x20]*"
_DIGITS = r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?"
_SPELLINGS = {
    "integer": _Spelling(rf"{_BLANK}[+-]?[0-9]+{_BLANK}", r"(?s).*[^\x00-\x7F].*"),
    "double": _Spelling(
        rf"{_BLANK}[+-]?(?:[0-9]{{1,200}}\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]{{1,2}})?{_BLANK}",
        rf"(?s).*[^\x00-\x7F].*|{_BLANK}[+-]?(?:NaN|Infinity|{_DIGITS}[dDfF]?|0[xX].*){_BLANK}",
    ),
    "decimal": _Spelling(
        r"[+-]?(?:[0-9]{1,38}(?:\.[0-9]{0,38})?|\.[0-9]{1,38})",
        rf"(?s).*[^\x00-\x7F].*|[+-]?{_DIGITS}",
    ),
    "date": _Spelling(
        rf"{_BLANK}[0-9]{{4}}-[0-9]{{1,2}}-[0-9]{{1,2}}{_BLANK}",
        rf"(?s).*[^\x00-\x7F].*|{_BLANK}[+-]?[0-9]+-[0-9]+-[0-9]+{_BLANK}",
    ),
}


def rewrite_cast(node: exp.Expr) -> exp.Expr:
    """Rewrite CAST or TRY_CAST between families that both engines convert in the same way."""
    source, target = family(node.this), family(node)
    to = node.args["to"]
    match target, source:
        case "text", "text" if to.this == T.VARCHAR and to.expressions:
            width = to.expressions[0].this
            return exp.Substring(this=node.this, start=exp.Literal.number(1), length=width)
        case "text", "text" | "null" | "integer" | "decimal" | "boolean" | "date":
            if to.this == T.CHAR or (to.expressions and source != "text"):
                refuse_translation("a cast to a text of limited length")
            return cast(node.this, T.TEXT)
        case "decimal", _ if not to.expressions and source in {"integer", "decimal", "null"}:
            node.set("to", decimal_type(38, 0))
        case "integer" | "double" | "decimal", "text":
            return _cast_text(node, target)
        case "date", "text" if not isinstance(node.this, exp.Literal):
            return _cast_text(node, target)
        case "integer", "double":
            node.set("this", exp.Round(this=node.this))
        case "integer", "integer" | "decimal" | "boolean" | "null":
            pass
        case "double", "integer" | "decimal" | "double" | "real" | "null":
            pass
        case "decimal", "integer" | "decimal" | "null":
            pass
        case "boolean", "integer" | "boolean" | "null":
            pass
        case "date", "date" | "timestamp" | "timestamptz" | "null":
            pass
        case "timestamp" | "timestamptz", "date" | "timestamp" | "timestamptz" | "null":
            kind = T.TIMESTAMPTZ if target == "timestamptz" else T.TIMESTAMPNTZ
            found = cast(node.this, kind)
            return (
                found
                if source in {"date", "null"}
                else round_time(found, _fraction_digits(to), kind)
            )
        case "date" | "timestamp" | "timestamptz", "text":
            return _cast_text_to_time(node, target)
        case _:
            refuse_translation(f"a cast of {source} to {target}")
    return node


def _cast_text(node: exp.Expr, target: str) -> exp.Expr:
    """Rewrite a cast from text. A text that only Trino accepts fails the query."""
    to, value = node.args["to"], node.this
    if target == "decimal" and not to.expressions:
        to = decimal_type(38, 0)
    spelling = _SPELLINGS[target]
    trimmed = call("trim", value.copy(), text_literal("".join(map(chr, range(1, 33)))))
    read = exp.TryCast if isinstance(node, exp.TryCast) else exp.Cast
    found = read(this=trimmed, to=to.copy())
    shared = call("regexp_full_match", value.copy(), text_literal(spelling.shared))
    perhaps = call("regexp_full_match", value.copy(), text_literal(spelling.perhaps))
    failing = call(
        "error", text_literal(f"A text cannot be read as {target} with its meaning in Trino.")
    )
    branches = [exp.If(this=shared, true=found), exp.If(this=perhaps, true=failing)]
    # An invalid text, so that the query fails with a cast error only if such a row exists.
    never = exp.Cast(this=call("concat", value.copy(), text_literal("?")), to=to.copy())
    absent = exp.Is(this=value.copy(), expression=exp.Null())
    if read is exp.Cast:
        branches.append(exp.If(this=exp.not_(absent), true=never))
    return with_type(exp.paren(exp.Case(ifs=branches)), to)


def _fraction_digits(to: exp.Expr) -> int:
    """Return the digits of a second of a type: milliseconds by default."""
    return integer_value(to.expressions[0].this) or 0 if to.expressions else 3


_HALVES = {0: ("second", 500_000), 3: ("millisecond", 500)}
"""Digits of a second → the unit to round to, and half of it in microseconds."""


def round_time(node: exp.Expr, places: int, kind: exp.DType) -> exp.Expr:
    """Round a time to a number of digits of a second, half up."""
    if places >= 6:
        return node
    if places not in _HALVES:
        refuse_translation(f"a time with {places} digits of a second")
    unit, half = _HALVES[places]
    interval = exp.Interval(this=text_literal(str(half)), unit=exp.Var(this="MICROSECOND"))
    later = exp.Add(this=parenthesize(node), expression=interval)
    return call("date_trunc", text_literal(unit), later, kind=kind)


_UNPADDED_TIME = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d{1,2})-(?P<day>\d{1,2})"
    r"(?: (?P<hour>\d{1,2}):(?P<minute>\d{1,2})(?::(?P<second>\d{1,2}))?)?(?P<rest>\D.*)?"
)


def _pad_time(written: str) -> str:
    """Pad the parts of a time to two digits, which Trino does not require."""
    found = _UNPADDED_TIME.fullmatch(written)
    if found is None:
        return written
    day = f"{found['year']}-{int(found['month']):02}-{int(found['day']):02}"
    if found["hour"]:
        day += f" {int(found['hour']):02}:{int(found['minute']):02}:{int(found['second'] or 0):02}"
    return day + (found["rest"] or "")


def _cast_text_to_time(node: exp.Expr, target: str) -> exp.Expr:
    """Rewrite a cast of a string literal to a time."""
    literal, to = node.this, node.args["to"]
    if not isinstance(literal, exp.Literal):
        refuse_translation("a cast of a string to a time", "engines accept different formats")
    if isinstance(node, exp.TryCast):
        refuse_translation("TRY_CAST of a constant to a time")
    fraction = literal.name.partition(".")[2].split(" ")[0].split("+")[0]
    if target != "date" and len(fraction) > _fraction_digits(to):
        refuse_translation("a time with more digits of a second than its type")
    if re.search(r"[+-]\d\d:?\d\d$", literal.name) and target == "timestamptz":
        # Trino's value keeps its zone, and its parts are in that zone; DuckDB's is in UTC.
        refuse_translation("a time in a zone other than UTC")
    kinds = {"date": T.DATE, "timestamp": T.TIMESTAMPNTZ, "timestamptz": T.TIMESTAMPTZ}
    return build_time_literal(_pad_time(literal.name), kinds[target])


def rewrite_date(node: exp.Expr) -> exp.Expr:
    """Rewrite DATE(x) as a cast."""
    if node.expressions or node.args.get("zone"):
        refuse_translation("DATE of several values")
    return rewrite_cast(with_type(exp.Cast(this=node.this, to=exp.DataType(this=T.DATE)), T.DATE))
