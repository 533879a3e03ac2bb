"""A model's rows in the shape that the contract promises: its columns, its types, nothing else."""

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


def shaped(rows: DataFrame, contract: Contract, *, deletes: bool = False) -> DataFrame:
    """The author's columns and those of ingestion, cast to the contract's types, by name.

    A column more says which rows are deletes: with `deletes` those for which `delete_when` holds,
    otherwise none. Columns of history are left to the scd2 strategy.
    """
    wanted = written_columns(contract)
    expressions = [
        value.alias(column.name)
        for column, value in zip(wanted, _values(rows, contract, wanted), strict=True)
    ]
    deleted = _deleted(contract.delete_when if deletes else None)
    return rows.select(*expressions, deleted.alias(DELETED))


def _deleted(condition: str | None) -> Expression:
    from pyspark.sql import functions as F

    if condition is None:
        return F.lit(False)
    # Unknown is not true: a row is never deleted because a field is missing.
    return F.coalesce(F.expr(condition).cast("boolean"), F.lit(False))


def _values(rows: DataFrame, contract: Contract, wanted: Sequence[Column]) -> list[Expression]:
    from pyspark.sql import functions as F

    have = {field.name.lower(): field for field in rows.schema.fields}
    optional = {column.name for column in INGEST_COLUMNS}
    values: list[Expression] = []
    missing: list[str] = []
    for column in wanted:
        field = have.get(column.name.lower())
        if field is not None:
            value = F.col(quote_identifier(field.name))
            values.append(_fitted(value, field.dataType, column.type, column.name, missing))
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


def _fitted(
    value: Expression, have: DataType, want: types.Type, path: str, missing: list[str]
) -> Expression:
    """The value as the wanted type. Members of structs are matched by name: Spark's own cast
    goes by position and would put a street into the city without a word."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import ArrayType, MapType, StructType

    match want, have:
        case types.Struct(fields), StructType():
            return _fitted_struct(value, have, fields, path, missing)
        case types.List(element), ArrayType():
            inner = have.elementType
            if _same(inner, element):
                return value
            return F.transform(value, lambda x: _fitted(x, inner, element, path, missing))
        case types.Map(key, element), MapType():
            if _same(have, want):
                return value
            keyed = F.transform_keys(
                value, lambda k, _: _fitted(k, have.keyType, key, path, missing)
            )
            return F.transform_values(
                keyed, lambda _, v: _fitted(v, have.valueType, element, path, missing)
            )
        case types.Primitive("uuid"), _:
            # Iceberg gives it back in lower case; rows that compare must agree on the letters.
            return F.lower(value.cast("string"))
    return value if _same(have, want) else value.cast(to_ddl(want))


def _fitted_struct(
    value: Expression,
    have: StructType,
    fields: Sequence[types.Field],
    path: str,
    missing: list[str],
) -> Expression:
    from pyspark.sql import functions as F

    if _same(have, types.Struct(tuple(fields))):
        return value
    members = {field.name.lower(): field for field in have.fields}
    fitted = []
    for field in fields:
        found = members.get(field.name.lower())
        if found is None:
            missing.append(f"{path}.{field.name}")
            continue
        inner = value.getField(found.name)
        fitted.append(
            _fitted(inner, found.dataType, field.type, f"{path}.{field.name}", missing).alias(
                field.name
            )
        )
    return F.when(value.isNotNull(), F.struct(*fitted)) if fitted else value


def _same(have: DataType, want: types.Type) -> bool:
    """Whether a value needs no cast: same type, same members in the same order."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    match want, have:
        case types.Struct(fields), StructType():
            return len(fields) == len(have.fields) and all(
                field.name == other.name and _same(other.dataType, field.type)
                for field, other in zip(fields, have.fields, strict=True)
            )
        case types.List(element), ArrayType():
            return _same(have.elementType, element)
        case types.Map(key, value), MapType():
            return _same(have.keyType, key) and _same(have.valueType, value)
        case (types.Struct() | types.List() | types.Map(), _) | (types.Primitive("uuid"), _):
            return False
    return have.simpleString() == to_ddl(want)
