"""A contract's types in Spark's words."""

from __future__ import annotations

from thermocline.contract.types import Decimal, Fixed, List, Map, Primitive, Struct, Type
from thermocline.errors import ContractError

EXACT_JSON = (
    "map('timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX', "
    "'timestampNTZFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS')"
)
"""Options of `to_json`: Spark cuts timestamps to milliseconds unless told otherwise."""

_PRIMITIVES = {
    "boolean": "boolean",
    "int": "int",
    "long": "bigint",
    "float": "float",
    "double": "double",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "string": "string",
    # Iceberg keeps sixteen bytes, Spark shows and takes the text of it.
    "uuid": "string",
    "binary": "binary",
}


def to_ddl(type_: Type) -> str:
    """The type as Spark's SQL names it, so that a column can be cast to it."""
    match type_:
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Fixed():
            return "binary"
        case Struct(fields):
            return f"struct<{', '.join(f'{quote_identifier(f.name)}: {to_ddl(f.type)}' for f in fields)}>"
        case List(element):
            return f"array<{to_ddl(element)}>"
        case Map(key, value):
            return f"map<{to_ddl(key)}, {to_ddl(value)}>"
        case Primitive(name) if name in _PRIMITIVES:
            return _PRIMITIVES[name]
    raise ContractError(
        [f"Spark has no type for Iceberg's {type_}."],
        "Give the column type string, or long for microseconds since midnight.",
    )


def quote_identifier(name: str) -> str:
    """A name that Spark's SQL reads as one identifier, whatever letters it has."""
    return "`" + name.replace("`", "``") + "`"
