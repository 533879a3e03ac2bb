"""Parse a text as a typed value if it is certain how Spark would parse it.

Spark SQL (`value_expressions.scalar`) defines what a text means. This module parses a few records
without Spark: it returns the value or NO_VALUE, and raises NeedsSpark if Spark might differ.
"""

from __future__ import annotations

import decimal
import math
import re
from datetime import date, datetime, timedelta
from typing import Any

from thermocline.contract.types import Decimal, Primitive, Type
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.value_expressions import PATTERNS

_WHOLE = re.compile(r"[+-]?[0-9]+")
_BOUNDS = {"int": 2**31, "long": 2**63}
_TRUE = {"t", "true", "y", "yes", "1"}
_FALSE = {"f", "false", "n", "no", "0"}
_NUMBER = re.compile(r"[+-]?([0-9]+([.][0-9]*)?|[.][0-9]+)")
_POWER = re.compile(r"[^eE]*[0-9.][eE][+-]?[0-9]+[^eE]*")
_DAY = re.compile(r"(19|20|21)[0-9]{2}-[0-9]{2}-[0-9]{2}")
_MOMENT = re.compile(rf"({_DAY.pattern})[T ]([0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}})([.]([0-9]{{1,6}}))?")
_EXACT = decimal.Context(prec=80)


class _NoValue:
    """The type of NO_VALUE: there is a text, but it is no value of its type."""


NO_VALUE = _NoValue()


def parse_scalar(type_: Type, text: str) -> Any:
    """Return a text's value or NO_VALUE; raise NeedsSpark if Spark may parse it differently."""
    match type_:
        case Primitive("string"):
            return text
        case Primitive("float" | "double" | "date" | "timestamp" | "timestamptz" as name):
            if not re.fullmatch(PATTERNS[name], text):
                return NO_VALUE if not text.endswith("\n") else _decline(text, type_)
            return _READERS[name](text)
        case Primitive("boolean" | "int" | "long") | Decimal():
            if not (text.isascii() and text.isprintable()):
                return _decline(text, type_)
            trimmed = text.strip(" ")
            if isinstance(type_, Decimal):
                return _parse_decimal(trimmed, type_)
            return (
                _parse_boolean(trimmed)
                if type_.name == "boolean"
                else _parse_integer(trimmed, type_.name)
            )
    return _decline(text, type_)


def _decline(text: str, type_: Type) -> Any:
    raise NeedsSpark(f"{text[:20]!r} as {type_}")


def _parse_boolean(text: str) -> Any:
    low = text.lower()
    return low in _TRUE if low in _TRUE | _FALSE else NO_VALUE


def _parse_integer(text: str, name: str) -> Any:
    if not _WHOLE.fullmatch(text) or len(text) > 40:
        return NO_VALUE
    found = int(text)
    return found if -_BOUNDS[name] <= found < _BOUNDS[name] else NO_VALUE


def _parse_decimal(text: str, type_: Decimal) -> Any:
    if not _NUMBER.fullmatch(text):
        return NO_VALUE if not _POWER.fullmatch(text) else _decline(text, type_)
    if len(text) > 38:
        return _decline(text, type_)
    found = decimal.Decimal(text)
    scaled = found.quantize(decimal.Decimal(1).scaleb(-type_.scale), context=_EXACT)
    if scaled != found or abs(scaled) >= 10 ** (type_.precision - type_.scale):
        return NO_VALUE
    return scaled if scaled else abs(scaled)


def _parse_double(text: str) -> Any:
    found = float(text)
    if math.isinf(found) or math.isnan(found) or (found == 0.0 and text.startswith("-")):
        return _decline(text, Primitive("double"))
    if found == 0.0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        return NO_VALUE
    return found


def _parse_date(text: str) -> Any:
    if not _DAY.fullmatch(text.removesuffix("Z")):
        return _decline(text, Primitive("date"))
    try:
        return date.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        return NO_VALUE


def _parse_timestamp(text: str, *, zone: bool) -> Any:
    if zone and not text.endswith("Z"):
        return _decline(text, Primitive("timestamptz"))
    found = _MOMENT.fullmatch(text.removesuffix("Z"))
    if found is None:
        return _decline(text, Primitive("timestamp"))
    day, time, fraction = found[1], found[3], found[5] or ""
    try:
        whole = datetime.fromisoformat(f"{day}T{time}")
    except ValueError:
        return NO_VALUE
    return whole + timedelta(microseconds=int(fraction.ljust(6, "0")))


_READERS: dict[str, Any] = {
    # Spark rounds to a float once; going through a double here would round twice.
    "float": lambda text: _decline(text, Primitive("float")),
    "double": _parse_double,
    "date": _parse_date,
    "timestamp": lambda text: _parse_timestamp(text, zone=False),
    "timestamptz": lambda text: _parse_timestamp(text, zone=True),
}
