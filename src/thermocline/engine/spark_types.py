"""A contract's types in Spark's words."""

from __future__ import annotations

from thermocline.contract.types import Decimal, Fixed, List, Map, Primitive, Struct, Type
from thermocline.errors import ContractError

EXACT_JSON = (
    "map('timestampFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSSXXX', "
    "'timestampNTZFormat', 'yyyy-MM-dd\\'T\\'HH:mm:ss.SSSSSS')"
)
"""Options of `to_json`: by default Spark truncates timestamps to milliseconds."""

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
    # Iceberg stores sixteen bytes; Spark reads and writes them as text.
    "uuid": "string",
    "binary": "binary",
}


def to_ddl(type_: Type) -> str:
    """Return the type in Spark's SQL, written as Spark's own `simpleString` but with quotes."""
    match type_:
        case Decimal(precision, scale):
            return f"decimal({precision},{scale})"
        case Fixed():
            return "binary"
        case Struct(fields):
            columns = (f"{quote_identifier(f.name)}:{to_ddl(f.type)}" for f in fields)
            return f"struct<{','.join(columns)}>"
        case List(element):
            return f"array<{to_ddl(element)}>"
        case Map(key, value):
            return f"map<{to_ddl(key)},{to_ddl(value)}>"
        case Primitive(name) if name in _PRIMITIVES:
            return _PRIMITIVES[name]
    raise ContractError(
        [f"Spark has no type for Iceberg's {type_}."],
        "Declare the column as string, or as long with the microseconds since midnight.",
    )


def quote_identifier(name: str) -> str:
    """Quote a name as one identifier of Spark's SQL."""
    return "`" + name.replace("`", "``") + "`"
