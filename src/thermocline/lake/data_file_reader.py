"""Read the rows of single data files, without an engine.

PyIceberg's scan turns a null list of structs into an empty list (and likewise a null map of
structs), cannot read rows by position, and holds all files of a scan in memory at once. A snapshot
diff needs all three, so this module reads Parquet through Arrow, finds columns by field id and
returns rows in the canonical Arrow form.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow
from pyiceberg.manifest import DataFile, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from thermocline.engine import arrow
from thermocline.errors import Permanent

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table import Table

    from thermocline.lake.filediff import ChangedFile, Deletes, FileDiff

Positions = np.ndarray[Any, np.dtype[np.int64]]
Part = tuple[Positions, pa.Table]

_BATCH_ROWS = 128 * 1024
_READER_THREADS = 4
_MAX_KNOWN_SCHEMAS = 100
NO_POSITIONS: Positions = np.zeros(0, dtype=np.int64)
"""The deleted positions of a file without deletes."""
_DELETE_COLUMNS = ["file_path", "pos"]


class DataFileReader:
    """Reads data files of one table as rows of one schema."""

    def __init__(self, table: Table, schema: Schema) -> None:
        self._table = table
        self._schema = schema
        self._known_fields: dict[bytes, Mapping[int, NestedField]] = {}
        self.empty = pa.schema(
            [pa.field(field.name, arrow_type(field.field_type)) for field in schema.fields]
        ).empty_table()

    def difference(self, diff: FileDiff) -> tuple[pa.Table, pa.Table]:
        """Return the removed and the added rows; a row that only moved is in both."""
        start = deleted_positions(self._table.io, (change.start for change in diff.files))
        end = deleted_positions(self._table.io, (change.end for change in diff.files))

        def read(change: ChangedFile) -> tuple[pa.Table, pa.Table]:
            path = change.file.file_path
            old, new = start.get(path, NO_POSITIONS), end.get(path, NO_POSITIONS)
            if change.end is None:
                return self.live(change.file, old), self.empty
            if change.start is None:
                return self.empty, self.live(change.file, new)
            newly = np.setdiff1d(new, old, assume_unique=True)
            again = np.setdiff1d(old, new, assume_unique=True)
            return self.at(change.file, newly), self.at(change.file, again)

        with ThreadPoolExecutor(_READER_THREADS) as pool:
            found = list(pool.map(read, diff.files))
        gone, came = zip((self.empty, self.empty), *found, strict=True)
        return pa.concat_tables(gone), pa.concat_tables(came)

    def live(self, file: DataFile, deleted: Positions) -> pa.Table:
        """Return the rows of a file in order, without those at the deleted positions."""
        return pa.concat_tables([self.empty, *(rows for _, rows in self.live_parts(file, deleted))])

    def at(self, file: DataFile, positions: Positions) -> pa.Table:
        """Return the rows at these positions in order; row groups without any are skipped."""
        return pa.concat_tables([self.empty, *(rows for _, rows in self.parts_at(file, positions))])

    def live_parts(self, file: DataFile, deleted: Positions) -> Iterator[Part]:
        """Yield the rows of `live` in parts, each with the positions of its rows."""
        return self._parts(file, lambda first, last: _positions_outside(deleted, first, last), None)

    def parts_at(self, file: DataFile, positions: Positions) -> Iterator[Part]:
        """Yield the rows of `at` in parts, each with the positions of its rows."""
        if not len(positions):
            return iter(())
        return self._parts(
            file, lambda first, last: _positions_within(positions, first, last), positions
        )

    def _parts(
        self,
        file: DataFile,
        choose: Callable[[int, int], Positions | None],
        only: Positions | None,
    ) -> Iterator[Part]:
        _require_parquet(file)
        with self._table.io.new_input(file.file_path).open() as stream:
            parquet = pq.ParquetFile(stream, pre_buffer=True, coerce_int96_timestamp_unit="us")
            fields = self._read_fields(parquet.schema_arrow)
            projection = _Projection(self._table, self._schema, file, fields)
            for first, batch in _read_batches(parquet, projection.names, only):
                chosen = choose(first, first + batch.num_rows)
                rows = batch if chosen is None else batch.take(pa.array(chosen))
                offsets = np.arange(batch.num_rows) if chosen is None else chosen
                yield (
                    first + offsets,
                    pa.Table.from_arrays(projection(rows), schema=self.empty.schema),
                )

    def _read_fields(self, physical: pa.Schema) -> Mapping[int, NestedField]:
        """Return a file's columns by field id. Most files of a table have the same schema."""
        # As bytes: Arrow's own comparison leaves out the metadata, which has the field ids.
        key = physical.serialize().to_pybytes()
        found = self._known_fields.get(key)
        if found is None:
            metadata = self._table.metadata
            schema = pyarrow_to_schema(
                physical,
                metadata.name_mapping(),
                downcast_ns_timestamp_to_us=True,
                format_version=metadata.format_version,
            )
            found = {field.field_id: field for field in schema.fields}
            if len(self._known_fields) < _MAX_KNOWN_SCHEMAS:
                self._known_fields[key] = found
        return found


def deleted_positions(io: FileIO, files: Iterable[Deletes | None]) -> dict[str, Positions]:
    """Read position-delete files: by data file path the deleted positions, sorted and distinct."""
    found: dict[str, list[Positions]] = defaultdict(list)
    for file in frozenset[DataFile]().union(*(some for some in files if some)):
        _require_parquet(file)
        with io.new_input(file.file_path).open() as stream:
            deletes = pq.read_table(stream, columns=_DELETE_COLUMNS)
        paths = deletes["file_path"].combine_chunks().dictionary_encode()
        of_row, positions = paths.indices.to_numpy(), deletes["pos"].to_numpy()
        for number, path in enumerate(paths.dictionary.to_pylist()):
            found[path].append(positions[of_row == number])
    return {path: np.unique(np.concatenate(parts)) for path, parts in found.items()}


@lru_cache(maxsize=4096)
def arrow_type(kind: IcebergType) -> pa.DataType:
    """Return the canonical Arrow type of an Iceberg type."""
    return arrow.canonical_type(schema_to_pyarrow(kind, include_field_ids=False))


def _positions_within(positions: Positions, first: int, last: int) -> Positions:
    low, high = np.searchsorted(positions, (first, last))
    return positions[low:high] - first


def _positions_outside(positions: Positions, first: int, last: int) -> Positions | None:
    """Return the positions of a range that are not deleted; None stands for all of them."""
    deleted = _positions_within(positions, first, last)
    return np.delete(np.arange(last - first), deleted) if len(deleted) else None


def _read_batches(
    parquet: pq.ParquetFile, names: list[str], wanted: Positions | None
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield batches in file order, each with the position of its first row."""
    first = 0
    for group in range(parquet.num_row_groups):
        rows = parquet.metadata.row_group(group).num_rows
        low, high = (0, 1) if wanted is None else np.searchsorted(wanted, (first, first + rows))
        if low < high:
            offset = first
            for batch in parquet.iter_batches(_BATCH_ROWS, row_groups=[group], columns=names):
                yield offset, batch
                offset += batch.num_rows
        first += rows


class _Projection:
    """Projects a file's columns to a schema, by field id."""

    def __init__(
        self, table: Table, schema: Schema, file: DataFile, fields: Mapping[int, NestedField]
    ) -> None:
        self._fields = schema.fields
        self._file_fields = fields
        self._constants = _partition_constants(table, file)
        wanted = [self._file_fields.get(field.field_id) for field in self._fields]
        self.names = [field.name for field in wanted if field is not None]

    def __call__(self, batch: pa.RecordBatch) -> list[pa.Array]:
        return [self._column(field, batch) for field in self._fields]

    def _column(self, field: NestedField, batch: pa.RecordBatch) -> pa.Array:
        source = self._file_fields.get(field.field_id)
        if source is not None:
            return _project_array(batch.column(source.name), source.field_type, field.field_type)
        return _missing_column(field, batch.num_rows, self._constants)


def _project_array(array: pa.Array, source: IcebergType, target: IcebergType) -> pa.Array:
    """Convert an array of a file's type to the canonical array of the target type."""
    if isinstance(target, StructType) and isinstance(source, StructType):
        # By position: Arrow allows two fields of one name, Iceberg's order is the file's.
        parts = zip(source.fields, array.flatten(), strict=True)
        children = {field.field_id: (field.field_type, child) for field, child in parts}
        found = [
            _project_array(children[f.field_id][1], children[f.field_id][0], f.field_type)
            if f.field_id in children
            else _missing_column(f, len(array), {})
            for f in target.fields
        ]
        return arrow.build_struct_array(found, arrow_type(target), array)
    if isinstance(target, ListType) and isinstance(source, ListType):
        elements = _project_array(array.flatten(), source.element_type, target.element_type)
        return arrow.build_list_array(elements, array)
    if isinstance(target, MapType) and isinstance(source, MapType):
        keys, values = arrow.flatten_map(array)
        keys = _project_array(keys, source.key_type, target.key_type)
        values = _project_array(values, source.value_type, target.value_type)
        return arrow.build_map_array(keys, values, array)
    target_type = arrow_type(target)
    normal = arrow.normalize_array(array)
    # Format 2 has microseconds only, so nanoseconds are truncated, as in every engine.
    return normal if normal.type.equals(target_type) else normal.cast(target_type, safe=False)


def _missing_column(field: NestedField, rows: int, constants: Mapping[int, Any]) -> pa.Array:
    """Return a column that the file lacks: its partition value, its default, or null."""
    kind = arrow_type(field.field_type)
    value = constants.get(field.field_id, field.initial_default)
    return pa.nulls(rows, kind) if value is None else pa.repeat(pa.scalar(value, kind), rows)


def _partition_constants(table: Table, file: DataFile) -> dict[int, Any]:
    """Return the values of identity partition columns, which imported files may lack."""
    spec = table.metadata.specs().get(file.spec_id)
    if spec is None:
        return {}
    return {
        field.source_id: file.partition[position]
        for position, field in enumerate(spec.fields)
        if isinstance(field.transform, IdentityTransform)
    }


def _require_parquet(file: DataFile) -> None:
    if file.file_format != FileFormat.PARQUET:
        raise Permanent(
            f"{file.file_path.rsplit('/', 1)[-1]} is a {file.file_format} file; only Parquet files "
            "can be compared.",
            "Keep the table at format version 2 and rewrite its files as Parquet.",
            file=file.file_path,
        )
