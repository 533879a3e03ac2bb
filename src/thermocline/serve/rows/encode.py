"""Rows as bytes that the router passes on without looking into them.

    columns, body = encode(table, "json")

`columns` are [name, Arrow type, Trino type] each. json and trino are one JSON array a row, each on
its own line: json with the values that `engine.arrow.json_rows` gives, trino with those of Trino's
client protocol. csv is RFC 4180 with a header line, a null an empty cell and an empty text `""`;
arrow is an IPC stream. The rows are those of the canonical Arrow form.

Values are written column by column, as nearly all results are small and asked for often.
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

from thermocline.engine.arrow import canonical, json_rows, normalise
from thermocline.serve.rows.cell import cell
from thermocline.serve.rows.trino_values import trino_type, trino_values
from thermocline.serve.terms import Format

Texts = list[str]

_EPOCH = datetime(1970, 1, 1)
_EPOCH_UTC = datetime(1970, 1, 1, tzinfo=UTC)
_DAY_ONE = date(1970, 1, 1).toordinal()
_same_in_both = (pt.is_string, pt.is_signed_integer, pt.is_boolean, pt.is_date32, pt.is_interval)
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(table: pa.Table, format: Format) -> tuple[list[list[str]], bytes]:
    """The columns and the encoded rows of a table."""
    if format == "arrow" or not all(_is_canonical(field.type) for field in table.schema):
        table = normalise(table)
    columns = [[field.name, *_words(field.type)] for field in table.schema]
    match format:
        case "arrow":
            return columns, _arrow(table)
        case "csv":
            return columns, _csv(table)
        case "trino":
            return columns, _lines([_trino(column) for column in table.columns], table.num_rows)
    return columns, _lines([_json(column) for column in table.columns], table.num_rows)


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _lines(columns: list[Texts], rows: int) -> bytes:
    """Columns of JSON texts as one array a row."""
    if not columns:
        return b"[]\n" * rows
    return "".join(f"[{','.join(row)}]\n" for row in zip(*columns, strict=True)).encode()


def _csv(table: pa.Table) -> bytes:
    columns = [_cells(column) for column in table.columns]
    if len(columns) == 1:  # readers skip an empty line, and with it the row
        columns = [[text or '""' for text in columns[0]]]
    names = ",".join(cell(name) for name in table.column_names)
    rows = (",".join(row) for row in zip(*columns, strict=True)) if columns else repeat("", 0)
    return "".join(f"{line}\r\n" for line in (names, *rows)).encode()


def _cells(column: pa.ChunkedArray) -> Texts:
    kind = column.type
    if pt.is_string(kind):
        return ["" if text is None else cell(text) for text in column.to_pylist()]
    texts = _json(column)
    if pt.is_integer(kind) or pt.is_boolean(kind) or pt.is_floating(kind) or pt.is_decimal(kind):
        return ["" if text == "null" else text.strip('"') for text in texts]
    return ["" if text == "null" else cell(_unquoted(text)) for text in texts]


def _unquoted(text: str) -> str:
    return str(json.loads(text)) if text.startswith('"') else text


# JSON --------------------------------------------------------------------------------------------


def _json(column: pa.ChunkedArray) -> Texts:
    """Each value of a column as JSON text."""
    kind = column.type
    write = _json_writer(kind)
    if write is None:
        rows = json_rows(pa.Table.from_arrays([column], names=["value"]))
        return _texts([row["value"] for row in rows], _dumps)
    if pt.is_timestamp(kind):
        column = column.cast(pa.int64())
    elif pt.is_date32(kind):
        column = column.cast(pa.int32())
    return _texts(column.to_pylist(), write)


# What follows from a type alone is found out once: results are small, and there are few types.


@lru_cache(1024)
def _is_canonical(kind: pa.DataType) -> bool:
    return bool(kind.equals(canonical(kind), check_metadata=True))


@lru_cache(1024)
def _words(kind: pa.DataType) -> tuple[str, str]:
    """A type in the words of Arrow and of Trino."""
    return str(kind), trino_type(kind)


@lru_cache(1024)
def _json_writer(kind: pa.DataType) -> Callable[[Any], str] | None:
    """What writes a value of a plain type; None for the others, which are written row by row."""
    if pt.is_string(kind):
        return encode_basestring
    if pt.is_integer(kind):
        return repr
    if pt.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if pt.is_float64(kind) or pt.is_float32(kind):
        return _json_float
    if pt.is_timestamp(kind):
        return _nanos(bool(kind.tz)) if kind.unit == "ns" else _micros(bool(kind.tz))
    if pt.is_date32(kind):
        return _json_date
    if pt.is_decimal(kind):
        return lambda value: f'"{value}"'
    if pt.is_interval(kind):
        return lambda value: f'"{interval_text(value)}"'
    return None


def _trino(column: pa.ChunkedArray) -> Texts:
    kind = column.type
    if any(is_(kind) for is_ in _same_in_both):
        return _json(column)
    return _texts(trino_values(column), _dumps)


def _texts(values: list[Any], write: Callable[[Any], str]) -> Texts:
    return ["null" if value is None else write(value) for value in values]


def _json_float(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{value}"'


def _micros(zoned: bool) -> Callable[[int], str]:
    epoch = _EPOCH_UTC if zoned else _EPOCH

    def write(value: int) -> str:
        try:
            return f'"{(epoch + timedelta(microseconds=value)).isoformat()}"'
        except OverflowError:  # years that Python's calendar does not reach
            return f'"{np.datetime64(value, "us")}{"+00:00" if zoned else ""}"'

    return write


def _nanos(zoned: bool) -> Callable[[int], str]:
    zone = "+00:00" if zoned else ""
    return lambda value: f'"{np.datetime64(value, "ns")}{zone}"'


def _json_date(days: int) -> str:
    try:
        return f'"{date.fromordinal(days + _DAY_ONE).isoformat()}"'
    except (ValueError, OverflowError):
        return f'"{np.datetime64(days, "D")}"'


def interval_text(value: Any) -> str:
    """An interval (months, days, nanoseconds) as ISO 8601 writes it."""
    months, days, nanos = value
    seconds, rest = divmod(abs(nanos), 1_000_000_000)
    sign = "-" if nanos < 0 else ""
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    parts = [f"{months}M" if months else "", f"{days}D" if days else ""]
    clock = f"T{sign}{seconds}{fraction}S" if nanos else ""
    return "P" + ("".join(parts) + clock or "T0S")
