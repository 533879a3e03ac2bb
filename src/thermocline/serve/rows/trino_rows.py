"""Encode the rows of a Trino server in the formats of our answers.

The same value has the same text from every engine. `encode` writes Arrow tables of our own workers;
this module writes the JSON of Trino, and imports no Arrow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

from thermocline.serve.rows.csv_cell import escape_cell
from thermocline.serve.values import EncodedRows, Format, ResultColumn

_ARROW_NAMES = {
    "boolean": "bool", "tinyint": "int8", "smallint": "int16", "integer": "int32",
    "bigint": "int64", "real": "float", "double": "double", "varchar": "string", "char": "string",
    "varbinary": "binary", "date": "date32[day]", "json": "string", "uuid": "string",
    "unknown": "null",
}  # fmt: skip
_UNQUOTED_TYPES = frozenset(
    {"tinyint", "smallint", "integer", "bigint", "real", "double", "decimal", "boolean"}
)
_NON_FINITE = {"NaN": "nan", "Infinity": "inf", "-Infinity": "-inf"}
_TIMESTAMP = re.compile(r"(\S+) (\d\d:\d\d:\d\d)(?:\.(\d+))?(?: (\S+))?")
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

ValueWriter = Callable[[Any], Any]
"""Converts a value of Trino's JSON to the value of the answer."""


class TrinoRowReader:
    """Takes the pages of a Trino query in order and keeps their rows, encoded."""

    def __init__(self, format: Format) -> None:
        self._format = format
        self._columns: tuple[ResultColumn, ...] = ()
        self._writers: list[ValueWriter] = []
        self._is_unquoted: list[bool] = []
        self._lines: list[str] = []
        self.count = 0
        self.size = 0

    def add_page(self, page: Mapping[str, Any]) -> None:
        """Add one page, which may have columns and rows."""
        if not self._columns and page.get("columns"):
            self._set_columns(page["columns"])
        for row in page.get("data") or ():
            values = [
                None if value is None else write(value)
                for value, write in zip(row, self._writers, strict=True)
            ]
            line = self._csv_line(values) if self._format == "csv" else _dumps(values) + "\n"
            self._lines.append(line)
            self.count += 1
            self.size += len(line)

    def to_rows(self, ms: Mapping[str, float]) -> EncodedRows:
        """Return all rows."""
        return EncodedRows(self._columns, self.count, "".join(self._lines).encode(), ms)

    def _set_columns(self, columns: list[Mapping[str, Any]]) -> None:
        signatures = [column["typeSignature"] for column in columns]
        self._columns = tuple(
            ResultColumn(str(column["name"]), _arrow_type(signature), _trino_type(signature))
            for column, signature in zip(columns, signatures, strict=True)
        )
        writer = _trino_writer if self._format == "trino" else _json_writer
        self._writers = [writer(signature) for signature in signatures]
        self._is_unquoted = [signature["rawType"] in _UNQUOTED_TYPES for signature in signatures]
        if self._format == "csv":
            line = ",".join(escape_cell(column.name) for column in self._columns) + "\r\n"
            self._lines.append(line)

    def _csv_line(self, values: list[Any]) -> str:
        cells = []
        for value, is_unquoted in zip(values, self._is_unquoted, strict=True):
            if value is None:
                cells.append("")
            elif is_unquoted:
                cells.append(value if isinstance(value, str) else _dumps(value))
            else:
                cells.append(escape_cell(value if isinstance(value, str) else _dumps(value)))
        return ",".join(cells) + "\r\n"


# Types -------------------------------------------------------------------------------------------


def _type_arguments(signature: Mapping[str, Any]) -> list[Any]:
    return [argument["value"] for argument in signature.get("arguments") or ()]


def _row_fields(signature: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the names and types of a row type."""
    return [
        (str((part.get("fieldName") or {}).get("name", "")), part["typeSignature"])
        for part in _type_arguments(signature)
    ]


def _arrow_type(signature: Mapping[str, Any]) -> str:
    """Return the Arrow name of a Trino type."""
    raw, arguments = signature["rawType"], _type_arguments(signature)
    match raw:
        case "decimal":
            return f"decimal128({arguments[0]}, {arguments[1]})"
        case "timestamp":
            return "timestamp[us]"
        case "timestamp with time zone":
            return "timestamp[us, tz=UTC]"
        case "time":
            return "time64[us]"
        case "array":
            return f"list<element: {_arrow_type(arguments[0])}>"
        case "map":
            return f"map<{_arrow_type(arguments[0])}, {_arrow_type(arguments[1])}>"
        case "row":
            return (
                f"struct<{', '.join(f'{n}: {_arrow_type(k)}' for n, k in _row_fields(signature))}>"
            )
    return _ARROW_NAMES.get(raw, "string")


def _trino_type(signature: Mapping[str, Any]) -> str:
    """Return the Trino name of the type, without lengths that other engines do not have."""
    raw, arguments = signature["rawType"], _type_arguments(signature)
    match raw:
        case "decimal":
            return f"decimal({arguments[0]},{arguments[1]})"
        case "timestamp" | "time":
            return f"{raw}({max(_precision(arguments), 6)})"
        case "timestamp with time zone":
            return f"timestamp({max(_precision(arguments), 6)}) with time zone"
        case "array":
            return f"array({_trino_type(arguments[0])})"
        case "map":
            return f"map({_trino_type(arguments[0])}, {_trino_type(arguments[1])})"
        case "row":
            fields = (f"{_quote(name)} {_trino_type(of)}" for name, of in _row_fields(signature))
            return f"row({', '.join(fields)})"
    return str(raw)


def _precision(arguments: list[Any]) -> int:
    return int(arguments[0]) if arguments else 3


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


# Values ------------------------------------------------------------------------------------------


def _json_writer(signature: Mapping[str, Any]) -> ValueWriter:
    """Return the function that converts values of a type to our JSON."""
    raw, arguments = signature["rawType"], _type_arguments(signature)
    match raw:
        case "double" | "real":
            return lambda value: _NON_FINITE.get(value, value) if isinstance(value, str) else value
        case "timestamp":
            return lambda value: _format_iso(value, zoned=False)
        case "timestamp with time zone":
            return lambda value: _format_iso(value, zoned=True)
        case "time":
            return lambda value: _format_time(str(value))
        case "array":
            return _list_writer(_json_writer(arguments[0]))
        case "map":
            return _map_writer(arguments[0], _json_writer(arguments[1]))
        case "row":
            names = [(name, _json_writer(of)) for name, of in _row_fields(signature)]
            return lambda value: {
                name: None if held is None else write(held)
                for (name, write), held in zip(names, value, strict=True)
            }
    return lambda value: value


def _trino_writer(signature: Mapping[str, Any]) -> ValueWriter:
    """Return the function that keeps Trino's values, with times in microseconds and UTC."""
    raw, arguments = signature["rawType"], _type_arguments(signature)
    match raw:
        case "timestamp":
            return lambda value: _format_trino(value, zoned=False)
        case "timestamp with time zone":
            return lambda value: _format_trino(value, zoned=True)
        case "array":
            return _list_writer(_trino_writer(arguments[0]))
        case "row":
            writers = [_trino_writer(of) for _, of in _row_fields(signature)]
            return lambda value: [
                None if held is None else write(held)
                for write, held in zip(writers, value, strict=True)
            ]
        case "map":
            write = _trino_writer(arguments[1])
            return lambda value: {
                name: None if held is None else write(held) for name, held in value.items()
            }
    return lambda value: value


def _list_writer(write: ValueWriter) -> ValueWriter:
    return lambda value: [None if held is None else write(held) for held in value]


def _map_writer(key: Mapping[str, Any], write: ValueWriter) -> ValueWriter:
    """Write an object where the keys are text, otherwise pairs whose keys keep their type."""
    if key["rawType"] in {"varchar", "char"}:
        return lambda value: {k: None if v is None else write(v) for k, v in value.items()}
    integer = key["rawType"] in {"tinyint", "smallint", "integer", "bigint"}
    return lambda value: [
        [int(k) if integer else k, None if v is None else write(v)] for k, v in value.items()
    ]


def _parse_timestamp(value: str, zoned: bool) -> tuple[datetime, str] | None:
    """Return a time, in UTC where it has a zone, and its fraction; None when Python cannot parse
    it.
    """
    found = _TIMESTAMP.fullmatch(value)
    if found is None or bool(found[4]) is not zoned:
        return None
    try:
        timestamp = datetime.fromisoformat(f"{found[1]}T{found[2]}")
        if found[4] and found[4] != "UTC":
            timestamp = timestamp.replace(tzinfo=_parse_zone(found[4])).astimezone(UTC)
    except (ValueError, OverflowError, KeyError):
        return None
    return timestamp.replace(tzinfo=None), found[3] or ""


def _parse_zone(name: str) -> timezone | ZoneInfo:
    if re.fullmatch(r"[+-]\d\d:\d\d", name):
        offset = datetime.fromisoformat(f"2000-01-01T00:00:00{name}").tzinfo
        assert isinstance(offset, timezone)
        return offset
    return ZoneInfo(name)


def _format_iso(value: str, *, zoned: bool) -> str:
    found = _parse_timestamp(value, zoned)
    if found is None:
        return value
    timestamp, fraction = found
    digits = fraction.ljust(6, "0") if fraction.strip("0") else ""
    return f"{timestamp.isoformat()}{'.' if digits else ''}{digits}{'+00:00' if zoned else ''}"


def _format_trino(value: str, *, zoned: bool) -> str:
    found = _parse_timestamp(value, zoned)
    if found is None:
        return value
    timestamp, fraction = found
    return f"{timestamp.isoformat(' ')}.{fraction.ljust(6, '0')}{' UTC' if zoned else ''}"


def _format_time(value: str) -> str:
    """Return a time of day as Python writes it: six fractional digits, or none when zero."""
    clock, _, fraction = value.partition(".")
    return f"{clock}.{fraction.ljust(6, '0')}" if fraction.strip("0") else clock
