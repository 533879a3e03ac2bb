"""Trino's type names: from contract types, as type signatures, and as JDBC type codes."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from thermocline.contract import types as contract
from thermocline.contract.type_syntax import parse_type
from thermocline.errors import BadInput

_TYPE_NAMES = {
    "boolean": "boolean",
    "int": "integer",
    "long": "bigint",
    "float": "real",
    "double": "double",
    "date": "date",
    "time": "time(6)",
    "timestamp": "timestamp(6)",
    "timestamptz": "timestamp(6) with time zone",
    "string": "varchar",
    "uuid": "uuid",
    "binary": "varbinary",
}
_UNBOUNDED = 2_147_483_647
"""The length of a VARCHAR without a length, as clients expect it."""


@lru_cache(maxsize=4096)
def trino_type_name(word: str) -> str:
    """Return Trino's name of a contract type.

    A type that cannot be parsed, such as a struct with field names that contracts do not allow,
    becomes varchar: listing tables never fails because of a column.
    """
    try:
        return _type_name(parse_type(word))
    except BadInput:
        return "varchar"


def _type_name(kind: contract.Type) -> str:
    match kind:
        case contract.Primitive(name):
            return _TYPE_NAMES.get(name, "varchar")
        case contract.Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case contract.Fixed():
            return "varbinary"
        case contract.List(element):
            return f"array({_type_name(element)})"
        case contract.Map(key, value):
            return f"map({_type_name(key)}, {_type_name(value)})"
        case contract.Struct(fields):
            return f"row({', '.join(_field(each) for each in fields)})"


def _field(field: contract.Field) -> str:
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", field.name)
    quoted = field.name if plain else '"' + field.name.replace('"', '""') + '"'
    return f"{quoted} {_type_name(field.type)}"


@lru_cache(maxsize=4096)
def type_signature(word: str) -> dict[str, Any]:
    """Return the type signature of a Trino type name, as clients expect it."""
    word = word.strip()
    outer, bracket, rest = word.partition("(")
    if not bracket:
        numbers = [_UNBOUNDED] if word == "varchar" else []
        return _build_signature(word, [{"kind": "LONG", "value": each} for each in numbers])
    end = rest.rindex(")")
    inner, after = rest[:end], rest[end + 1 :]
    outer = outer.strip()
    if outer in {"array", "map"}:
        types = [{"kind": "TYPE", "value": type_signature(part)} for part in _split(inner)]
        return _build_signature(outer, types)
    if outer == "row":
        return _build_signature(outer, [_named_argument(part) for part in _split(inner)])
    longs = [{"kind": "LONG", "value": int(part)} for part in inner.split(",")]
    return _build_signature(outer + after, longs)


def _build_signature(raw: str, arguments: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rawType": raw, "arguments": arguments}


def _named_argument(text: str) -> dict[str, Any]:
    quoted = re.match(r'"((?:[^"]|"")*)"\s+(.*)', text, re.DOTALL)
    if quoted:
        name, kind = quoted.group(1).replace('""', '"'), quoted.group(2)
    else:
        name, _, kind = text.partition(" ")
    value = {"fieldName": {"name": name}, "typeSignature": type_signature(kind)}
    return {"kind": "NAMED_TYPE", "value": value}


def _split(text: str) -> list[str]:
    """Split at commas, except for those in brackets and quotes."""
    parts, depth, quoted, start = [], 0, False, 0
    for at, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif quoted:
            continue
        elif char in "(<":
            depth += 1
        elif char in ")>":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()]


# The number in java.sql.Types, and the size.
_JDBC: dict[str, tuple[int, int | None]] = {
    "boolean": (16, None),
    "tinyint": (-6, 3),
    "smallint": (5, 5),
    "integer": (4, 10),
    "bigint": (-5, 19),
    "real": (7, 24),
    "double": (8, 53),
    "varchar": (12, _UNBOUNDED),
    "varbinary": (-3, _UNBOUNDED),
    "date": (91, 14),
    "array": (2003, None),
}


def jdbc_type(word: str) -> tuple[int, int | None, int | None, int | None]:
    """Return number, size, decimal digits and radix of a type, as JDBC lists columns."""
    parts = type_signature(word)
    raw, arguments = parts["rawType"], parts["arguments"]
    numbers = [each["value"] for each in arguments if each["kind"] == "LONG"]
    match raw:
        case "decimal":
            return 3, numbers[0], numbers[1], 10
        case "time":
            return 92, 9 + numbers[0], numbers[0], None
        case "timestamp":
            return 93, 20 + numbers[0], numbers[0], None
        case "timestamp with time zone":
            return 2014, 52 + numbers[0], numbers[0], None
        case "char":
            return 1, numbers[0], None, None
    number, size = _JDBC.get(raw, (2000, None))
    radix = 10 if raw in {"tinyint", "smallint", "integer", "bigint"} else None
    return number, size, None, 2 if raw in {"real", "double"} else radix
