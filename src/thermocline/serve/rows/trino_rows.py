"""Rows that come from a Trino server, in the forms in which we answer.

The same values have the same text whoever gave them: `encode` writes what comes from our own
workers, which have Arrow; this writes what comes as Trino's JSON, and imports none.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

from thermocline.serve.rows.cell import cell
from thermocline.serve.terms import Column, Format, Rows

_ARROW = {
    "boolean": "bool", "tinyint": "int8", "smallint": "int16", "integer": "int32",
    "bigint": "int64", "real": "float", "double": "double", "varchar": "string", "char": "string",
    "varbinary": "binary", "date": "date32[day]", "json": "string", "uuid": "string",
    "unknown": "null",
}  # fmt: skip
_NUMBERS = frozenset({"tinyint", "smallint", "integer", "bigint", "real", "double", "decimal",
                      "boolean"})  # fmt: skip
_NAMES = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_MOMENT = re.compile(r"(\S+) (\d\d:\d\d:\d\d)(?:\.(\d+))?(?: (\S+))?")
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

Write = Callable[[Any], Any]
"""A value of Trino's JSON as a value of ours."""


class Reader:
    """Takes Trino's answers one after the other and keeps their rows, encoded."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._columns: tuple[Column, ...] = ()
        self._writers: list[Write] = []
        self._cells: list[bool] = []
        self._lines: list[str] = []
        self.count = 0
        self.size = 0

    def take(self, said: Mapping[str, Any]) -> None:
        """One answer: perhaps with columns, perhaps with rows."""
        if not self._columns and said.get("columns"):
            self._begin(said["columns"])
        for row in said.get("data") or ():
            values = [
                None if value is None else write(value)
                for value, write in zip(row, self._writers, strict=True)
            ]
            line = self._csv(values) if self._format == "csv" else _dumps(values) + "\n"
            self._lines.append(line)
            self.count += 1
            self.size += len(line)

    def rows(self, ms: Mapping[str, float]) -> Rows:
        """All of them."""
        return Rows(self._columns, self.count, "".join(self._lines).encode(), ms)

    def _begin(self, columns: list[Mapping[str, Any]]) -> None:
        kinds = [column["typeSignature"] for column in columns]
        self._columns = tuple(
            Column(str(column["name"]), _arrow(kind), _word(kind))
            for column, kind in zip(columns, kinds, strict=True)
        )
        writer = _as_trino if self._format == "trino" else _as_json
        self._writers = [writer(kind) for kind in kinds]
        self._cells = [kind["rawType"] in _NUMBERS for kind in kinds]
        if self._format == "csv":
            line = ",".join(cell(column.name) for column in self._columns) + "\r\n"
            self._lines.append(line)

    def _csv(self, values: list[Any]) -> str:
        cells = []
        for value, plain in zip(values, self._cells, strict=True):
            if value is None:
                cells.append("")
            elif plain:
                cells.append(value if isinstance(value, str) else _dumps(value))
            else:
                cells.append(cell(value if isinstance(value, str) else _dumps(value)))
        return ",".join(cells) + "\r\n"


# Types -------------------------------------------------------------------------------------------


def _parts(kind: Mapping[str, Any]) -> list[Any]:
    return [argument["value"] for argument in kind.get("arguments") or ()]


def _members(kind: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """The names and types of a row."""
    return [
        (str((part.get("fieldName") or {}).get("name", "")), part["typeSignature"])
        for part in _parts(kind)
    ]


def _arrow(kind: Mapping[str, Any]) -> str:
    """Arrow's word for a type of Trino's."""
    raw, parts = kind["rawType"], _parts(kind)
    match raw:
        case "decimal":
            return f"decimal128({parts[0]}, {parts[1]})"
        case "timestamp":
            return "timestamp[us]"
        case "timestamp with time zone":
            return "timestamp[us, tz=UTC]"
        case "time":
            return "time64[us]"
        case "array":
            return f"list<element: {_arrow(parts[0])}>"
        case "map":
            return f"map<{_arrow(parts[0])}, {_arrow(parts[1])}>"
        case "row":
            return f"struct<{', '.join(f'{n}: {_arrow(k)}' for n, k in _members(kind))}>"
    return _ARROW.get(raw, "string")


def _word(kind: Mapping[str, Any]) -> str:
    """Trino's word for the type, without widths that our other engines do not know."""
    raw, parts = kind["rawType"], _parts(kind)
    match raw:
        case "decimal":
            return f"decimal({parts[0]},{parts[1]})"
        case "timestamp" | "time":
            return f"{raw}({max(_digits(parts), 6)})"
        case "timestamp with time zone":
            return f"timestamp({max(_digits(parts), 6)}) with time zone"
        case "array":
            return f"array({_word(parts[0])})"
        case "map":
            return f"map({_word(parts[0])}, {_word(parts[1])})"
        case "row":
            members = (f"{_quoted(name)} {_word(of)}" for name, of in _members(kind))
            return f"row({', '.join(members)})"
    return str(raw)


def _digits(parts: list[Any]) -> int:
    return int(parts[0]) if parts else 3


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Values ------------------------------------------------------------------------------------------


def _as_json(kind: Mapping[str, Any]) -> Write:
    """How values of a type are written in our JSON."""
    raw, parts = kind["rawType"], _parts(kind)
    match raw:
        case "double" | "real":
            return lambda value: _NAMES.get(value, value) if isinstance(value, str) else value
        case "timestamp":
            return lambda value: _iso(value, zoned=False)
        case "timestamp with time zone":
            return lambda value: _iso(value, zoned=True)
        case "time":
            return lambda value: _trimmed(str(value))
        case "array":
            return _each(_as_json(parts[0]))
        case "map":
            return _map(parts[0], _as_json(parts[1]))
        case "row":
            names = [(name, _as_json(of)) for name, of in _members(kind)]
            return lambda value: {
                name: None if held is None else write(held)
                for (name, write), held in zip(names, value, strict=True)
            }
    return lambda value: value


def _as_trino(kind: Mapping[str, Any]) -> Write:
    """Trino's own values, with times as our other engines give them: in microseconds and UTC."""
    raw, parts = kind["rawType"], _parts(kind)
    match raw:
        case "timestamp":
            return lambda value: _trino_moment(value, zoned=False)
        case "timestamp with time zone":
            return lambda value: _trino_moment(value, zoned=True)
        case "array":
            return _each(_as_trino(parts[0]))
        case "row":
            writers = [_as_trino(of) for _, of in _members(kind)]
            return lambda value: [
                None if held is None else write(held)
                for write, held in zip(writers, value, strict=True)
            ]
        case "map":
            write = _as_trino(parts[1])
            return lambda value: {
                name: None if held is None else write(held) for name, held in value.items()
            }
    return lambda value: value


def _each(write: Write) -> Write:
    return lambda value: [None if held is None else write(held) for held in value]


def _map(key: Mapping[str, Any], write: Write) -> Write:
    """An object where the keys are text; otherwise pairs, with keys of their own type."""
    if key["rawType"] in {"varchar", "char"}:
        return lambda value: {k: None if v is None else write(v) for k, v in value.items()}
    integer = key["rawType"] in {"tinyint", "smallint", "integer", "bigint"}
    return lambda value: [
        [int(k) if integer else k, None if v is None else write(v)] for k, v in value.items()
    ]


def _moment(value: str, zoned: bool) -> tuple[datetime, str] | None:
    """A time, in UTC where it has a zone, and its fraction; None when Python cannot tell it."""
    found = _MOMENT.fullmatch(value)
    if found is None or bool(found[4]) is not zoned:
        return None
    try:
        moment = datetime.fromisoformat(f"{found[1]}T{found[2]}")
        if found[4] and found[4] != "UTC":
            moment = moment.replace(tzinfo=_zone(found[4])).astimezone(UTC)
    except (ValueError, OverflowError, KeyError):
        return None
    return moment.replace(tzinfo=None), found[3] or ""


def _zone(name: str) -> timezone | ZoneInfo:
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        offset = datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo
        assert isinstance(offset, timezone)
        return offset
    return ZoneInfo(name)


def _iso(value: str, *, zoned: bool) -> str:
    found = _moment(value, zoned)
    if found is None:
        return value
    moment, fraction = found
    digits = fraction.ljust(6, "0") if fraction.strip("0") else ""
    return f"{moment.isoformat()}{'.' if digits else ''}{digits}{'+00:00' if zoned else ''}"


def _trino_moment(value: str, *, zoned: bool) -> str:
    found = _moment(value, zoned)
    if found is None:
        return value
    moment, fraction = found
    return f"{moment.isoformat(' ')}.{fraction.ljust(6, '0')}{' UTC' if zoned else ''}"


def _trimmed(value: str) -> str:
    """A time of day as Python writes it: without a fraction that is zero, else with six digits."""
    clock, _, fraction = value.partition(".")
    return f"{clock}.{fraction.ljust(6, '0')}" if fraction.strip("0") else clock
