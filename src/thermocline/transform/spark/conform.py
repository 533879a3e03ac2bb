"""Conform a model's rows to its contract on Spark: its columns, its types, nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract import types
from thermocline.contract.definition import INGEST_COLUMNS, Column, Contract
from thermocline.engine.spark_types import quote_identifier, to_ddl
from thermocline.errors import ContractError
from thermocline.transform.write_rules import DELETED, written_columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column as Expression
    from pyspark.sql import DataFrame
    from pyspark.sql.types import DataType, StructType


def conform_rows(rows: DataFrame, contract: Contract, *, deletes: bool = False) -> DataFrame:
    """Select the author's and the ingestion columns by name, cast to the contract's types.

    The additional column DELETED marks deletes: with `deletes`, the rows for which `delete_when`
    holds, otherwise none. The scd2 strategy adds the history columns.
    """
    columns = written_columns(contract)
    expressions = [
        value.alias(column.name)
        for column, value in zip(columns, _cast_columns(rows, contract, columns), strict=True)
    ]
    deleted = _build_delete_condition(contract.delete_when if deletes else None)
    return rows.select(*expressions, deleted.alias(DELETED))


def _build_delete_condition(condition: str | None) -> Expression:
    from pyspark.sql import functions as F

    if condition is None:
        return F.lit(False)
    # Null is not true: a missing field never deletes a row.
    return F.coalesce(F.expr(condition).cast("boolean"), F.lit(False))


def _cast_columns(
    rows: DataFrame, contract: Contract, columns: Sequence[Column]
) -> list[Expression]:
    from pyspark.sql import functions as F

    source = {field.name.lower(): field for field in rows.schema.fields}
    optional = {column.name for column in INGEST_COLUMNS}
    values: list[Expression] = []
    missing: list[str] = []
    for column in columns:
        field = source.get(column.name.lower())
        if field is not None:
            value = F.col(quote_identifier(field.name))
            values.append(_cast_value(value, field.dataType, column.type, column.name, missing))
        elif column.name in optional:
            values.append(F.lit(None).cast(to_ddl(column.type)))
        else:
            missing.append(column.name)
    if missing:
        raise ContractError(
            [f"{contract.table}: the model's output has no column {name}." for name in missing],
            f"Add it to the model of {contract.table}, or take it out of the contract.",
        )
    return values


def _cast_value(
    value: Expression, source: DataType, target: types.Type, path: str, missing: list[str]
) -> Expression:
    """Cast a value to the target type. Struct members are matched by name: Spark's own cast matches
    them by position, and would silently put a street into the city."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    match target, source:
        case types.Struct(fields), StructType():
            return _cast_struct(value, source, fields, path, missing)
        case types.List(element), ArrayType():
            inner = source.elementType
            if _is_same_type(inner, element):
                return value
            return F.transform(value, lambda x: _cast_value(x, inner, element, path, missing))
        case types.Map(key, element), MapType():
            if _is_same_type(source, target):
                return value
            keyed = F.transform_keys(
                value, lambda k, _: _cast_value(k, source.keyType, key, path, missing)
            )
            return F.transform_values(
                keyed, lambda _, v: _cast_value(v, source.valueType, element, path, missing)
            )
        case types.Primitive("uuid"), _:
            # Iceberg returns uuids in lower case; compared rows must have the same case.
            return F.lower(value.cast("string"))
    return value if _is_same_type(source, target) else value.cast(to_ddl(target))


def _cast_struct(
    value: Expression,
    source: StructType,
    fields: Sequence[types.Field],
    path: str,
    missing: list[str],
) -> Expression:
    from pyspark.sql import functions as F

    if _is_same_type(source, types.Struct(tuple(fields))):
        return value
    members = {field.name.lower(): field for field in source.fields}
    members_cast = []
    for field in fields:
        found = members.get(field.name.lower())
        if found is None:
            missing.append(f"{path}.{field.name}")
            continue
        inner = value.getField(found.name)
        members_cast.append(
            _cast_value(inner, found.dataType, field.type, f"{path}.{field.name}", missing).alias(
                field.name
            )
        )
    return F.when(value.isNotNull(), F.struct(*members_cast)) if members_cast else value


def _is_same_type(source: DataType, target: types.Type) -> bool:
    """Return whether a value needs no cast: same type, same members in the same order."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match target, source:
        case types.Struct(fields), StructType():
            return len(fields) == len(source.fields) and all(
                field.name == other.name and _is_same_type(other.dataType, field.type)
                for field, other in zip(fields, source.fields, strict=True)
            )
        case types.List(element), ArrayType():
            return _is_same_type(source.elementType, element)
        case types.Map(key, value), MapType():
            return _is_same_type(source.keyType, key) and _is_same_type(source.valueType, value)
        case (types.Struct() | types.List() | types.Map(), _) | (types.Primitive("uuid"), _):
            return False
    return source.simpleString() == to_ddl(target)
