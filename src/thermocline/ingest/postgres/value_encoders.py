"""A value as Postgres writes it, as the JSON text that bronze reads.

Ordinary values take the form that Debezium gives them in Kafka Connect, so that a contract reads
both ways of capture alike. A value that this form cannot hold (a date BC, an infinite time, an
array of several dimensions) stays the text that Postgres writes: a column of the value's own type
then quarantines it, and quotes it, and a string column keeps it.
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
"""From the text of a value that is not null to JSON."""

SETTINGS = {
    "datestyle": "ISO,YMD",
    "intervalstyle": "iso_8601",
    "timezone": "UTC",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
}
"""The session settings under which Postgres writes the texts that are read here."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_TIME = re.compile(r"(?:[01]\d|2[0-3]):\d{2}:\d{2}(?:\.\d+)?")
_TIMESTAMP = re.compile(r"(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(?:\.(\d+))?")
_TIMESTAMPTZ = re.compile(_TIMESTAMP.pattern + r"\+00")
_MONEY = re.compile(r"-?\$[\d,]+\.\d{2}")
_POINT = re.compile(r"\(([^,]+),([^,]+)\)")
_NOT_FINITE = frozenset({"NaN", "Infinity", "-Infinity"})


@dataclass(frozen=True)
class PgType:
    """What pg_type says of a type. A domain is described by the type under it."""

    name: str
    builtin: bool
    kind: str
    element: int = 0
    delimiter: str = ","
    base: int = 0
    base_modifier: int = -1


class Encoders:
    """Encoders by type, looked up once each. `lookup` asks the source; None is a dropped type."""

    def __init__(self, lookup: Callable[[int], PgType | None]) -> None:
        self._lookup = lookup
        self._found: dict[tuple[int, int], Encoder] = {}

    def of(self, type_: int, modifier: int) -> Encoder:
        """Return the encoder of a type with its modifier, such as a length."""
        key = (type_, modifier)
        if key not in self._found:
            self._found[key] = self._encoder(type_, modifier)
        return self._found[key]

    def _encoder(self, type_: int, modifier: int) -> Encoder:
        found = self._lookup(type_)
        if found is None:
            return quote
        if found.base:
            return self.of(found.base, found.base_modifier)
        if found.kind == "A" and found.element:
            inner = self.of(found.element, modifier)
            return lambda text: _array(text, inner, found.delimiter)
        if found.name == "hstore":
            return _hstore
        if not found.builtin:
            return quote
        if found.name == "bit":
            return _truth if modifier == 1 else quote
        return _ENCODERS.get(found.name, quote)


def _number(text: str) -> str:
    if text == "-0":
        return "-0.0"  # JSON's -0 is an integer, which has no sign
    return quote(text) if text in _NOT_FINITE else text


def _truth(text: str) -> str:
    return "true" if text in {"t", "1"} else "false"


def _bytes(text: str) -> str:
    return f'"{base64.b64encode(bytes.fromhex(text[2:])).decode()}"'


def _date(text: str) -> str:
    return f'"{text}Z"' if _DATE.fullmatch(text) else quote(text)


def _time(text: str) -> str:
    return f'"{text}Z"' if _TIME.fullmatch(text) else quote(text)


def _timestamp(text: str) -> str:
    found = _TIMESTAMP.fullmatch(text)
    return f'"{text.replace(" ", "T")}Z"' if found else quote(text)


def _timestamptz(text: str) -> str:
    found = _TIMESTAMPTZ.fullmatch(text)
    if found is None:
        return quote(text)
    day, time, fraction = found.groups()
    return f'"{day}T{time}.{(fraction or ""):0<6}Z"'


def _money(text: str) -> str:
    # With the signs of another locale it stays as it is: how many digits it has is not known here.
    return quote(text.replace("$", "").replace(",", "") if _MONEY.fullmatch(text) else text)


def _point(text: str) -> str:
    found = _POINT.fullmatch(text)
    if found is None:
        return quote(text)
    x, y = found.groups()
    wkb = base64.b64encode(struct.pack("<BIdd", 1, 1, float(x), float(y))).decode()
    return f'{{"x":{_number(x)},"y":{_number(y)},"wkb":"{wkb}","srid":null}}'


def _hstore(text: str) -> str:
    from psycopg2.extras import HstoreAdapter

    pairs: dict[str, Any] = HstoreAdapter.parse(text, None)
    return quote(json.dumps(pairs, ensure_ascii=False, separators=(",", ":")))


def _array(text: str, inner: Encoder, delimiter: str) -> str:
    """A list of one dimension that begins at 1, as JSON; every other one as Postgres writes it."""
    cells = _cells(text, delimiter)
    if cells is None:
        return quote(text)
    return f"[{','.join('null' if cell is None else inner(cell) for cell in cells)}]"


def _cells(text: str, delimiter: str) -> list[str | None] | None:
    """The elements of an array's text, or None if they are not a plain list."""
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
        quoted, plain = found.groups()
        if quoted is not None:
            cells.append(_ESCAPED.sub(r"\1", quoted))
        else:
            cells.append(None if plain == "NULL" else plain)
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
    **dict.fromkeys(("int2", "int4", "int8", "oid", "float4", "float8"), _number),
    "bool": _truth,
    "bytea": _bytes,
    "date": _date,
    "time": _time,
    "timestamp": _timestamp,
    "timestamptz": _timestamptz,
    "money": _money,
    "point": _point,
}
