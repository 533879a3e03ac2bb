"""Encode rows as bytes that the router forwards without parsing them.

    columns, body = encode(table, "json")

`columns` are [name, Arrow type, Trino type] each. json and trino are one JSON array a row, each on
its own line: json with the values of `engine.arrow.json_rows`, trino with those of Trino's client
protocol. csv is RFC 4180 with a header line; a null is an empty cell, an empty text is `""`. arrow
is an IPC stream. The rows are those of the canonical Arrow form.

Values are encoded column by column, as nearly all results are small and frequent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from itertools import repeat
from json.encoder import encode_basestring
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from thermocline.engine.arrow import canonical_type, normalize, to_json_rows
from thermocline.serve.rows.csv_cell import escape_cell
from thermocline.serve.rows.trino_values import trino_type, trino_values
from thermocline.serve.values import Format

Texts = list[str]

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ONE = date(1970, 1, 1).toordinal()
_SAME_IN_TRINO = (pt.is_string, pt.is_signed_integer, pt.is_boolean, pt.is_date32, pt.is_interval)
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(table: pa.Table, format: Format) -> tuple[list[list[str]], bytes]:
    """Return the columns and the encoded rows of a table."""
    if format == "arrow" or not all(_is_canonical(field.type) for field in table.schema):
        table = normalize(table)
    columns = [[field.name, *_type_names(field.type)] for field in table.schema]
    match format:
        case "arrow":
            return columns, _encode_arrow(table)
        case "csv":
            return columns, _encode_csv(table)
        case "trino":
            return columns, _encode_json_rows(
                [_trino_texts(column) for column in table.columns], table.num_rows
            )
    return columns, _encode_json_rows(
        [_json_texts(column) for column in table.columns], table.num_rows
    )


def _encode_arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _encode_json_rows(columns: list[Texts], rows: int) -> bytes:
    """Join columns of JSON texts into one array a row."""
    if not columns:
        return b"[]\n" * rows
    return "".join(f"[{','.join(row)}]\n" for row in zip(*columns, strict=True)).encode()


def _encode_csv(table: pa.Table) -> bytes:
    columns = [_csv_cells(column) for column in table.columns]
    if len(columns) == 1:  # readers skip an empty line, and with it the row
        columns = [[text or '""' for text in columns[0]]]
    names = ",".join(escape_cell(name) for name in table.column_names)
    rows = (",".join(row) for row in zip(*columns, strict=True)) if columns else repeat("", 0)
    return "".join(f"{line}\r\n" for line in (names, *rows)).encode()


def _csv_cells(column: pa.ChunkedArray) -> Texts:
    data_type = column.type
    if pt.is_string(data_type):
        return ["" if text is None else escape_cell(text) for text in column.to_pylist()]
    texts = _json_texts(column)
    if (
        pt.is_integer(data_type)
        or pt.is_boolean(data_type)
        or pt.is_floating(data_type)
        or pt.is_decimal(data_type)
    ):
        return ["" if text == "null" else text.strip('"') for text in texts]
    return ["" if text == "null" else escape_cell(_unquote(text)) for text in texts]


def _unquote(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


# JSON --------------------------------------------------------------------------------------------


def _json_texts(column: pa.ChunkedArray) -> Texts:
    """Return each value of a column as JSON text."""
    data_type = column.type
    write = _json_writer(data_type)
    if write is None:
        rows = to_json_rows(pa.Table.from_arrays([column], names=["value"]))
        return _write_values([row["value"] for row in rows], _dumps)
    if pt.is_timestamp(data_type):
        column = column.cast(pa.int64())
    elif pt.is_date32(data_type):
        column = column.cast(pa.int32())
    return _write_values(column.to_pylist(), write)


# Results are small and types few: what depends on the type alone is cached.


@lru_cache(1024)
def _is_canonical(data_type: pa.DataType) -> bool:
    return bool(data_type.equals(canonical_type(data_type), check_metadata=True))


@lru_cache(1024)
def _type_names(data_type: pa.DataType) -> tuple[str, str]:
    """Return the names of a type in Arrow and in Trino."""
    return str(data_type), trino_type(data_type)


@lru_cache(1024)
def _json_writer(data_type: pa.DataType) -> Callable[[Any], str] | None:
    """Return the function that writes a value of this type; None where rows are written instead."""
    if pt.is_string(data_type):
        return encode_basestring
    if pt.is_integer(data_type):
        return repr
    if pt.is_boolean(data_type):
        return lambda value: "true" if value else "false"
    if pt.is_float64(data_type) or pt.is_float32(data_type):
        return _format_float
    if pt.is_timestamp(data_type):
        return (
            _nanosecond_writer(bool(data_type.tz))
            if data_type.unit == "ns"
            else _microsecond_writer(bool(data_type.tz))
        )
    if pt.is_date32(data_type):
        return _format_date
    if pt.is_decimal(data_type):
        return lambda value: f'"{value}"'
    if pt.is_interval(data_type):
        return lambda value: f'"{_format_interval(value)}"'
    return None


def _trino_texts(column: pa.ChunkedArray) -> Texts:
    data_type = column.type
    if any(is_(data_type) for is_ in _SAME_IN_TRINO):
        return _json_texts(column)
    return _write_values(trino_values(column), _dumps)


def _write_values(values: list[Any], write: Callable[[Any], str]) -> Texts:
    return ["null" if value is None else write(value) for value in values]


def _format_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{value}"'


def _microsecond_writer(zoned: bool) -> Callable[[int], str]:
    epoch = _EPOCH_UTC if zoned else _EPOCH

    def write(value: int) -> str:
        try:
            return f'"{(epoch + timedelta(microseconds=value)).isoformat()}"'
        except OverflowError:  # years outside Python's calendar
            return f'"{np.datetime64(value, "us")}{"+00:00" if zoned else ""}"'

    return write


def _nanosecond_writer(zoned: bool) -> Callable[[int], str]:
    zone = "+00:00" if zoned else ""
    return lambda value: f'"{np.datetime64(value, "ns")}{zone}"'


def _format_date(days: int) -> str:
    try:
        return f'"{date.fromordinal(days + _DAY_ONE).isoformat()}"'
    except (ValueError, OverflowError):
        return f'"{np.datetime64(days, "D")}"'


def _format_interval(value: Any) -> str:
    """Return an interval (months, days, nanoseconds) in ISO 8601."""
    months, days, nanos = value
    seconds, rest = divmod(abs(nanos), 1_000_000_000)
    sign = "-" if nanos < 0 else ""
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    parts = [f"{months}M" if months else "", f"{days}D" if days else ""]
    clock = f"T{sign}{seconds}{fraction}S" if nanos else ""
    return "P" + ("".join(parts) + clock or "T0S")
