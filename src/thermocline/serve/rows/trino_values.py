"""Values and types in Trino's client protocol.

A timestamp is "2026-11-14 10:00:00.123456", with " UTC" where it has a zone. Decimals are text,
bytes base64, a row an array, a map an object with text keys; NaN and infinities are their names.
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

_TRINO_NAMES = {
    "bool": "boolean", "int8": "tinyint", "int16": "smallint", "int32": "integer",
    "int64": "bigint", "uint8": "smallint", "uint16": "integer", "uint32": "bigint",
    "uint64": "decimal(20,0)", "float": "real", "halffloat": "real", "double": "double",
    "string": "varchar", "binary": "varbinary", "date32[day]": "date", "null": "unknown",
}  # fmt: skip
_PRECISION = {"s": 0, "ms": 3, "us": 6, "ns": 9}


def trino_type(data_type: pa.DataType) -> str:
    """Return the Trino name of a canonical Arrow type, varchar for one that Trino does not have."""
    if pt.is_timestamp(data_type):
        zone = " with time zone" if data_type.tz else ""
        return f"timestamp({_PRECISION[data_type.unit]}){zone}"
    if pt.is_time(data_type):
        return f"time({_PRECISION[data_type.unit]})"
    if pt.is_decimal(data_type):
        return f"decimal({data_type.precision},{data_type.scale})"
    if pt.is_struct(data_type):
        members = (f"{_quote(field.name)} {trino_type(field.type)}" for field in data_type.fields)
        return f"row({', '.join(members)})"
    if pt.is_map(data_type):
        return f"map({trino_type(data_type.key_type)}, {trino_type(data_type.item_type)})"
    if pt.is_list(data_type):
        return f"array({trino_type(data_type.value_type)})"
    return _TRINO_NAMES.get(str(data_type), "varchar")


def trino_values(column: pa.ChunkedArray) -> list[Any]:
    """Return the values of a canonical column, ready for JSON."""
    data_type = column.type
    if pt.is_timestamp(data_type):
        # Not Python's datetime, which has no nanoseconds and ends with year 9999.
        integers = column.cast(pa.int64()).to_pylist()
        zone = " UTC" if data_type.tz else ""
        return [
            None if value is None else _format_timestamp(value, data_type.unit) + zone
            for value in integers
        ]
    write = _value_writer(data_type)
    return [None if value is None else write(value) for value in column.to_pylist()]


def _value_writer(data_type: pa.DataType) -> Callable[[Any], Any]:
    """Return the function that converts a value from Arrow to Trino's JSON."""
    if pt.is_float32(data_type):
        return _format_real
    if pt.is_floating(data_type):
        return _format_double
    if pt.is_decimal(data_type):
        return lambda value: format(value, "f")
    if pt.is_uint64(data_type):
        return str
    if pt.is_time(data_type):
        return _format_time
    if pt.is_timestamp(data_type):
        zone = " UTC" if data_type.tz else ""
        # Not strftime, which writes the year 999 with three digits.
        return lambda value: value.replace(tzinfo=None).isoformat(" ", "microseconds") + zone
    if pt.is_binary(data_type):
        return lambda value: base64.b64encode(value).decode()
    if pt.is_struct(data_type):
        members = [(field.name, _value_writer(field.type)) for field in data_type.fields]
        return lambda value: [
            None if value[name] is None else write(value[name]) for name, write in members
        ]
    if pt.is_map(data_type):
        key, item = _value_writer(data_type.key_type), _value_writer(data_type.item_type)
        return lambda value: {
            _format_key(key(name)): None if held is None else item(held) for name, held in value
        }
    if pt.is_list(data_type):
        element = _value_writer(data_type.value_type)
        return lambda value: [None if each is None else element(each) for each in value]
    if pt.is_boolean(data_type) or pt.is_integer(data_type):
        return lambda value: value
    return str


def _format_key(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _format_timestamp(value: int, unit: str) -> str:
    at = np.datetime64(value, "ns") if unit == "ns" else np.datetime64(value, "us")
    return str(at).replace("T", " ")


def _format_time(value: time) -> str:
    return value.isoformat("microseconds")


def _format_double(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def _format_real(value: float) -> float | str:
    """Return the shortest number that has the same 32 bits, as Trino writes it."""
    return float(str(np.float32(value))) if math.isfinite(value) else _format_double(value)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
