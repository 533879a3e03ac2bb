"""Build SQL literals of a column's own type from values of a contract.

An untyped literal would be typed differently by each engine (0.1 against a float column is
compared as float by one and as double by the other). So every value is parsed, checked, and
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


class WrongType(ValueError):
    """A value does not belong to the column's type."""


def build_literal(value: Any, type_: Type) -> exp.Expr | None:
    """Build the value in the column's type; None if the type cannot hold it (2.5 in an int)."""
    limits = _find_limits(type_)
    if limits:
        number = _parse_number(value)
        scale, low, high, _ = limits
        fits = number.is_finite() and _round_number(number, scale, ROUND_FLOOR) == number
        return _cast_number(number, limits) if fits and low <= number <= high else None
    return _cast(*_to_text(value, type_))


def build_bound_violation(column: exp.Expr, operator: str, value: Any, type_: Type) -> exp.Expr:
    """Build the condition `column operator value`, exact for every type of column.

    A bound between two values that the column can hold is moved to the next of them. A bound
    outside of the type's range holds for every row that has a value, or for none.
    """
    limits = _find_limits(type_)
    if not limits:
        if type_ == Primitive("boolean") or not isinstance(type_, Primitive):
            raise WrongType(f"a {type_} column has no range")
        return _COMPARE[operator](
            this=column, expression=_cast(*_to_text(value, type_, bound=True))
        )
    scale, low, high, _ = limits
    number = _parse_number(value)
    if number.is_finite():
        up = operator in ("<", ">=")
        number = _round_number(number, scale, ROUND_CEILING if up else ROUND_FLOOR)
        if low <= number <= high:
            return _COMPARE[operator](this=column, expression=_cast_number(number, limits))
    below_it = number > high
    if below_it == operator.startswith("<"):
        return column.copy().is_(exp.null()).not_()
    return exp.false()


def is_floating(type_: Type) -> bool:
    """Return whether the column can hold NaN and two zeros."""
    return isinstance(type_, Primitive) and type_.name in _FLOATING


def _find_limits(type_: Type) -> tuple[int, Number, Number, str] | None:
    """Return scale, smallest and largest value, and SQL name of an exact numeric type."""
    if isinstance(type_, Decimal):
        most = _WIDE.divide(Number(10**type_.precision - 1), Number(10**type_.scale))
        return type_.scale, -most, most, f"DECIMAL({type_.precision}, {type_.scale})"
    if isinstance(type_, Primitive) and type_.name in _WHOLE:
        bits, name = _WHOLE[type_.name]
        return 0, Number(-(2**bits)), Number(2**bits - 1), name
    return None


def _round_number(number: Number, scale: int, rounding: str) -> Number:
    try:
        return number.quantize(Number(1).scaleb(-scale), rounding=rounding, context=_WIDE)
    except InvalidOperation:  # more digits than any column has: use the number itself
        return number


def _cast_number(number: Number, limits: tuple[int, Number, Number, str]) -> exp.Expr:
    return _cast(f"{number:f}", limits[3])


def _cast(text: str, type_name: str) -> exp.Expr:
    if type_name == "VARCHAR":
        return exp.Literal.string(text)
    return exp.cast(exp.Literal.string(text), exp.DataType.build(type_name, dialect="duckdb"))


def _to_text(value: Any, type_: Type, *, bound: bool = False) -> tuple[str, str]:
    """Return the value's text and the SQL name of its type, for all but exact numbers."""
    name = type_.name if isinstance(type_, Primitive) else str(type_)
    if name in _FLOATING:
        number = float(_parse_number(value))
        if bound and isnan(number):
            raise WrongType("NaN is not a bound")
        return repr(number), _FLOATING[name]
    if name == "string":
        return (str(value).lower() if isinstance(value, bool) else str(value)), "VARCHAR"
    readers = {
        "boolean": _parse_boolean,
        "date": _parse_date,
        "time": _parse_time,
        "timestamp": _parse_timestamp,
        "timestamptz": _parse_timestamptz,
        "uuid": _parse_uuid,
    }
    if name not in readers:
        raise WrongType(f"a {type_} column is not compared with values")
    try:
        return readers[name](value), name.upper()
    except ValueError as error:
        raise WrongType(f"{quote(value)} is not a {type_}") from error


def _parse_number(value: Any) -> Number:
    if isinstance(value, bool):
        raise WrongType(f"{quote(value)} is not a number")
    try:
        return Number(str(value).strip())
    except InvalidOperation as error:
        raise WrongType(f"{quote(value)} is not a number") from error


def _parse_boolean(value: Any) -> str:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise ValueError(text)
    return text


def _parse_date(value: Any) -> str:
    return date.fromisoformat(str(value)).isoformat()


def _parse_time(value: Any) -> str:
    return time.fromisoformat(str(value)).isoformat()


def _parse_timestamp(value: Any) -> str:
    moment = datetime.fromisoformat(str(value))
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(" ", "microseconds")


def _parse_timestamptz(value: Any) -> str:
    moment = datetime.fromisoformat(str(value))
    # A moment without a zone is UTC, as everywhere in the lake.
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return moment.isoformat(" ", "microseconds")


def _parse_uuid(value: Any) -> str:
    return str(uuid.UUID(str(value)))
