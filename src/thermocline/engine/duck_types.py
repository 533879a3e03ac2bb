"""Convert contract types to DuckDB types, and back."""

from __future__ import annotations

from typing import Any

from thermocline.contract.types import Decimal, Field, Fixed, List, Map, Primitive, Struct, Type
from thermocline.errors import BadInput

_PRIMITIVES = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "long": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "timestamptz": "TIMESTAMP WITH TIME ZONE",
    "string": "VARCHAR",
    # As in Spark, so that uuids are compared and joined as text in both engines.
    "uuid": "VARCHAR",
    "binary": "BLOB",
}
# Each type can hold every value of the DuckDB type.
_TYPES: dict[str, Type] = {
    **{word.lower(): Primitive(name) for name, word in _PRIMITIVES.items() if name != "uuid"},
    "uuid": Primitive("uuid"),
    "tinyint": Primitive("int"),
    "smallint": Primitive("int"),
    "utinyint": Primitive("int"),
    "usmallint": Primitive("int"),
    "uinteger": Primitive("long"),
    "ubigint": Decimal(20, 0),
    # The type of sum() of integers. Iceberg's widest decimal has one digit less.
    "hugeint": Decimal(38, 0),
    "uhugeint": Decimal(38, 0),
    "enum": Primitive("string"),
    "timestamp_s": Primitive("timestamp"),
    "timestamp_ms": Primitive("timestamp"),
}
_NESTED = {"decimal", "list", "array", "map", "struct"}


def to_ddl(type_: Type) -> str:
    """Return the type in DuckDB's SQL, for a cast."""
    match type_:
        case Decimal(precision, scale):
            return f"DECIMAL({precision},{scale})"
        case Fixed():
            return "BLOB"
        case Struct(fields):
            columns = (f"{quote_identifier(f.name)} {to_ddl(f.type)}" for f in fields)
            return f"STRUCT({', '.join(columns)})"
        case List(element):
            return f"{to_ddl(element)}[]"
        case Map(key, value):
            return f"MAP({to_ddl(key)}, {to_ddl(value)})"
    return _PRIMITIVES[type_.name]


def quote_identifier(name: str) -> str:
    """Quote a name as one identifier of DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def from_duckdb_type(found: Any) -> Type:
    """Return the contract type that can hold the values of a DuckDB type (a DuckDBPyType)."""
    name = found.id
    if name in _TYPES:
        return _TYPES[name]
    members: dict[str, Any] = dict(found.children) if name in _NESTED else {}
    match name:
        case "decimal":
            return Decimal(members["precision"], members["scale"])
        case "list" | "array":
            return List(from_duckdb_type(members["child"]))
        case "map":
            return Map(from_duckdb_type(members["key"]), from_duckdb_type(members["value"]))
        case "struct":
            return Struct(
                tuple(Field(member, from_duckdb_type(kind)) for member, kind in members.items())
            )
    raise BadInput(
        f"Iceberg has no type for DuckDB's {found}.", "Cast it to another type, such as VARCHAR."
    )
