"""Map Iceberg types to DuckDB types, so that a copy answers like the table itself."""

from __future__ import annotations

import re
from typing import Any

from thermocline.serve.wire.jobs import WorkerError

_WORDS = {
    "boolean": "BOOLEAN", "int": "INTEGER", "long": "BIGINT", "float": "FLOAT",
    "double": "DOUBLE", "date": "DATE", "time": "TIME", "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMPTZ", "timestamp_ns": "TIMESTAMP_NS", "string": "VARCHAR",
    "uuid": "UUID", "binary": "BLOB",
}  # fmt: skip
_DECIMAL = re.compile(r"decimal\(\s*(\d{1,2})\s*,\s*(\d{1,2})\s*\)")
_FIXED = re.compile(r"fixed\[\d+\]")


def duckdb_type(kind: Any) -> str:
    """Return the DuckDB type of an Iceberg type in JSON. Raises WorkerError when there is none."""
    match kind:
        case str() if kind in _WORDS:
            return _WORDS[kind]
        case str() if found := _DECIMAL.fullmatch(kind):
            return f"DECIMAL({found[1]},{found[2]})"
        case str() if _FIXED.fullmatch(kind):
            return "BLOB"
        case {"type": "struct", "fields": [*fields]} if fields:
            members = (
                f"{quote_identifier(each['name'])} {duckdb_type(each['type'])}" for each in fields
            )
            return f"STRUCT({', '.join(members)})"
        case {"type": "list", "element": element}:
            return f"{duckdb_type(element)}[]"
        case {"type": "map", "key": key, "value": value}:
            return f"MAP({duckdb_type(key)}, {duckdb_type(value)})"
    raise WorkerError("staging", f"A node cannot hold the type {str(kind)[:100]}.")


def quote_identifier(name: str) -> str:
    """Return a name as a quoted identifier."""
    return '"' + name.replace('"', '""') + '"'


def quote_literal(text: str) -> str:
    """Return a text as a string literal."""
    return "'" + text.replace("'", "''") + "'"
