"""Parquet files in batches of rows, in the contract's types.

A file is read here when Arrow and Spark cannot differ about it: types of the common core, no
calendars of old, and every value of a type that the contract's can hold.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

from thermocline.contract.definition import Contract
from thermocline.contract.types import List, Map, Struct, Type
from thermocline.ingest.arrow.column_types import arrow_type, widen
from thermocline.ingest.arrow.rescue import refuse_unknown_fields, rescue_fields
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.validation import RESCUED

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

BATCH_BYTES = 32 << 20
MAX_ROWS, MIN_ROWS = 131_072, 64

_LEGACY = b"org.apache.spark.legacy"
_SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_SPARK_TYPES = {
    "boolean", "byte", "short", "integer", "long", "float", "double", "string", "binary", "date",
    "timestamp", "timestamp_ntz", "struct", "array", "map",
}  # fmt: skip
_DAYS = -25_567, 2_932_896
"""From 1900 to the end of 9999. Before, calendars and zones differ between those who write."""
_MICROS = 24 * 3600 * 1_000_000


class ParquetReader:
    """How files of one schema are read. Raises Declined for one that never can be."""

    def __init__(self, schema: pa.Schema, contract: Contract) -> None:
        if len({name.lower() for name in schema.names}) != len(schema.names):
            raise NeedsSpark("two columns of one name")
        for field in schema:
            _refuse_type(field.type)
        self._types = {column.name: column.type for column in contract.columns}
        self._stray = [name for name in schema.names if name not in self._types]
        refuse_unknown_fields(self._stray, contract)

    def typed(self, rows: pa.Table) -> pa.Table:
        """Rows of a file, in the canonical form, as the contract's columns, or Declined."""
        import pyarrow as pa

        columns: dict[str, Any] = {}
        for name, type_ in self._types.items():
            if name in rows.column_names:
                array = rows.column(name).combine_chunks()
                columns[name] = widen(type_, array)
                _refuse_missing_members(name, type_, columns[name])
            else:
                columns[name] = pa.nulls(rows.num_rows, arrow_type(type_))
        if self._stray:
            texts = {
                name: _to_text(name, rows.column(name).combine_chunks()) for name in self._stray
            }
            columns[RESCUED] = rescue_fields(texts, rows.num_rows)
        return pa.table(columns)


def read_batches(raw: BinaryIO) -> Iterator[pa.Table]:
    """All rows of a file in the canonical form, in their order; Declined when it cannot be."""
    import pyarrow as pa

    from thermocline.engine.arrow import normalize

    for batch in _read_stored(raw):
        rows = normalize(pa.table(batch))
        for column in rows.columns:
            for chunk in column.chunks:
                _refuse_old_times(chunk)
        yield rows


def _read_stored(raw: BinaryIO) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(pa.PythonFile(raw, mode="r"))
        _refuse_spark_formats(file)
        for batch in file.iter_batches(_batch_rows(file)):
            batch.validate(full=True)  # texts are UTF-8, and lists end where they should
            yield batch
    except (pa.ArrowException, OSError) as error:
        raise NeedsSpark(f"cannot be read to its end: {str(error)[:80]}") from error


def _batch_rows(file: pq.ParquetFile) -> int:
    groups = (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    each = max(1, size // max(1, file.metadata.num_rows))
    return int(min(MAX_ROWS, max(MIN_ROWS, BATCH_BYTES // each)))


def _refuse_spark_formats(file: pq.ParquetFile) -> None:
    """Decline a file that says of itself what only Spark knows how to read."""
    said = file.metadata.metadata or {}
    if any(key.startswith(_LEGACY) for key in said):
        raise NeedsSpark("dates of an old calendar")
    if _SPARK_SCHEMA in said:
        text = said[_SPARK_SCHEMA].decode(errors="replace")
        if "COLLATION" in text.upper() or not set(_spark_types(text)) <= _SPARK_TYPES:
            raise NeedsSpark("a type of Spark's own")
    for number in range(len(file.schema)):
        leaf = file.schema.column(number)
        levels = sum(part in {"list", "key_value"} for part in leaf.path.split("."))
        if levels != leaf.max_repetition_level:
            raise NeedsSpark(f"{leaf.path[:60]} is laid out as in old files")


def _spark_types(text: str) -> Iterator[str]:
    """The names of all types in a schema that Spark wrote down."""

    def below(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield "long" if node.startswith("decimal(") else node
        elif isinstance(node, dict):
            yield str(node.get("type"))
            for key in ("elementType", "keyType", "valueType"):
                if key in node:
                    yield from below(node[key])
            for field in node.get("fields", ()):
                yield from below(field.get("type"))

    try:
        return iter(list(below(json.loads(text))))
    except (ValueError, AttributeError, TypeError):
        return iter(["unreadable"])


def _refuse_type(kind: pa.DataType) -> None:
    """Decline a type that Arrow and Spark do not both have."""
    import pyarrow as pa
    import pyarrow.types as pt

    from thermocline.engine.arrow import canonical_type

    plain = (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    )  # fmt: skip
    if pt.is_fixed_size_binary(kind) or isinstance(kind, pa.BaseExtensionType):
        raise NeedsSpark(f"a column of type {kind}")
    kind = canonical_type(kind)
    if kind in plain or pt.is_decimal128(kind):
        return
    if not (pt.is_struct(kind) or pt.is_list(kind) or pt.is_map(kind)):
        raise NeedsSpark(f"a column of type {kind}")
    for number in range(kind.num_fields):
        _refuse_type(kind.field(number).type)


def _refuse_old_times(array: pa.Array) -> None:
    """Decline dates and times on which calendars differ, however deep."""
    import pyarrow.compute as pc
    import pyarrow.types as pt

    from thermocline.engine.arrow import flatten_map

    kind = array.type
    if pt.is_date(kind) or pt.is_timestamp(kind):
        bounds, unit = pc.min_max(array), 1 if pt.is_date(kind) else _MICROS
        low, high = bounds["min"].value, bounds["max"].value
        if low is not None and not _DAYS[0] * unit <= low <= high < _DAYS[1] * unit:
            raise NeedsSpark("a moment before 1900 or after 9999")
    elif pt.is_struct(kind):
        for member in array.flatten():
            _refuse_old_times(member)
    elif pt.is_list(kind):
        _refuse_old_times(array.flatten())
    elif pt.is_map(kind):
        for side in flatten_map(array):
            _refuse_old_times(side)


def _refuse_missing_members(name: str, type_: Type, array: pa.Array) -> None:
    """Decline what lacks a part that it must have inside a column."""
    from thermocline.engine.arrow import flatten_map

    match type_:
        case Struct(fields):
            for field, member in zip(fields, array.flatten(), strict=True):
                if field.required and member.null_count > array.null_count:
                    raise NeedsSpark(f"{name}.{field.name} is missing")
                _refuse_missing_members(name, field.type, member)
        case List(element, required):
            elements = array.flatten()
            if required and elements.null_count:
                raise NeedsSpark(f"{name} has an element that is missing")
            _refuse_missing_members(name, element, elements)
        case Map(_, value, required):
            values = flatten_map(array)[1]
            if required and values.null_count:
                raise NeedsSpark(f"{name} has a value that is missing")
            _refuse_missing_members(name, value, values)


def _to_text(name: str, column: pa.Array) -> pa.Array:
    import pyarrow as pa

    if column.type == pa.string():
        return column
    if column.type in (pa.int8(), pa.int16(), pa.int32(), pa.int64()):
        return column.cast(pa.string())
    raise NeedsSpark(f"{name}, which the contract does not name, is of type {column.type}")
