"""Write rows of this process as data files of a table, laid out as Spark lays them out.

PyIceberg's append writes a null list of structs as an empty one, scans all rows for each partition,
and does not sort. So this module writes the files with PyIceberg's Parquet writer. Rows may arrive
in parts: they are buffered until there are enough for a row group of each partition. A file is
closed at the table's target size; in a table with a sort order it is closed after one row group, so
that each file is sorted. A writer with an external sort instead sorts all rows before it writes the
first file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

import numpy as np

from thermocline.errors import Permanent
from thermocline.lake.crash_points import crash_point

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray
    from pyiceberg.io import OutputFile
    from pyiceberg.io.fileformat import FileFormatWriter
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.table import Table
    from pyiceberg.types import NestedField

    from thermocline.lake.external_sort import ExternalSort
    from thermocline.lake.row_order import SortedBy

Rows: TypeAlias = "pa.Table | Iterable[pa.Table]"
"""Rows as one table, or in parts; parts are iterated again if the files must be rewritten."""

BUFFER_BYTES = 128 << 20
"""Bytes buffered in memory before they are written; sorting needs about as much again."""
MAX_OPEN_FILES = 128
"""Maximum number of open files between two row groups."""

PartitionValues = tuple[Any, ...]
"""The values of a partition."""

_ORIGIN = "\0origin"
"""The buffered rows' last column, if they are added with origins."""


def write_files(table: Table, rows: Rows) -> list[DataFile]:
    """Write rows as data files of a table, which are not visible until they are committed.

    Files are split by the table's partition spec and sorted by its sort order. Columns are matched
    by name; a missing column is null. Rows in parts should be ordered by partition, otherwise many
    small files are written.
    """
    import pyarrow as pa

    files = DataFileWriter(table)
    try:
        for part in [rows] if isinstance(rows, pa.Table) else rows:
            files.add(part)
        files.close()
    except BaseException:
        files.abandon()
        raise
    return files.data_files


def layout_ids(table: Table) -> tuple[int, int, int]:
    """Return the ids of the schema, partition spec and sort order that files are written with."""
    metadata = table.metadata
    return metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id


class DataFileWriter:
    """Writes data files of one table. They are not visible until they are committed.

    With `sorting` all rows are sorted by its order, whatever their number, and files of one
    partition follow each other in the order. Otherwise each file is sorted by the table's order.
    `target_bytes` is the size of the files; the table's property by default.
    """

    def __init__(
        self, table: Table, sorting: ExternalSort | None = None, target_bytes: int | None = None
    ) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.schema import sanitize_column_names
        from pyiceberg.table import TableProperties
        from pyiceberg.table.locations import load_location_provider

        from thermocline.lake.clustering import SORTED_PREFIX, zorder_prefix
        from thermocline.lake.row_order import SortedBy, ZOrder

        metadata = table.metadata
        self.data_files: list[DataFile] = []
        self.origins: list[NDArray[np.int64]] = []
        """For each data file the origins of its rows in order, if rows are added with origins."""
        self.layout = layout_ids(table)
        self._table = table
        self._schema = sanitize_column_names(table.schema())
        # With the field ids, by which readers find columns.
        self._arrow_schema = schema_to_pyarrow(self._schema, include_field_ids=True)
        self._location_provider = load_location_provider(metadata.location, metadata.properties)
        self._target = target_bytes or int(
            metadata.properties.get(
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
            )
        )
        # A row group is written per buffer: with an exact target a file has several.
        is_exact = sorting is not None or target_bytes is not None
        self._buffer_bytes = min(BUFFER_BYTES, self._target) if is_exact else BUFFER_BYTES
        self._sorting = sorting
        order = sorting.order if sorting else SortedBy.of_table(table)
        self._flush_order = order if sorting is None and isinstance(order, SortedBy) else None
        self._sort_order_id = (
            metadata.default_sort_order_id if isinstance(order, SortedBy) else None
        )
        self._prefix = ""
        if sorting is not None:
            curve = order.columns if isinstance(order, ZOrder) else None
            self._prefix = SORTED_PREFIX if curve is None else zorder_prefix(curve)
        self._run = uuid4()
        self._buffered: dict[PartitionValues, tuple[PartitionKey | None, list[pa.Table]]] = {}
        self._bytes = 0
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._outputs: list[OutputFile] = []

    def add(self, rows: pa.Table, origins: NDArray[np.int64] | None = None) -> None:
        """Buffer rows, and write them when the buffer is full. Columns are matched by name.

        `origins` are numbers of the caller's, one per row, that tell afterwards where each row is.
        """
        if not rows.num_rows:
            return
        conformed = _conform(self._table, rows)
        if origins is not None:
            conformed = conformed.append_column(_ORIGIN, [origins])
        if self._sorting is None:
            self._buffer(conformed)
        else:
            self._sorting.add(conformed)

    def _buffer(self, conformed: pa.Table) -> None:
        for key, part in _split_partitions(self._table, conformed, self._flush_order):
            partition = tuple(field.value for field in key.field_values) if key else ()
            self._buffered.setdefault(partition, (key, []))[1].append(part)
        self._bytes += conformed.nbytes
        if self._bytes >= self._buffer_bytes:
            self._flush()

    def close(self) -> None:
        """Write the buffered rows and close every file."""
        for part in self._sorting.sorted_parts(self._buffer_bytes) if self._sorting else ():
            self._buffer(part)
        self._flush()
        self._close_files(list(self._open))
        if self.data_files:
            crash_point("commit.files-written")

    def abandon(self) -> None:
        """Remove all written files."""
        for file in self._open.values():
            with suppress(Exception):  # the file is removed, complete or not
                file.writer.close()
        for output in self._outputs:
            with suppress(FileNotFoundError):
                self._table.io.delete(output)

    def _flush(self) -> None:
        for partition, (key, parts) in self._buffered.items():
            if partition not in self._open:
                self._open[partition] = self._open_file(key)
            file = self._open[partition]
            rows = self._combine_parts(parts)
            if rows.column_names[-1] == _ORIGIN:
                file.origins.append(rows.column(_ORIGIN).to_numpy())
                rows = rows.drop_columns(_ORIGIN)
            rows = rows.rename_columns(self._arrow_schema.names)
            file.writer.write(rows.cast(self._arrow_schema))
            if self._flush_order or file.size() >= self._target:
                self._close_files([partition])
        self._buffered, self._bytes = {}, 0
        if len(self._open) > MAX_OPEN_FILES:
            self._close_files(list(self._open))

    def _combine_parts(self, parts: list[pa.Table]) -> pa.Table:
        """Combine sorted parts of one partition into one sorted table."""
        import pyarrow as pa

        rows = pa.concat_tables(parts)
        if len(parts) > 1 and self._flush_order:
            [(_, rows)] = _split_partitions(self._table, rows.combine_chunks(), self._flush_order)
        return rows

    def _open_file(self, key: PartitionKey | None) -> _OpenFile:
        from pyiceberg.io.pyarrow import ParquetFormatModel

        name = f"{self._prefix}00000-{len(self._outputs)}-{self._run}.parquet"
        output = self._table.io.new_output(self._location_provider.new_data_location(name, key))
        self._outputs.append(output)
        properties = dict(self._table.metadata.properties)
        writer = ParquetFormatModel().create_writer(output, self._schema, properties)
        return _OpenFile(key, output, writer)

    def _close_files(self, partitions: list[PartitionValues]) -> None:
        for partition in partitions:
            file = self._open.pop(partition)
            self.data_files.append(
                file.finish(self._table.metadata.default_spec_id, self._sort_order_id)
            )
            if file.origins:
                self.origins.append(np.concatenate(file.origins))


class _OpenFile:
    def __init__(
        self, key: PartitionKey | None, output: OutputFile, writer: FileFormatWriter
    ) -> None:
        self.key = key
        self.output = output
        self.writer = writer
        self.origins: list[NDArray[np.int64]] = []

    def size(self) -> int:
        """Return how many bytes have been written."""
        from thermocline.lake.pyiceberg_internals import written_bytes

        return written_bytes(self.writer)

    def finish(self, spec: int, sort_order: int | None) -> DataFile:
        """Close the file and return its entry for a manifest."""
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        counts = self.writer.close()
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.output.location,
            file_format=FileFormat.PARQUET,
            partition=self.key.partition if self.key else Record(),
            file_size_in_bytes=len(self.output),
            sort_order_id=sort_order,
            equality_ids=None,
            key_metadata=None,
            **counts.to_serialized_dict(),
        )
        file.spec_id = spec
        return file


def _conform(table: Table, rows: pa.Table) -> pa.Table:
    """Convert the rows to the table's columns and types. A column added meanwhile is null."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    target = schema_to_pyarrow(table.schema(), include_field_ids=False)
    required = {field.name for field in target if not field.nullable}
    names = set(rows.column_names)
    if mismatched := sorted((names - set(target.names)) | (required - names)):
        table_name = ".".join(table.name())
        raise Permanent(
            f"The rows for {table_name} do not match its columns: {', '.join(mismatched)}.",
            "The table was changed during the run. Run again.",
        )
    columns = [
        _to_stored(rows.column(field.name), field.type)
        if field.name in names
        else pa.nulls(rows.num_rows, field.type)
        for field in target
    ]
    return pa.table(columns, target.names).cast(target)


def conform_columns(columns: Sequence[NestedField], rows: pa.Table) -> pa.Table:
    """Convert some columns of canonical rows to the types with which they are written."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow
    from pyiceberg.schema import Schema

    target = schema_to_pyarrow(Schema(*columns), include_field_ids=False)
    stored = [_to_stored(rows.column(field.name), field.type) for field in target]
    return pa.table(stored, target.names).cast(target)


def _to_stored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Convert text uuids to the sixteen bytes that Arrow casts to uuids."""
    import pyarrow as pa

    if "arrow.uuid" not in str(kind):
        return column
    return pa.chunked_array(
        [_uuids_as_bytes(chunk, kind) for chunk in column.chunks] or column.chunks
    )


def _uuids_as_bytes(array: pa.Array, kind: pa.DataType) -> pa.Array:
    from uuid import UUID

    import pyarrow as pa

    from thermocline.engine import arrow

    if isinstance(kind, pa.UuidType):
        texts = arrow.normalize_array(array).to_pylist()
        return pa.array([t and UUID(t).bytes for t in texts], pa.binary(16))
    if pa.types.is_struct(kind):
        members = zip(array.flatten(), kind.fields, strict=True)
        children = [_uuids_as_bytes(child, field.type) for child, field in members]
        named = zip(children, kind.fields, strict=True)
        made = pa.struct([pa.field(field.name, child.type) for child, field in named])
        return arrow.build_struct_array(children, made, array)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return arrow.build_list_array(_uuids_as_bytes(array.flatten(), kind.value_type), array)
    if pa.types.is_map(kind):
        keys, values = arrow.flatten_map(array)
        keys, values = _uuids_as_bytes(keys, kind.key_type), _uuids_as_bytes(values, kind.item_type)
        return arrow.build_map_array(keys, values, array)
    return array


def _split_partitions(
    table: Table, rows: pa.Table, order: SortedBy | None
) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """Yield the rows of each partition in an order, or else in the order in which they came."""
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey

    from thermocline.lake.row_order import sort_indices, transform_column

    schema, spec = table.schema(), table.spec()
    columns = [schema.find_field(each.source_id) for each in spec.fields]
    keys = [
        transform_column(column, rows, each.transform)
        for column, each in zip(columns, spec.fields, strict=True)
    ]
    by = [(key, False, True) for key in keys] + (order.keys(rows) if order else [])
    if not by:
        yield None, rows
        return
    indices = sort_indices(by)
    rows, keys = rows.take(indices), [key.take(indices) for key in keys]
    starts = _group_starts(keys, rows.num_rows)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        values = [
            PartitionFieldValue(field, key[start].as_py())
            for field, key in zip(spec.fields, keys, strict=True)
        ]
        part = PartitionKey(values, spec, schema) if values else None
        yield part, rows.slice(start, end - start)


def _group_starts(keys: Sequence[pa.Array], rows: int) -> list[int]:
    """Return 0 and the indices of rows whose keys differ from those of the row before."""
    import numpy as np
    import pyarrow.compute as pc

    differs = np.zeros(max(rows - 1, 0), dtype=bool)
    for key in keys:
        there = pc.is_valid(key).to_numpy(zero_copy_only=False)
        other = pc.fill_null(pc.not_equal(key[1:], key[:-1]), False)
        differs |= other.to_numpy(zero_copy_only=False) | (there[1:] != there[:-1])
    return [0, *(np.flatnonzero(differs) + 1).tolist()]
