"""Fields that the contract does not name, and what its policy makes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline.contract import types
from thermocline.contract.definition import Column, Contract, DriftMode
from thermocline.contract.identifiers import check_column_name
from thermocline.contract.problems import quote
from thermocline.ingest import parquet_types
from thermocline.lake import schema as schemas

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

    from thermocline.ingest.inspection import InspectedFile
    from thermocline.lake import Lake

MAX_ADDED_COLUMNS = 100
"""How many columns one batch may add. A file whose keys are data would add thousands."""

_STRING = types.Primitive("string")


def include_added_columns(lake: Lake, contract: Contract) -> Contract:
    """The contract with the columns that drift has added to its table before."""
    if contract.drift is not DriftMode.ADD or not lake.exists(contract.table):
        return contract
    named = {column.name for column in contract.table_columns} | set(contract.dropped)
    shape = schemas.shape_of(lake.state(contract.table))
    more = tuple(column for column in shape.columns if column.name not in named)
    return replace(contract, columns=contract.columns + more)


def add_columns(contract: Contract, names: Mapping[str, types.Type]) -> Contract:
    """The contract with nullable columns for new fields.

    A field whose name cannot be a column's, and what is beyond MOST_ADDED, is left to `_rescued`.
    """
    taken = {column.name.lower() for column in contract.table_columns}
    columns = list(contract.columns)
    for name, type_ in sorted(names.items()):
        usable = not name.startswith("_") and "." not in name and check_column_name(name) is None
        if (
            usable
            and name.lower() not in taken
            and len(columns) - len(contract.columns) < MAX_ADDED_COLUMNS
        ):
            taken.add(name.lower())
            columns.append(Column(name, type_, doc="added by drift"))
    return replace(contract, columns=tuple(columns))


def find_unknown_fields(file: InspectedFile, contract: Contract) -> dict[str, types.Type]:
    """The fields of a CSV header or a Parquet schema that the contract does not name."""
    known = {column.name for column in contract.columns}
    if file.schema is None:
        return {name: _STRING for name in file.fields if name not in known}
    return {
        field.name: _to_contract_type(parquet_types.to_spark_type(field.type))
        for field in file.schema
        if field.name not in known
    }


def explain_mismatch(file: InspectedFile, contract: Contract) -> str | None:
    """Why no row of a file can satisfy the contract, if its header or schema already says so."""
    if file.format == "jsonl" or not file.expanded or (file.schema is None and not file.fields):
        return None
    there = set(file.fields) if file.schema is None else set(file.schema.names)
    lacks = [c.name for c in contract.columns if c.required and c.name not in there]
    if lacks:
        noun = "column" if len(lacks) == 1 else "columns"
        return f"lacks the required {noun} {_format_names(lacks)}"
    if file.schema is None:
        return None
    for column in contract.columns:
        if column.name in there:
            kind = file.schema.field(column.name).type
            found = parquet_types.to_spark_type(kind)
            if found is None:
                return f"{column.name}: {kind} cannot be read"
            if said := parquet_types.explain_type_mismatch(column.type, found):
                return f"{column.name}: {said}"
    return None


def explain_refusal(names: Iterable[str], contract: Contract) -> str:
    """Why a file with such fields is refused, and what would let it in."""
    listed = sorted(names)
    noun = "a field" if len(listed) == 1 else "fields"
    return (
        f"has {noun} that {contract.table} does not name: {_format_names(listed)}; "
        "add it to the contract, or set drift to add or rescue"
    )


def _format_names(names: Iterable[str]) -> str:
    names = list(names)
    more = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(quote(name)[1:-1] for name in names[:10]) + more


def _to_contract_type(found: DataType | None) -> types.Type:
    from pyspark.sql import types as spark

    match found:
        case spark.DecimalType():
            return types.Decimal(found.precision, found.scale)
        case spark.StructType():
            members = (types.Field(f.name, _to_contract_type(f.dataType)) for f in found.fields)
            return types.Struct(tuple(members))
        case spark.ArrayType():
            return types.List(_to_contract_type(found.elementType))
        case spark.MapType():
            return types.Map(_to_contract_type(found.keyType), _to_contract_type(found.valueType))
    return types.Primitive(_PRIMITIVES.get(found.typeName(), "string") if found else "string")


_PRIMITIVES = {
    "boolean": "boolean", "byte": "int", "short": "int", "integer": "int", "long": "long",
    "float": "float", "double": "double", "date": "date", "timestamp": "timestamptz",
    "timestamp_ntz": "timestamp", "binary": "binary",
}  # fmt: skip
