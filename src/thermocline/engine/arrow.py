"""One Arrow form for every engine's rows.

Spark, DuckDB and PyIceberg return different Arrow types for the same Iceberg column: strings in
three widths, lists whose elements have three names, a uuid as text, bytes or extension. Rows are
normalized here at the boundary, so that no caller depends on the engine.

The canonical form: string, binary, list, decimal128, timestamp[us] and timestamp[us, UTC],
time64[us], uuid as text, list elements called `element`, map entries `key` and `value`, every
field nullable, dictionaries decoded, no metadata.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt


def normalize(table: pa.Table) -> pa.Table:
    """Return the same rows in canonical Arrow form; columns that already have it are not copied."""
    fields = [pa.field(field.name, canonical_type(field.type)) for field in table.schema]
    columns = [
        column
        if column.type.equals(field.type, check_metadata=True)
        else pa.chunked_array([normalize_array(chunk) for chunk in column.chunks], field.type)
        for column, field in zip(table.columns, fields, strict=True)
    ]
    if not columns:
        return table.replace_schema_metadata(None)
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def canonical_type(kind: pa.DataType) -> pa.DataType:
    """Return the canonical type of an Arrow type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _canonical_extension(kind)
    if pt.is_dictionary(kind) or pt.is_run_end_encoded(kind):
        return canonical_type(kind.value_type)
    if pt.is_struct(kind):
        return pa.struct([pa.field(f.name, canonical_type(f.type)) for f in kind.fields])
    if pt.is_map(kind):
        return map_type(canonical_type(kind.key_type), canonical_type(kind.item_type))
    if _is_list(kind):
        return list_type(canonical_type(kind.value_type))
    return _canonical_leaf(kind)


def list_type(element: pa.DataType) -> pa.ListType:
    """Return the canonical list type of an element type."""
    return pa.list_(pa.field("element", element))


def map_type(key: pa.DataType, value: pa.DataType) -> pa.MapType:
    """Return the canonical map type of a key and a value type."""
    return pa.map_(pa.field("key", key, nullable=False), pa.field("value", value))


def normalize_array(array: pa.Array) -> pa.Array:
    """Return one array in the canonical form of its type."""
    target = canonical_type(array.type)
    if array.type.equals(target, check_metadata=True):
        return array
    if isinstance(array, pa.ExtensionArray):
        storage = array.storage
        if _is_uuid(array.type):
            return _format_uuids(storage)
        return normalize_array(storage).cast(target)
    if isinstance(array, pa.DictionaryArray):
        return normalize_array(array.dictionary_decode())
    if pt.is_run_end_encoded(array.type):
        return normalize_array(pc.run_end_decode(array))
    if pt.is_struct(array.type):
        return build_struct_array(
            [normalize_array(child) for child in array.flatten()], target, array
        )
    if pt.is_map(array.type):
        keys, values = flatten_map(array)
        return build_map_array(normalize_array(keys), normalize_array(values), array)
    if _is_list(array.type):
        return build_list_array(normalize_array(array.flatten()), array)
    return array.cast(target)


def build_struct_array(children: list[pa.Array], kind: pa.StructType, like: pa.Array) -> pa.Array:
    """Return a struct of new children, null where `like` is null."""
    if not children:
        return pa.array([None if null else {} for null in like.is_null().to_pylist()], kind)
    return pa.StructArray.from_arrays(children, fields=list(kind.fields), mask=like.is_null())


def build_list_array(elements: pa.Array, like: pa.Array) -> pa.Array:
    """Return a list of new elements with the lengths and nulls of `like`.

    `elements` are those of all non-null lists, concatenated, as `flatten` returns them.
    """
    return pa.ListArray.from_arrays(
        _build_offsets(like), elements, type=list_type(elements.type), mask=like.is_null()
    )


def build_map_array(keys: pa.Array, values: pa.Array, like: pa.Array) -> pa.Array:
    """Return a map of new entries with the lengths and nulls of `like`; see `flatten_map`."""
    return pa.MapArray.from_arrays(
        _build_offsets(like),
        keys,
        values,
        type=map_type(keys.type, values.type),
        mask=like.is_null(),
    )


def flatten_map(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of all non-null maps, concatenated."""
    # Arrow flattens lists but not maps; a map is a list of entries, and the cast copies nothing.
    keys, values = array.cast(pa.list_(array.type.field(0))).flatten().flatten()
    return keys, values


def count_elements(array: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return the number of elements of each list or map; 0 for null."""
    if pt.is_map(array.type):
        array = array.cast(pa.list_(array.type.field(0)))
    counts = pc.list_value_length(array).fill_null(0).cast(pa.int64())
    return np.asarray(counts.to_numpy(zero_copy_only=False), dtype=np.int64)


def to_json_rows(table: pa.Table, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows as JSON values without loss.

    Decimals, dates, times and uuids become text, bytes base64 text, a NaN or an infinity its name,
    and a map an object when its keys are text, otherwise a list of pairs.
    """
    shown = table if limit is None else table.slice(0, limit)
    kinds = {field.name: field.type for field in shown.schema}
    for batch in shown.to_batches():
        for row in batch.to_pylist():
            yield {name: _to_json(value, kinds[name]) for name, value in row.items()}


def _to_json(value: Any, kind: pa.DataType) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (datetime, date, time)):
        return value.isoformat()
    if isinstance(value, (Decimal, UUID, timedelta)):
        return str(value)
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if pt.is_struct(kind):
        return {f.name: _to_json(value[f.name], f.type) for f in kind.fields}
    if pt.is_map(kind):
        pairs = [[_to_json(k, kind.key_type), _to_json(v, kind.item_type)] for k, v in value]
        return dict(pairs) if pt.is_string(canonical_type(kind.key_type)) else pairs
    return [_to_json(element, kind.value_type) for element in value]


def _is_list(kind: pa.DataType) -> bool:
    return bool(
        pt.is_list(kind)
        or pt.is_large_list(kind)
        or pt.is_fixed_size_list(kind)
        or pt.is_list_view(kind)
        or pt.is_large_list_view(kind)
    )


def _is_uuid(kind: pa.DataType) -> bool:
    return isinstance(kind, pa.UuidType)


def _canonical_extension(kind: pa.BaseExtensionType) -> pa.DataType:
    if _is_uuid(kind):
        return pa.string()
    return canonical_type(kind.storage_type)


def _canonical_leaf(kind: pa.DataType) -> pa.DataType:
    if pt.is_large_string(kind) or pt.is_string_view(kind):
        return pa.string()
    if pt.is_large_binary(kind) or pt.is_binary_view(kind) or pt.is_fixed_size_binary(kind):
        return pa.binary()
    if pt.is_timestamp(kind):
        # Nanoseconds stay: truncation would change the value.
        return pa.timestamp("ns" if kind.unit == "ns" else "us", "UTC" if kind.tz else None)
    if pt.is_time(kind):
        return kind if kind.unit == "ns" else pa.time64("us")
    if pt.is_decimal(kind) and kind.precision <= 38:
        return pa.decimal128(kind.precision, kind.scale)
    return kind


def _build_offsets(like: pa.Array) -> pa.Array:
    return pa.array(np.concatenate(([0], np.cumsum(count_elements(like)))).astype(np.int32))


def _format_uuids(storage: pa.Array) -> pa.Array:
    """Format 16 bytes as 8-4-4-4-12 lower-case hexadecimal digits."""
    return pa.array(
        [None if value is None else str(UUID(bytes=value)) for value in storage.to_pylist()],
        pa.string(),
    )
