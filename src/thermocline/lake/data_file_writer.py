"""Rows of this process written as data files of a table, laid out as Spark would.

PyIceberg's own append would write a null list of structs as an empty one, look through all rows for
each partition, and sort nothing. So the files are made here, with its Parquet writer. Rows may come
piece by piece: they are held until there are enough for a row group of each partition. A file goes
on until it has the table's target size; in a table with a sort order it ends with its row group, so
that each file is sorted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import uuid4

from thermocline.errors import Permanent
from thermocline.lake.crash_points import crash_point

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import OutputFile
    from pyiceberg.io.fileformat import FileFormatWriter
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.transforms import Transform

Rows: TypeAlias = "pa.Table | Iterable[pa.Table]"
"""Rows at once, or part by part; parts are asked for again if the files must be made anew."""

BUFFER_BYTES = 128 << 20
"""So much is held in memory before it is written; sorting it takes about as much again."""
MAX_OPEN_FILES = 128
"""So many files are open at once, at most, between two row groups."""

PartitionValues = tuple[Any, ...]
"""The values of a partition."""


def write_files(table: Table, rows: Rows) -> list[DataFile]:
    """Write rows as data files of a table, which nobody sees until they are committed.

    Files are split by the table's partitioning, and each is sorted by its order. Columns are
    found by their names; a table's column that rows do not have is null in them. Rows that come
    in parts should come partition by partition, or there will be many small files.
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
    return files.done


def layout_ids(table: Table) -> tuple[int, int, int]:
    """What files are written by."""
    metadata = table.metadata
    return metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id


class DataFileWriter:
    """Data files of one table that are being written. Nobody sees them before a commit."""

    def __init__(self, table: Table) -> None:
        from pyiceberg.io.pyarrow import schema_to_pyarrow
        from pyiceberg.schema import sanitize_column_names
        from pyiceberg.table import TableProperties
        from pyiceberg.table.locations import load_location_provider

        metadata = table.metadata
        self.done: list[DataFile] = []
        self.shape = layout_ids(table)
        self._table = table
        self._schema = sanitize_column_names(table.schema())
        # With the fields' ids, by which every reader finds a column.
        self._named = schema_to_pyarrow(self._schema, include_field_ids=True)
        self._places = load_location_provider(metadata.location, metadata.properties)
        self._target = int(
            metadata.properties.get(
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES,
                TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT,
            )
        )
        self._run = uuid4()
        self._held: dict[PartitionValues, tuple[PartitionKey | None, list[pa.Table]]] = {}
        self._bytes = 0
        self._open: dict[PartitionValues, _OpenFile] = {}
        self._outputs: list[OutputFile] = []

    def add(self, rows: pa.Table) -> None:
        """Take rows; columns are found by their names."""
        if not rows.num_rows:
            return
        fitted = _conform(self._table, rows)
        for key, part in _split_partitions(self._table, fitted):
            place = tuple(field.value for field in key.field_values) if key else ()
            self._held.setdefault(place, (key, []))[1].append(part)
        self._bytes += fitted.nbytes
        if self._bytes >= BUFFER_BYTES:
            self._flush()

    def close(self) -> None:
        """Write what is held and end every file."""
        self._flush()
        self._end(list(self._open))
        if self.done:
            crash_point("commit.files-written")

    def abandon(self) -> None:
        """Remove whatever was written."""
        for file in self._open.values():
            with suppress(Exception):  # it is not wanted, whole or not
                file.writer.close()
        for output in self._outputs:
            with suppress(FileNotFoundError):
                self._table.io.delete(output)

    def _flush(self) -> None:
        for place, (key, parts) in self._held.items():
            if place not in self._open:
                self._open[place] = self._begun(key)
            file = self._open[place]
            rows = self._together(parts).rename_columns(self._named.names)
            file.writer.write(rows.cast(self._named))
            if self._table.sort_order().fields or file.size() >= self._target:
                self._end([place])
        self._held, self._bytes = {}, 0
        if len(self._open) > MAX_OPEN_FILES:
            self._end(list(self._open))

    def _together(self, parts: list[pa.Table]) -> pa.Table:
        """Rows of one partition, of which each part is in the table's order."""
        import pyarrow as pa

        rows = pa.concat_tables(parts)
        if len(parts) > 1 and self._table.sort_order().fields:
            [(_, rows)] = _split_partitions(self._table, rows.combine_chunks())
        return rows

    def _begun(self, key: PartitionKey | None) -> _OpenFile:
        from pyiceberg.io.pyarrow import ParquetFormatModel

        name = f"00000-{len(self._outputs)}-{self._run}.parquet"
        output = self._table.io.new_output(self._places.new_data_location(name, key))
        self._outputs.append(output)
        properties = dict(self._table.metadata.properties)
        writer = ParquetFormatModel().create_writer(output, self._schema, properties)
        return _OpenFile(key, output, writer)

    def _end(self, places: list[PartitionValues]) -> None:
        for place in places:
            file = self._open.pop(place)
            self.done.append(file.finished(self._table.metadata.default_spec_id))


class _OpenFile:
    def __init__(
        self, key: PartitionKey | None, output: OutputFile, writer: FileFormatWriter
    ) -> None:
        self.key = key
        self.output = output
        self.writer = writer

    def size(self) -> int:
        """How many bytes have been written."""
        stream: Any = self.writer._fos  # type: ignore[attr-defined]
        return int(stream.tell())

    def finished(self, spec: int) -> DataFile:
        from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
        from pyiceberg.typedef import Record

        counts = self.writer.close()
        file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.output.location,
            file_format=FileFormat.PARQUET,
            partition=self.key.partition if self.key else Record(),
            file_size_in_bytes=len(self.output),
            sort_order_id=None,
            equality_ids=None,
            key_metadata=None,
            **counts.to_serialized_dict(),
        )
        file.spec_id = spec
        return file


def _conform(table: Table, rows: pa.Table) -> pa.Table:
    """The rows in the table's own columns and types. One that was added meanwhile is null."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    wanted = schema_to_pyarrow(table.schema(), include_field_ids=False)
    needed = {field.name for field in wanted if not field.nullable}
    there = set(rows.column_names)
    if odd := sorted((there - set(wanted.names)) | (needed - there)):
        raise Permanent(
            f"The rows for {'.'.join(table.name())} have other columns than it: {', '.join(odd)}.",
            "Somebody changed the table while the run was working. Run again.",
        )
    columns = [
        _to_stored(rows.column(field.name), field.type)
        if field.name in there
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, wanted.names).cast(wanted)


def _to_stored(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """A column whose uuids are the sixteen bytes that Arrow casts to uuids, and not text."""
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
    table: Table, rows: pa.Table
) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """The rows of each partition, in the table's order."""
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
    from pyiceberg.table.sorting import NullOrder, SortDirection

    schema, spec = table.schema(), table.spec()
    keys = [_transform_column(schema, rows, each.source_id, each.transform) for each in spec.fields]
    order = [(key, False, True) for key in keys]
    for field in table.sort_order().fields:
        column = _transform_column(schema, rows, field.source_id, field.transform)
        falling = field.direction is SortDirection.DESC
        order.append((column, falling, field.null_order is NullOrder.NULLS_FIRST))
    if not order:
        yield None, rows
        return
    indices = _sort_indices(order)
    rows, keys = rows.take(indices), [key.take(indices) for key in keys]
    starts = _group_starts(keys, rows.num_rows)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        values = [
            PartitionFieldValue(field, key[start].as_py())
            for field, key in zip(spec.fields, keys, strict=True)
        ]
        part = PartitionKey(values, spec, schema) if values else None
        yield part, rows.slice(start, end - start)


def _transform_column(
    schema: Schema, rows: pa.Table, source: int, transform: Transform[Any, Any]
) -> pa.Array:
    import pyarrow as pa

    field = schema.find_field(source)
    column = rows.column(field.name).combine_chunks()
    found = transform.pyarrow_transform(field.field_type)(column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _sort_indices(order: Sequence[tuple[pa.Array, bool, bool]]) -> pa.Array:
    """The rows' numbers in order of columns, each of which may fall and may have nulls first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns, keys = [], []
    for column, falling, nulls_first in order:
        # Where nulls go is a column of its own: it may differ from one to the next.
        columns += [pc.is_null(column).cast(pa.int8()), column]
        keys += [nulls_first, falling]
    names = [str(number) for number in range(len(keys))]
    directions = ["descending" if falling else "ascending" for falling in keys]
    return pc.sort_indices(
        pa.table(columns, names), sort_keys=list(zip(names, directions, strict=True))
    )


def _group_starts(keys: Sequence[pa.Array], rows: int) -> list[int]:
    """Where a row's keys differ from those of the row before, and 0."""
    import numpy as np
    import pyarrow.compute as pc

    differs = np.zeros(max(rows - 1, 0), dtype=bool)
    for key in keys:
        there = pc.is_valid(key).to_numpy(zero_copy_only=False)
        other = pc.fill_null(pc.not_equal(key[1:], key[:-1]), False)
        differs |= other.to_numpy(zero_copy_only=False) | (there[1:] != there[:-1])
    return [0, *(np.flatnonzero(differs) + 1).tolist()]
