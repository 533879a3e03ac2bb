"""Fields that the contract does not name, and the contract's drift policy for them."""

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
"""The most columns that one batch may add. A file that uses data as keys would add thousands."""

_STRING = types.Primitive("string")


def include_added_columns(lake: Lake, contract: Contract) -> Contract:
    """Return the contract with the columns that drift has already added to its table."""
    if contract.drift is not DriftMode.ADD or not lake.exists(contract.table):
        return contract
    named = {column.name for column in contract.table_columns} | set(contract.dropped)
    shape = schemas.shape_of(lake.state(contract.table))
    added = tuple(column for column in shape.columns if column.name not in named)
    return replace(contract, columns=contract.columns + added)


def add_columns(contract: Contract, names: Mapping[str, types.Type]) -> Contract:
    """Return the contract with nullable columns for new fields.

    A field whose name is no valid column name, or that exceeds MAX_ADDED_COLUMNS, goes to
    `_rescued`.
    """
    used_names = {column.name.lower() for column in contract.table_columns}
    columns = list(contract.columns)
    for name, type_ in sorted(names.items()):
        usable = not name.startswith("_") and "." not in name and check_column_name(name) is None
        if (
            usable
            and name.lower() not in used_names
            and len(columns) - len(contract.columns) < MAX_ADDED_COLUMNS
        ):
            used_names.add(name.lower())
            columns.append(Column(name, type_, doc="added by drift"))
    return replace(contract, columns=tuple(columns))


def find_unknown_fields(file: InspectedFile, contract: Contract) -> dict[str, types.Type]:
    """Return the fields of a CSV header or Parquet schema that the contract does not name."""
    known = {column.name for column in contract.columns}
    if file.schema is None:
        return {name: _STRING for name in file.fields if name not in known}
    return {
        field.name: _to_contract_type(parquet_types.to_spark_type(field.type))
        for field in file.schema
        if field.name not in known
    }


def explain_mismatch(file: InspectedFile, contract: Contract) -> str | None:
    """Return why no row of a file can satisfy the contract, based on its header or schema."""
    if file.format == "jsonl" or not file.expanded or (file.schema is None and not file.fields):
        return None
    present = set(file.fields) if file.schema is None else set(file.schema.names)
    missing = [c.name for c in contract.columns if c.required and c.name not in present]
    if missing:
        noun = "column" if len(missing) == 1 else "columns"
        return f"lacks the required {noun} {_format_names(missing)}"
    if file.schema is None:
        return None
    for column in contract.columns:
        if column.name in present:
            kind = file.schema.field(column.name).type
            found = parquet_types.to_spark_type(kind)
            if found is None:
                return f"{column.name}: {kind} cannot be read"
            if reason := parquet_types.explain_type_mismatch(column.type, found):
                return f"{column.name}: {reason}"
    return None


def explain_refusal(names: Iterable[str], contract: Contract) -> str:
    """Explain why a file with such fields is refused, and how to admit it."""
    listed = sorted(names)
    noun = "a field" if len(listed) == 1 else "fields"
    return (
        f"has {noun} that {contract.table} does not name: {_format_names(listed)}; "
        "add it to the contract, or set drift to add or rescue"
    )


def _format_names(names: Iterable[str]) -> str:
    names = list(names)
    added = f" and {len(names) - 10} more" if len(names) > 10 else ""
    return ", ".join(quote(name)[1:-1] for name in names[:10]) + added


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
