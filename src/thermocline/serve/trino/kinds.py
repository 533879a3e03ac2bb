"""Types in Trino's words: from contracts', taken apart for clients, and as JDBC numbers them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

from thermocline.contract import types as contract
from thermocline.contract.type_syntax import parse_type
from thermocline.errors import BadInput

_PLAIN = {
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
"""How long a VARCHAR without a length may be, which clients are told as a number."""


@lru_cache(maxsize=4096)
def of_column(word: str) -> str:
    """A column's type in the words of contracts, as Trino calls it.

    What cannot be read, such as a struct with names that contracts do not allow, is told as text:
    a list of tables never fails for a column.
    """
    try:
        return _of(parse_type(word))
    except BadInput:
        return "varchar"


def _of(kind: contract.Type) -> str:
    match kind:
        case contract.Primitive(name):
            return _PLAIN.get(name, "varchar")
        case contract.Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case contract.Fixed():
            return "varbinary"
        case contract.List(element):
            return f"array({_of(element)})"
        case contract.Map(key, value):
            return f"map({_of(key)}, {_of(value)})"
        case contract.Struct(fields):
            return f"row({', '.join(_field(each) for each in fields)})"


def _field(field: contract.Field) -> str:
    plain = re.fullmatch(r"[a-z_][a-z0-9_]*", field.name)
    quoted = field.name if plain else '"' + field.name.replace('"', '""') + '"'
    return f"{quoted} {_of(field.type)}"


@lru_cache(maxsize=4096)
def signature(word: str) -> dict[str, Any]:
    """A type word of Trino taken apart, as clients read it."""
    word = word.strip()
    outer, bracket, rest = word.partition("(")
    if not bracket:
        numbers = [_UNBOUNDED] if word == "varchar" else []
        return _signature(word, [{"kind": "LONG", "value": each} for each in numbers])
    end = rest.rindex(")")
    inner, after = rest[:end], rest[end + 1 :]
    outer = outer.strip()
    if outer in {"array", "map"}:
        types = [{"kind": "TYPE", "value": signature(part)} for part in _split(inner)]
        return _signature(outer, types)
    if outer == "row":
        return _signature(outer, [_named(part) for part in _split(inner)])
    longs = [{"kind": "LONG", "value": int(part)} for part in inner.split(",")]
    return _signature(outer + after, longs)


def _signature(raw: str, arguments: list[dict[str, Any]]) -> dict[str, Any]:
    return {"rawType": raw, "arguments": arguments}


def _named(text: str) -> dict[str, Any]:
    quoted = re.match(r'"((?:[^"]|"")*)"\s+(.*)', text, re.DOTALL)
    if quoted:
        name, kind = quoted.group(1).replace('""', '"'), quoted.group(2)
    else:
        name, _, kind = text.partition(" ")
    value = {"fieldName": {"name": name}, "typeSignature": signature(kind)}
    return {"kind": "NAMED_TYPE", "value": value}


def _split(text: str) -> list[str]:
    """Parts between commas, not counting the commas in brackets and quotes."""
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


# As java.sql.Types has them: number, size, digits after the point.
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


def jdbc(word: str) -> tuple[int, int | None, int | None, int | None]:
    """Number, size, digits after the point and radix of a type, as JDBC lists columns."""
    parts = signature(word)
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
