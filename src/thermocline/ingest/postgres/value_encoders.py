"""Encode a value from the text that Postgres writes to the JSON that bronze reads.

Ordinary values take the form that Debezium uses in Kafka Connect, so one contract reads both
capture methods. A value that this form cannot represent (a date BC, an infinite time, an array of
several dimensions) keeps the text that Postgres writes: a column of the value's own type
quarantines and quotes it, and a string column keeps it.
"""

from __future__ import annotations

import base64
import json
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from json.encoder import encode_basestring as quote
from typing import Any

Encoder = Callable[[str], str]
"""Encodes the text of a value that is not null as JSON."""

SETTINGS = {
    "datestyle": "ISO,YMD",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
}
"""The session settings that make Postgres write the texts that this module reads."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"(?:[01]\d|2[0-3]):\d{2}:\d{2}(?:\.\d+)?")
_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(?:\.(\d+))?")
_TIMESTAMPTZ = re.compile(_TIMESTAMP.pattern + r"\+00")
_MONEY = re.compile(r"-?\$[\d,]+\.\d{2}")
_POINT = re.compile(r"\(([^,]+),([^,]+)\)")
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


@dataclass(frozen=True)
class PgType:
    """A row of pg_type. A domain refers to its base type."""

    name: str
    builtin: bool
    kind: str
    element: int = 0
    delimiter: str = ","
    base: int = 0
    base_modifier: int = -1


class ValueEncoders:
    """Encoders by type, cached. `lookup` queries the source; None means a dropped type."""

    def __init__(self, lookup: Callable[[int], PgType | None]) -> None:
        self._lookup = lookup
        self._cache: dict[tuple[int, int], Encoder] = {}

    def for_type(self, type_: int, modifier: int) -> Encoder:
        """Return the encoder for a type and its modifier, such as a length."""
        key = (type_, modifier)
        if key not in self._cache:
            self._cache[key] = self._build_encoder(type_, modifier)
        return self._cache[key]

    def _build_encoder(self, type_: int, modifier: int) -> Encoder:
        found = self._lookup(type_)
        if found is None:
            return quote
        if found.base:
            return self.for_type(found.base, found.base_modifier)
        if found.kind == "A" and found.element:
            inner = self.for_type(found.element, modifier)
            return lambda text: _encode_array(text, inner, found.delimiter)
        if found.name == "hstore":
            return _encode_hstore
        if not found.builtin:
            return quote
        if found.name == "bit":
            return _encode_boolean if modifier == 1 else quote
        return _ENCODERS.get(found.name, quote)


def _encode_number(text: str) -> str:
    if text == "-0":
        return "-0.0"  # JSON's -0 is an integer, which has no sign
    return quote(text) if text in _NOT_FINITE else text


def _encode_boolean(text: str) -> str:
    return "true" if text in {"t", "1"} else "false"


def _encode_bytes(text: str) -> str:
    return f'"{base64.b64encode(bytes.fromhex(text[2:])).decode()}"'


def _encode_date(text: str) -> str:
    return f'"{text}Z"' if _DATE.fullmatch(text) else quote(text)


def _encode_time(text: str) -> str:
    return f'"{text}Z"' if _TIME.fullmatch(text) else quote(text)


def _encode_timestamp(text: str) -> str:
    found = _TIMESTAMP.fullmatch(text)
    return f'"{text.replace(" ", "T")}Z"' if found else quote(text)


def _encode_timestamptz(text: str) -> str:
    found = _TIMESTAMPTZ.fullmatch(text)
    if found is None:
        return quote(text)
    day, time, fraction = found.groups()
    return f'"{day}T{time}.{(fraction or ""):0<6}Z"'


def _encode_money(text: str) -> str:
    # In another locale the number of digits is unknown, so the text is kept.
    return quote(text.replace("$", "").replace(",", "") if _MONEY.fullmatch(text) else text)


def _encode_point(text: str) -> str:
    found = _POINT.fullmatch(text)
    if found is None:
        return quote(text)
    x, y = found.groups()
    wkb = base64.b64encode(struct.pack("<BIdd", 1, 1, float(x), float(y))).decode()
    return f'{{"x":{_encode_number(x)},"y":{_encode_number(y)},"wkb":"{wkb}","srid":null}}'


def _encode_hstore(text: str) -> str:
    from psycopg2.extras import HstoreAdapter

    pairs: dict[str, Any] = HstoreAdapter.parse(text, None)
    return quote(json.dumps(pairs, ensure_ascii=False, separators=(",", ":")))


def _encode_array(text: str, inner: Encoder, delimiter: str) -> str:
    """Encode a one-dimensional array that starts at 1 as a list; quote any other array's text."""
    cells = _split_array(text, delimiter)
    if cells is None:
        return quote(text)
    return f"[{','.join('null' if cell is None else inner(cell) for cell in cells)}]"


def _split_array(text: str, delimiter: str) -> list[str | None] | None:
    """Return the elements of an array's text, or None if it is not a one-dimensional list."""
    if not (text.startswith("{") and text.endswith("}")):
        return None
    if text == "{}":
        return []
    cell = _cell(delimiter)
    cells: list[str | None] = []
    at, end = 1, len(text) - 1
    while True:
        found = cell.match(text, at, end)
        if found is None:
            return None
        quoted, bare = found.groups()
        if quoted is not None:
            cells.append(_ESCAPED.sub(r"\1", quoted))
        else:
            cells.append(None if bare == "NULL" else bare)
        at = found.end()
        if at == end:
            return cells
        if text[at] != delimiter:
            return None
        at += 1


_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_CELLS = {
    mark: re.compile(r'"((?:[^"\\]|\\.)*)"|([^"{}\\' + mark + r"]+)", re.DOTALL) for mark in ",;"
}


def _cell(delimiter: str) -> re.Pattern[str]:
    return _CELLS[delimiter]


_ENCODERS: dict[str, Encoder] = {
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8"), _encode_number),
    "bool": _encode_boolean,
    "bytea": _encode_bytes,
    "date": _encode_date,
    "time": _encode_time,
    "timestamp": _encode_timestamp,
    "timestamptz": _encode_timestamptz,
    "money": _encode_money,
    "point": _encode_point,
}
