"""Convert between a contract's shape and Iceberg's schema.

Reading a shape needs only metadata JSON; building a schema needs PyIceberg.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from thermocline.contract import types
from thermocline.contract.definition import Column, PartitionField, SortField, TableShape
from thermocline.lake.metadata import TableState

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table.sorting import SortOrder
    from pyiceberg.transforms import Transform
    from pyiceberg.types import IcebergType


def shape_of(state: TableState) -> TableShape:
    """Return a table's current shape, as in a contract."""
    fields = state.schema["fields"]
    names = {field["id"]: field["name"] for field in fields}
    columns = tuple(
        Column(f["name"], _parse_type(f["type"]), bool(f["required"]), f.get("doc")) for f in fields
    )
    key = tuple(names[i] for i in state.schema.get("identifier-field-ids") or () if i in names)
    partition = tuple(
        _parse_partition(names[field["source-id"]], field["transform"])
        for field in state.partition_fields
        if field["source-id"] in names
    )
    sort = tuple(
        SortField(names[field["source-id"]], field["direction"] == "desc")
        for field in state.sort_fields
        if field["source-id"] in names
    )
    return TableShape(columns, _ordered_key(columns, key), partition, sort)


def columns_at(state: TableState, snapshot: int) -> dict[str, str]:
    """Return the columns of a snapshot, with their types as in contracts.

    A schema change creates no snapshot, so the newest snapshot may have older columns than the
    table.
    """
    schema_id = state.snapshot(snapshot).schema_id
    if schema_id is not None and schema_id != state.raw["current-schema-id"]:
        state = TableState(state.table, "", {**state.raw, "current-schema-id": schema_id})
    return {column.name: str(column.type) for column in shape_of(state).columns}


def _ordered_key(columns: tuple[Column, ...], key: tuple[str, ...]) -> tuple[str, ...]:
    # Identifier fields are a set in Iceberg; in column order they compare equal to a contract's.
    return tuple(column.name for column in columns if column.name in key)


def _parse_type(value: str | Mapping[str, Any]) -> types.Type:
    if isinstance(value, str):
        return _parse_primitive(value)
    if value["type"] == "struct":
        return types.Struct(
            tuple(
                types.Field(f["name"], _parse_type(f["type"]), bool(f["required"]), f.get("doc"))
                for f in value["fields"]
            )
        )
    if value["type"] == "list":
        return types.List(_parse_type(value["element"]), bool(value["element-required"]))
    return types.Map(
        _parse_type(value["key"]), _parse_type(value["value"]), bool(value["value-required"])
    )


def _parse_primitive(text: str) -> types.Type:
    if text.startswith("decimal"):
        precision, scale = text[text.index("(") + 1 : -1].split(",")
        return types.Decimal(int(precision), int(scale))
    if text.startswith("fixed"):
        return types.Fixed(int(text[text.index("[") + 1 : -1]))
    return types.Primitive(text)


def _parse_partition(column: str, transform: str) -> PartitionField:
    name, _, rest = transform.partition("[")
    return PartitionField(column, name, int(rest[:-1]) if rest else None)


def iceberg_type(type_: types.Type) -> IcebergType:
    """Return the PyIceberg type; the catalog replaces the placeholder ids of nested fields."""
    return _Builder().type(type_)


def iceberg_schema(shape: TableShape) -> Schema:
    """Return the schema of a new table."""
    from pyiceberg.schema import Schema
    from pyiceberg.types import NestedField

    builder = _Builder()
    fields = []
    for column in shape.columns:
        field_id = builder.next_id()
        type_ = builder.type(column.type)
        fields.append(NestedField(field_id, column.name, type_, column.required, doc=column.doc))
    ids = {field.name: field.field_id for field in fields}
    return Schema(*fields, identifier_field_ids=[ids[name] for name in shape.key])


def partition_spec(shape: TableShape, schema: Schema) -> PartitionSpec:
    """Return the partition spec of a new table."""
    from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec

    fields = [
        PartitionField(
            schema.find_field(field.column).field_id,
            PARTITION_FIELD_ID_START + index,
            iceberg_transform(field),
            field.name,
        )
        for index, field in enumerate(shape.partition)
    ]
    return PartitionSpec(*fields)


def sort_order(shape: TableShape, schema: Schema) -> SortOrder:
    """Return the sort order of a new table."""
    from pyiceberg.table.sorting import SortDirection, SortField, SortOrder
    from pyiceberg.transforms import IdentityTransform

    if not shape.sort:
        return SortOrder(order_id=0)
    fields = [
        SortField(
            schema.find_field(field.column).field_id,
            IdentityTransform(),
            SortDirection.DESC if field.descending else SortDirection.ASC,
        )
        for field in shape.sort
    ]
    return SortOrder(*fields, order_id=1)


def iceberg_transform(field: PartitionField) -> Transform[Any, Any]:
    """Return PyIceberg's transform of a partition field."""
    from pyiceberg.transforms import parse_transform

    text = field.transform if field.param is None else f"{field.transform}[{field.param}]"
    return parse_transform(text)


class _Builder:
    """Builds nested types while handing out field ids."""

    def __init__(self) -> None:
        self._last = 0

    def next_id(self) -> int:
        self._last += 1
        return self._last

    def type(self, type_: types.Type) -> IcebergType:
        from pyiceberg import types as iceberg

        match type_:
            case types.Decimal(precision, scale):
                return iceberg.DecimalType(precision, scale)
            case types.Fixed(length):
                return iceberg.FixedType(length)
            case types.Struct(fields):
                return iceberg.StructType(
                    *(
                        iceberg.NestedField(
                            self.next_id(), f.name, self.type(f.type), f.required, doc=f.doc
                        )
                        for f in fields
                    )
                )
            case types.List(element, required):
                return iceberg.ListType(self.next_id(), self.type(element), required)
            case types.Map(key, value, required):
                return iceberg.MapType(
                    self.next_id(), self.type(key), self.next_id(), self.type(value), required
                )
        primitive: IcebergType = _primitives()[type_.name]()
        return primitive


def _primitives() -> dict[str, Any]:
    from pyiceberg import types as iceberg

    return {
        "boolean": iceberg.BooleanType, "int": iceberg.IntegerType, "long": iceberg.LongType,
        "float": iceberg.FloatType, "double": iceberg.DoubleType, "date": iceberg.DateType,
        "time": iceberg.TimeType, "timestamp": iceberg.TimestampType,
        "timestamptz": iceberg.TimestamptzType, "string": iceberg.StringType,
        "uuid": iceberg.UUIDType, "binary": iceberg.BinaryType,
    }  # fmt: skip
