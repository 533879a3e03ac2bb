"""Values of a contract as SQL literals of a column's own type.

A bare literal would be typed by each engine in its own way (0.1 against a float column is
compared as float by one and as double by the other). So every value is read here, checked, and
written as a cast of a string to the column's type.
"""

from __future__ import annotations

import uuid
from datetime import UTC, date, datetime, time
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, InvalidOperation
from decimal import Decimal as Number
from math import isnan
from typing import Any

from sqlglot import exp

from thermocline.contract.problems import quote
from thermocline.contract.types import Decimal, Primitive, Type

_WHOLE = {"int": (31, "INT"), "long": (63, "BIGINT")}
_FLOATING = {"float": "REAL", "double": "DOUBLE"}
_WIDE = Context(prec=80)
_COMPARE = {"<": exp.LT, "<=": exp.LTE, ">": exp.GT, ">=": exp.GTE}


class NotOfType(ValueError):
    """A value that is not one of the column's type."""


def literal(value: Any, type_: Type) -> exp.Expr | None:
    """The value in the column's type, or None when no such column can hold it (2.5 in an int)."""
    limits = _limits(type_)
    if limits:
        number = _number(value)
        scale, low, high, _ = limits
        fits = number.is_finite() and _round(number, scale, ROUND_FLOOR) == number
        return _fixed(number, limits) if fits and low <= number <= high else None
    return _cast(*_text(value, type_))


def breaks_bound(column: exp.Expr, operator: str, value: Any, type_: Type) -> exp.Expr:
    """The condition `column operator value`, exact whatever the column's type.

    A bound between two values that the column can hold is moved to the next of them; one beyond
    all of them holds for every row that has a value, or for none.
    """
    limits = _limits(type_)
    if not limits:
        if type_ == Primitive("boolean") or not isinstance(type_, Primitive):
            raise NotOfType(f"a {type_} column has no range")
        return _COMPARE[operator](this=column, expression=_cast(*_text(value, type_, bound=True)))
    scale, low, high, _ = limits
    number = _number(value)
    if number.is_finite():
        up = operator in ("<", ">=")
        number = _round(number, scale, ROUND_CEILING if up else ROUND_FLOOR)
        if low <= number <= high:
            return _COMPARE[operator](this=column, expression=_fixed(number, limits))
    below_it = number > high
    if below_it == operator.startswith("<"):
        return column.copy().is_(exp.null()).not_()
    return exp.false()


def floating(type_: Type) -> bool:
    """Whether the column can hold NaN and two zeros."""
    return isinstance(type_, Primitive) and type_.name in _FLOATING


def _limits(type_: Type) -> tuple[int, Number, Number, str] | None:
    """Scale, smallest and largest value, and SQL name of a type of exact numbers."""
    if isinstance(type_, Decimal):
        most = _WIDE.divide(Number(10**type_.precision - 1), Number(10**type_.scale))
        return type_.scale, -most, most, f"DECIMAL({type_.precision}, {type_.scale})"
    if isinstance(type_, Primitive) and type_.name in _WHOLE:
        bits, name = _WHOLE[type_.name]
        return 0, Number(-(2**bits)), Number(2**bits - 1), name
    return None


def _round(number: Number, scale: int, rounding: str) -> Number:
    try:
        return number.quantize(Number(1).scaleb(-scale), rounding=rounding, context=_WIDE)
    except InvalidOperation:  # more digits than any column has: the number itself is as good
        return number


def _fixed(number: Number, limits: tuple[int, Number, Number, str]) -> exp.Expr:
    return _cast(f"{number:f}", limits[3])


def _cast(text: str, type_name: str) -> exp.Expr:
    if type_name == "VARCHAR":
        return exp.Literal.string(text)
    return exp.cast(exp.Literal.string(text), exp.DataType.build(type_name, dialect="duckdb"))


def _text(value: Any, type_: Type, *, bound: bool = False) -> tuple[str, str]:
    """The value's text and the SQL name of its type, for all but exact numbers."""
    name = type_.name if isinstance(type_, Primitive) else str(type_)
    if name in _FLOATING:
        number = float(_number(value))
        if bound and isnan(number):
            raise NotOfType("NaN is not a bound")
        return repr(number), _FLOATING[name]
    if name == "string":
        return (str(value).lower() if isinstance(value, bool) else str(value)), "VARCHAR"
    readers = {
        "boolean": _boolean,
        "date": _date,
        "time": _time,
        "timestamp": _timestamp,
        "timestamptz": _timestamptz,
        "uuid": _uuid,
    }
    if name not in readers:
        raise NotOfType(f"a {type_} column is not compared with values")
    try:
        return readers[name](value), name.upper()
    except ValueError as error:
        raise NotOfType(f"{quote(value)} is not a {type_}") from error


def _number(value: Any) -> Number:
    if isinstance(value, bool):
        raise NotOfType(f"{quote(value)} is not a number")
    try:
        return Number(str(value).strip())
    except InvalidOperation as error:
        raise NotOfType(f"{quote(value)} is not a number") from error


def _boolean(value: Any) -> str:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(text)
    return text


def _date(value: Any) -> str:
    return date.fromisoformat(str(value)).isoformat()


def _time(value: Any) -> str:
    return time.fromisoformat(str(value)).isoformat()


def _timestamp(value: Any) -> str:
    moment = datetime.fromisoformat(str(value))
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(" ", "microseconds")


def _timestamptz(value: Any) -> str:
    moment = datetime.fromisoformat(str(value))
    # A moment without a zone is UTC, as everywhere in the lake.
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat(" ", "microseconds")


def _uuid(value: Any) -> str:
    return str(uuid.UUID(str(value)))
