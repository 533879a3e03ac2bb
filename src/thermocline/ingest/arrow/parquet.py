"""Read Parquet files in batches of rows with the contract's types.

A file is read here only if Arrow and Spark certainly agree on it: common types, no legacy
calendars, and types that convert to the contract's without changing a value.
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
_DAY_RANGE = -25_567, 2_932_896
"""From 1900 to the end of 9999. Before 1900, writers differ in calendars and time zones."""
_DAY_MICROS = 24 * 3600 * 1_000_000


class ParquetReader:
    """Reads files of one schema. Raises NeedsSpark for an unsupported schema."""

    def __init__(self, schema: pa.Schema, contract: Contract) -> None:
        if len({name.lower() for name in schema.names}) != len(schema.names):
            raise NeedsSpark("two columns of one name")
        for field in schema:
            _refuse_type(field.type)
        self._types = {column.name: column.type for column in contract.columns}
        self._unknown_fields = [name for name in schema.names if name not in self._types]
        refuse_unknown_fields(self._unknown_fields, contract)

    def convert(self, rows: pa.Table) -> pa.Table:
        """Convert canonical rows to the contract's columns, or raise NeedsSpark."""
        import pyarrow as pa

        columns: dict[str, Any] = {}
        for name, type_ in self._types.items():
            if name in rows.column_names:
                array = rows.column(name).combine_chunks()
                columns[name] = widen(type_, array)
                _refuse_missing_members(name, type_, columns[name])
            else:
                columns[name] = pa.nulls(rows.num_rows, arrow_type(type_))
        if self._unknown_fields:
            texts = {
                name: _to_text(name, rows.column(name).combine_chunks())
                for name in self._unknown_fields
            }
            columns[RESCUED] = rescue_fields(texts, rows.num_rows)
        return pa.table(columns)


def read_batches(raw: BinaryIO) -> Iterator[pa.Table]:
    """Yield all rows of a file in canonical form and in order, or raise NeedsSpark."""
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
            batch.validate(full=True)  # checks UTF-8 and list offsets
            yield batch
    except (pa.ArrowException, OSError) as error:
        raise NeedsSpark(f"cannot be read to its end: {str(error)[:80]}") from error


def _batch_rows(file: pq.ParquetFile) -> int:
    groups = (file.metadata.row_group(n) for n in range(file.metadata.num_row_groups))
    size = sum(group.total_byte_size for group in groups)
    each = max(1, size // max(1, file.metadata.num_rows))
    return int(min(MAX_ROWS, max(MIN_ROWS, BATCH_BYTES // each)))


def _refuse_spark_formats(file: pq.ParquetFile) -> None:
    """Raise NeedsSpark if the metadata shows a format that only Spark can read."""
    metadata = file.metadata.metadata or {}
    if any(key.startswith(_LEGACY) for key in metadata):
        raise NeedsSpark("dates of a legacy calendar")
    if _SPARK_SCHEMA in metadata:
        text = metadata[_SPARK_SCHEMA].decode(errors="replace")
        if "COLLATION" in text.upper() or not set(_spark_types(text)) <= _SPARK_TYPES:
            raise NeedsSpark("a type of Spark's own")
    for number in range(len(file.schema)):
        leaf = file.schema.column(number)
        levels = sum(part in {"list", "key_value"} for part in leaf.path.split("."))
        if levels != leaf.max_repetition_level:
            raise NeedsSpark(f"{leaf.path[:60]} has the layout of old files")


def _spark_types(text: str) -> Iterator[str]:
    """Return the names of all types in the JSON schema that Spark wrote."""

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
    """Raise NeedsSpark for a type that Arrow and Spark do not share."""
    import pyarrow as pa
    import pyarrow.types as pt

    from thermocline.engine.arrow import canonical_type

    supported = (
        pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(), pa.float64(),
        pa.string(), pa.binary(), pa.date32(), pa.timestamp("us"), pa.timestamp("us", "UTC"),
    )  # fmt: skip
    if pt.is_fixed_size_binary(kind) or isinstance(kind, pa.BaseExtensionType):
        raise NeedsSpark(f"a column of type {kind}")
    kind = canonical_type(kind)
    if kind in supported or pt.is_decimal128(kind):
        return
    if not (pt.is_struct(kind) or pt.is_list(kind) or pt.is_map(kind)):
        raise NeedsSpark(f"a column of type {kind}")
    for number in range(kind.num_fields):
        _refuse_type(kind.field(number).type)


def _refuse_old_times(array: pa.Array) -> None:
    """Raise NeedsSpark for dates and times on which calendars differ, at any depth."""
    import pyarrow.compute as pc
    import pyarrow.types as pt

    from thermocline.engine.arrow import flatten_map

    kind = array.type
    if pt.is_date(kind) or pt.is_timestamp(kind):
        bounds, unit = pc.min_max(array), 1 if pt.is_date(kind) else _DAY_MICROS
        low, high = bounds["min"].value, bounds["max"].value
        if low is not None and not _DAY_RANGE[0] * unit <= low <= high < _DAY_RANGE[1] * unit:
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
    """Raise NeedsSpark if a required member inside a column is missing."""
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
