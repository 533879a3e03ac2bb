"""Choose the schema in which rows are read: of one snapshot, or of two for comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

from thermocline.errors import BadInput
from thermocline.lake.filediff import snapshot_of

if TYPE_CHECKING:
    from pyiceberg.table import Table


def schema_at(table: Table, snapshot: int) -> Schema:
    """Return the schema that a snapshot was written with, and that engines read it with.

    A schema change creates no snapshot, so the newest snapshot may have an older schema than the
    table.
    """
    found = snapshot_of(table, snapshot)
    return table.schema() if found.schema_id is None else table.schemas()[found.schema_id]


def comparison_schema(end: Schema, start: Schema | None = None) -> Schema:
    """Return the schema in which rows of two snapshots can be compared.

    Columns, names and order are those of `end`. No column is required, because a file of `start`
    may lack it. If `start` has the wider type of a promoted column, that type is used.
    """
    types = {} if start is None else {i: start.find_type(i) for i in start.field_ids}
    return Schema(*(_optional_field(field, types) for field in end.fields), schema_id=end.schema_id)


def select_columns(
    schema: Schema, columns: Sequence[str] | None, key: Sequence[str] = ()
) -> Schema:
    """Return the schema of these columns and the key, in schema order; None is all columns."""
    known = [field.name for field in schema.fields]
    selected = {*key, *(known if columns is None else columns)}
    if unknown := sorted(selected.difference(known)):
        raise BadInput(
            f"There is no column {', '.join(unknown)} in the newer snapshot.",
            f"Its columns are {', '.join(known)}.",
        )
    return Schema(*(field for field in schema.fields if field.name in selected))


def _optional_field(field: NestedField, other: Mapping[int, IcebergType]) -> NestedField:
    return field.model_copy(
        update={
            "required": False,
            "field_type": _optional_type(field.field_type, other, field.field_id),
        }
    )


def _optional_type(
    kind: IcebergType, other: Mapping[int, IcebergType], field_id: int
) -> IcebergType:
    if isinstance(kind, StructType):
        return StructType(*(_optional_field(field, other) for field in kind.fields))
    if isinstance(kind, ListType):
        element = _optional_type(kind.element_type, other, kind.element_id)
        return ListType(kind.element_id, element, element_required=False)
    if isinstance(kind, MapType):
        return MapType(
            kind.key_id,
            _optional_type(kind.key_type, other, kind.key_id),
            kind.value_id,
            _optional_type(kind.value_type, other, kind.value_id),
            value_required=False,
        )
    return _wider_type(kind, other.get(field_id, kind))


def _wider_type(kind: IcebergType, other: IcebergType) -> IcebergType:
    """Return the wider of a type and the type that it was promoted to or from."""
    if isinstance(kind, DecimalType) and isinstance(other, DecimalType):
        return max(kind, other, key=lambda decimal: decimal.precision)
    promoted = isinstance(kind, IntegerType) and isinstance(other, LongType)
    promoted |= isinstance(kind, FloatType) and isinstance(other, DoubleType)
    return other if promoted else kind
