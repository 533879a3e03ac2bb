"""Exact division of decimals, in DuckDB's SQL and in other engines'."""

from __future__ import annotations

from sqlglot import exp

from thermocline.engine.query_types import T, decimal_type, scale
from thermocline.sql.dialect.rewrite import Rule, call, cast, refuse_translation

_MAX_DIGITS = 18


def divide_decimals(left: exp.Expr, right: exp.Expr, digits: int | None = None) -> exp.Expr:
    """Divide decimals exactly, and round half away from zero to the digits of the longer one.

    DuckDB divides decimals as doubles, which cannot represent an exact half; so the division uses
    128-bit integers.
    """
    mine, theirs = scale(left), scale(right)
    if mine is None or theirs is None:
        refuse_translation("a division of decimals of unknown precision")
    places = max(mine, theirs) if digits is None else digits
    if places + theirs > _MAX_DIGITS:
        refuse_translation("a division of decimals with too many digits")
    above = _scale_to_integer(left, mine, places + theirs)
    below = _scale_to_integer(right, theirs, theirs)
    twice = exp.Mul(this=call("abs", above), expression=exp.Literal.number(2))
    half = exp.paren(exp.Add(this=twice, expression=call("abs", below.copy())))
    double = exp.paren(exp.Mul(this=call("abs", below.copy()), expression=exp.Literal.number(2)))
    size = exp.IntDiv(this=half, expression=double)
    sign = exp.Mul(this=call("sign", above.copy()), expression=call("sign", below.copy()))
    whole = cast(exp.Mul(this=exp.paren(size), expression=sign), decimal_type(38 - places, 0))
    unit = exp.Literal.number(f"0.{'0' * (places - 1)}1" if places else "1")
    return cast(exp.Mul(this=whole, expression=unit), decimal_type(38, places))


def _scale_to_integer(node: exp.Expr, digits: int, shift: int) -> exp.Expr:
    """Scale a decimal by a power of ten to a 128-bit integer."""
    unscaled = node.copy()
    if digits:
        wide = cast(unscaled, decimal_type(38, digits))
        unscaled = exp.Mul(this=wide, expression=exp.Literal.number(10**digits))
    whole = exp.Cast(this=unscaled, to=exp.DataType(this=T.INT128))
    if shift == digits:
        return whole
    return exp.paren(exp.Mul(this=whole, expression=exp.Literal.number(10 ** (shift - digits))))


def split_decimal_average(these: exp.Expr, of: exp.Expr, place: Rule) -> tuple[exp.Expr, exp.Expr]:
    """Return the operands of DuckDB's mean of decimals: the unscaled sum, and the count.

    The sum as a double would be rounded before the division, and the mean with it.
    """
    after = scale(of)
    if after is None:
        refuse_translation("AVG of decimals of unknown precision")
    size = exp.Literal.number(10**after)
    total, count = place(exp.Sum(this=these.copy())), place(exp.Count(this=these.copy()))
    whole = cast(exp.Mul(this=total, expression=size), decimal_type(38, 0))
    return cast(whole, T.DOUBLE), exp.paren(exp.Mul(this=count, expression=size.copy()))
