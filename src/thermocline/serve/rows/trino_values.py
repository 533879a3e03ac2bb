"""Values and types as Trino's client protocol writes them.

A timestamp is "2026-11-14 10:00:00.123456", with " UTC" where it has a zone; decimals are text,
bytes base64, a row an array, a map an object whose keys are text, a NaN or an infinity its name.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import time
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

_WORDS = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "integer",
    "int64": "bigint", "uint8": "smallint", "uint16": "integer", "uint32": "bigint",
    "uint64": "decimal(20,0)", "float": "real", "halffloat": "real", "double": "double",
    "string": "varchar", "binary": "varbinary", "date32[day]": "date", "null": "unknown",
}  # fmt: skip
_DIGITS = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def trino_type(kind: pa.DataType) -> str:
    """Trino's word for a canonical Arrow type. What it has no word for is given as varchar."""
    if pt.is_timestamp(kind):
        zone = " with time zone" if kind.tz else ""
        return f"timestamp({_DIGITS[kind.unit]}){zone}"
    if pt.is_time(kind):
        return f"time({_DIGITS[kind.unit]})"
    if pt.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    if pt.is_struct(kind):
        members = (f"{_quoted(field.name)} {trino_type(field.type)}" for field in kind.fields)
        return f"row({', '.join(members)})"
    if pt.is_map(kind):
        return f"map({trino_type(kind.key_type)}, {trino_type(kind.item_type)})"
    if pt.is_list(kind):
        return f"array({trino_type(kind.value_type)})"
    return _WORDS.get(str(kind), "varchar")


def trino_values(column: pa.ChunkedArray) -> list[Any]:
    """The values of a canonical column, ready for JSON."""
    kind = column.type
    if pt.is_timestamp(kind):
        # Arrow would give Python's datetime, which knows no nanoseconds and ends with year 9999.
        integers = column.cast(pa.int64()).to_pylist()
        zone = " UTC" if kind.tz else ""
        return [None if value is None else _moment(value, kind.unit) + zone for value in integers]
    write = _writer(kind)
    return [None if value is None else write(value) for value in column.to_pylist()]


def _writer(kind: pa.DataType) -> Callable[[Any], Any]:
    """A function from what Arrow gives for a value to what Trino says of it."""
    if pt.is_float32(kind):
        return _real
    if pt.is_floating(kind):
        return _double
    if pt.is_decimal(kind):
        return lambda value: format(value, "f")
    if pt.is_uint64(kind):
        return str
    if pt.is_time(kind):
        return _time
    if pt.is_timestamp(kind):
        zone = " UTC" if kind.tz else ""
        # Not strftime, which writes the year 999 with three digits.
        return lambda value: value.replace(tzinfo=None).isoformat(" ", "microseconds") + zone
    if pt.is_binary(kind):
        return lambda value: base64.b64encode(value).decode()
    if pt.is_struct(kind):
        members = [(field.name, _writer(field.type)) for field in kind.fields]
        return lambda value: [
            None if value[name] is None else write(value[name]) for name, write in members
        ]
    if pt.is_map(kind):
        key, item = _writer(kind.key_type), _writer(kind.item_type)
        return lambda value: {
            _key(key(name)): None if held is None else item(held) for name, held in value
        }
    if pt.is_list(kind):
        element = _writer(kind.value_type)
        return lambda value: [None if each is None else element(each) for each in value]
    if pt.is_boolean(kind) or pt.is_integer(kind):
        return lambda value: value
    return str


def _key(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _moment(value: int, unit: str) -> str:
    at = np.datetime64(value, "ns") if unit == "ns" else np.datetime64(value, "us")
    return str(at).replace("T", " ")


def _time(value: time) -> str:
    return value.isoformat("microseconds")


def _double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _real(value: float) -> float | str:
    """The shortest number that is the same 32 bits, as Trino writes it."""
    return float(str(np.float32(value))) if math.isfinite(value) else _double(value)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
