"""Rows of this process appended to a table as one commit, laid out as Spark would.

PyIceberg's own append would write a null list of structs as an empty one, look through all rows for
each partition, sort nothing, and write the files anew for every attempt to commit. So the files
are made here, with its Parquet writer, and it commits them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.errors import CommitConflict, Permanent
from thermocline.lake.atomic import retrying
from thermocline.lake.bookmark import COMMIT

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.io import OutputFile
    from pyiceberg.io.fileformat import DataFileStatistics
    from pyiceberg.manifest import DataFile
    from pyiceberg.partitioning import PartitionKey
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.transforms import Transform


class _Overtaken(CommitConflict):
    """Somebody committed to the table meanwhile; nothing of ours landed."""


def append(
    load: Callable[[], Table], rows: pa.Table, branch: str, properties: Mapping[str, str]
) -> None:
    """Add rows to a branch in one commit that carries the properties, our commit id among them.

    Files are split by the table's partitioning, and each is sorted by its order. Columns are
    found by their names; a table's column that rows do not have is null in them. Others who
    commit to the table meanwhile, to whatever branch, are waited out; the files are written once
    all the same.
    """
    shape: object = None
    files: list[DataFile] = []
    for again in retrying(_Overtaken):
        with again:
            table = load()
            if shape != _shape(table):
                shape, files = _shape(table), _written(table, rows)
            _commit(load, table, files, branch, properties)


def _commit(
    load: Callable[[], Table],
    table: Table,
    files: Sequence[DataFile],
    branch: str,
    properties: Mapping[str, str],
) -> None:
    from pyiceberg.exceptions import CommitFailedException

    seen = table.metadata_location
    try:
        with table.transaction() as transaction:
            update = transaction.update_snapshot(dict(properties), branch)
            with update.merge_append() as added:
                for file in files:
                    added.append_data_file(file)
    except (CommitFailedException, ValueError) as error:
        # PyIceberg tries again when it lost a race for the same branch. Who commits to another
        # one takes the number that our snapshot was to have, and that is a ValueError. But so is
        # an answer of the catalog that cannot be read, and then ours may have landed.
        now = load()
        if _landed(now, properties):
            return
        if now.metadata_location == seen:
            raise
        raise _Overtaken(
            f"{'.'.join(table.name())} was changed by somebody else: {error}", "Run again."
        ) from error


def _landed(table: Table, properties: Mapping[str, str]) -> bool:
    wanted = properties[COMMIT]
    found = (each.summary for each in table.metadata.snapshots)
    return any(summary is not None and summary[COMMIT] == wanted for summary in found)


def _shape(table: Table) -> tuple[int, int, int]:
    """What files are written by."""
    metadata = table.metadata
    return metadata.current_schema_id, metadata.default_spec_id, metadata.default_sort_order_id


def _written(table: Table, rows: pa.Table) -> list[DataFile]:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.schema import sanitize_column_names
    from pyiceberg.table.locations import load_location_provider
    from pyiceberg.typedef import Record

    metadata = table.metadata
    schema = sanitize_column_names(table.schema())
    places = load_location_provider(metadata.location, metadata.properties)
    run = uuid4()
    written = []
    for number, (key, part) in enumerate(_parts(table, _fitted(table, rows))):
        name = f"00000-{number}-{run}.parquet"
        output = table.io.new_output(places.new_data_location(name, key))
        counts = _write(output, schema, part, metadata.properties)
        written.append(
            DataFile.from_args(
                content=DataFileContent.DATA,
                file_path=output.location,
                file_format=FileFormat.PARQUET,
                partition=key.partition if key else Record(),
                file_size_in_bytes=len(output),
                sort_order_id=None,
                spec_id=metadata.default_spec_id,
                equality_ids=None,
                key_metadata=None,
                **counts.to_serialized_dict(),
            )
        )
    return written


def _write(
    output: OutputFile, schema: Schema, rows: pa.Table, properties: Mapping[str, str]
) -> DataFileStatistics:
    from pyiceberg.io.pyarrow import ParquetFormatModel, schema_to_pyarrow

    # With the fields' ids, by which every reader finds a column.
    named = schema_to_pyarrow(schema, include_field_ids=True)
    with ParquetFormatModel().create_writer(output, schema, dict(properties)) as writer:
        writer.write(rows.rename_columns(named.names).cast(named))
    return writer.result()


def _fitted(table: Table, rows: pa.Table) -> pa.Table:
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
        rows.column(field.name) if field.name in there else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    ]
    return pa.table(columns, wanted.names).cast(wanted)


def _parts(table: Table, rows: pa.Table) -> Iterator[tuple[PartitionKey | None, pa.Table]]:
    """The rows of each partition, in the table's order."""
    from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
    from pyiceberg.table.sorting import NullOrder, SortDirection

    schema, spec = table.schema(), table.spec()
    keys = [_transformed(schema, rows, each.source_id, each.transform) for each in spec.fields]
    order = [(key, False, True) for key in keys]
    for field in table.sort_order().fields:
        column = _transformed(schema, rows, field.source_id, field.transform)
        falling = field.direction is SortDirection.DESC
        order.append((column, falling, field.null_order is NullOrder.NULLS_FIRST))
    if not order:
        yield None, rows
        return
    indices = _sorted(order)
    rows, keys = rows.take(indices), [key.take(indices) for key in keys]
    starts = _changes(keys, rows.num_rows)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        values = [
            PartitionFieldValue(field, key[start].as_py())
            for field, key in zip(spec.fields, keys, strict=True)
        ]
        part = PartitionKey(values, spec, schema) if values else None
        yield part, rows.slice(start, end - start)


def _transformed(
    schema: Schema, rows: pa.Table, source: int, transform: Transform[Any, Any]
) -> pa.Array:
    import pyarrow as pa

    field = schema.find_field(source)
    column = rows.column(field.name).combine_chunks()
    found = transform.pyarrow_transform(field.field_type)(column)
    return found.combine_chunks() if isinstance(found, pa.ChunkedArray) else found


def _sorted(order: Sequence[tuple[pa.Array, bool, bool]]) -> pa.Array:
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


def _changes(keys: Sequence[pa.Array], rows: int) -> list[int]:
    """Where a row's keys differ from those of the row before, and 0."""
    import numpy as np
    import pyarrow.compute as pc

    differs = np.zeros(max(rows - 1, 0), dtype=bool)
    for key in keys:
        there = pc.is_valid(key).to_numpy(zero_copy_only=False)
        other = pc.fill_null(pc.not_equal(key[1:], key[:-1]), False)
        differs |= other.to_numpy(zero_copy_only=False) | (there[1:] != there[:-1])
    return [0, *(np.flatnonzero(differs) + 1).tolist()]
