"""Check that a column's type can hold the values in a contract."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal as Number
from decimal import InvalidOperation
from typing import Any

from thermocline.contract.problems import quote
from thermocline.contract.types import Decimal, Primitive, Type

_INTEGER_LIMITS = {"int": 2**31, "long": 2**63}
_BROKEN_NUMBER = "is not a number"
_TIME_PARSERS: dict[str, Callable[[str], object]] = {
    "date": date.fromisoformat, "time": time.fromisoformat,
    "timestamp": datetime.fromisoformat, "timestamptz": datetime.fromisoformat,
}  # fmt: skip
# DuckDB (RE2) has neither, so such a rule would work in one engine only.
_NOT_PORTABLE = re.compile(r"\(\?<?[=!]|\(\?>|\(\?P=|\\[1-9]")


def is_ordered(type_: Type) -> bool:
    """Return whether the values of a type can be compared with a range."""
    if isinstance(type_, Decimal):
        return True
    names = {"int", "long", "float", "double", *_TIME_PARSERS}
    return isinstance(type_, Primitive) and type_.name in names


def check_value(value: Any, type_: Type) -> str | None:
    """Return why a column of that type cannot hold the value, or None if it can."""
    if value is None or isinstance(value, list | dict):
        return f"{quote(value)} is not a value"
    if isinstance(type_, Decimal):
        return None if _is_number(value) else f"{quote(value)} {_BROKEN_NUMBER}"
    if not isinstance(type_, Primitive):
        return f"{type_} values cannot be compared"
    if type_.name == "boolean":
        return None if isinstance(value, bool) else f"{quote(value)} is not true or false"
    if type_.name in _INTEGER_LIMITS:
        return _check_integer(value, type_.name)
    if type_.name in ("float", "double"):
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if number and math.isfinite(value) else f"{quote(value)} {_BROKEN_NUMBER}"
    if not isinstance(value, str):
        return f"{value} is not text; put it in quotes"
    if type_.name in _TIME_PARSERS:
        try:
            _TIME_PARSERS[type_.name](value)
        except ValueError:
            return f"{quote(value)} is not a {type_.name} in ISO form"
    return None


def check_pattern(pattern: Any) -> str | None:
    """Return why a regular expression cannot be used, or None if it can."""
    if not isinstance(pattern, str) or not pattern:
        return "a pattern must be a regular expression in quotes"
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        return f"pattern {quote(pattern)}: {error}"
    if _NOT_PORTABLE.search(pattern.replace("\\\\", "")):
        return (
            f"pattern {quote(pattern)}: look-around and back-references do not work in every engine"
        )
    return None


def _check_integer(value: Any, name: str) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return f"{quote(value)} is not a whole number"
    limit = _INTEGER_LIMITS[name]
    return None if -limit <= value < limit else f"{value} does not fit into {name}"


def _is_number(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        return Number(str(value)).is_finite()
    except InvalidOperation:
        return False
