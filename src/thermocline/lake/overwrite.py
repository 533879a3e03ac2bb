"""Replace files of a table: all files, whole partitions, single files or single rows."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.typedef import Record

from thermocline.errors import CheckFailed, Permanent
from thermocline.lake.data_file_reader import DataFileReader, Positions, deleted_positions
from thermocline.lake.data_file_writer import Rows, write_files
from thermocline.lake.filediff import (
    ChangedFile,
    find_files_at_paths,
    single_target_path,
    snapshot_of,
)
from thermocline.lake.manifest_pruning import ManifestPruner, is_live
from thermocline.lake.snapshot_producer import FileChange

Partitions = Sequence[Mapping[str, Any]]
"""Partitions by the values of their partition columns; the date for a day."""

_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)
"""The columns of a position-delete file, with their field ids in the specification."""


class OutdatedPartitioning(Permanent):
    """Single partitions cannot be replaced: some files have an older partition spec."""


def replace_all(table: Table, head: int, rows: Rows) -> FileChange:
    """Replace all rows of a snapshot with these rows."""
    return FileChange(write_files(table, rows), _list_files(table, _live_manifests(table, head)))


def replace_partitions(
    table: Table, head: int, rows: Rows, partitions: Partitions | None
) -> FileChange:
    """Replace these partitions with the rows, or without `partitions` those of the rows.

    Raise CheckFailed for a row outside the partitions: it would be added to kept rows.
    """
    added, records = write_partitions(table, rows, partitions)
    replaced = {file.partition for file in added} if records is None else records
    return FileChange(added, _current_spec_files(table, head, replaced))


def write_partitions(
    table: Table, rows: Rows, partitions: Partitions | None
) -> tuple[list[DataFile], set[Record] | None]:
    """Write the rows as files; return them, and the partitions as records of the current spec.

    Raise CheckFailed for a row outside the partitions.
    """
    added = write_files(table, rows)
    if partitions is None:
        return added, None
    records = {_to_record(table, values) for values in partitions}
    for file in added:
        if file.partition not in records:
            raise _outside_error(table, file)
    return added, records


def replay_partitions(
    table: Table, start: int, end: int, onto: int
) -> tuple[FileChange, set[Record]]:
    """Replay the change of partitions from `start` to `end` onto a third snapshot.

    The change uses the same files. Partitions that also differ between `start` and `onto` conflict:
    they are left out of the change and returned separately.
    """
    changed = changed_partitions(table, start, end)
    moved = changed_partitions(table, start, onto)
    free = changed - moved
    change = FileChange(
        _current_spec_files(table, end, free), _current_spec_files(table, onto, free)
    )
    return change, changed & moved


def changed_partitions(table: Table, start: int, end: int) -> set[Record]:
    """Return the partitions whose files differ between two snapshots.

    Shared manifests list the same files, so they are not opened.
    """
    before, after = (set(_current_spec_manifests(table, snapshot)) for snapshot in (start, end))
    old, new = (
        {f.file_path: f for f in _list_files(table, m)} for m in (before - after, after - before)
    )
    both = {**old, **new}
    return {both[path].partition for path in old.keys() ^ new.keys()}


def live_partitions(table: Table, snapshot: int) -> dict[Record, list[DataFile]]:
    """Return the partitions that have files, with their files."""
    found: dict[Record, list[DataFile]] = defaultdict(list)
    for file in _current_spec_files(table, snapshot):
        found[file.partition].append(file)
    return found


def _current_spec_files(
    table: Table, snapshot: int, among: Collection[Record] | None = None
) -> list[DataFile]:
    """Return the data and delete files of a snapshot, or of some of its partitions.

    Raise OutdatedPartitioning if a file has an older partition spec. Manifests that cannot list a
    file of the partitions are not opened.
    """
    manifests: Iterable[ManifestFile] = _current_spec_manifests(table, snapshot)
    if among is not None:
        pruner = ManifestPruner(table)
        manifests = [each for each in manifests if pruner.may_hold(each, among)]
    files = _list_files(table, manifests)
    return [file for file in files if among is None or file.partition in among]


def _current_spec_manifests(table: Table, snapshot: int) -> list[ManifestFile]:
    """Return the manifests with live files of a snapshot; all must have the current spec."""
    manifests = _live_manifests(table, snapshot)
    current = table.spec().spec_id
    # Counts may be missing: such a manifest is opened to see whether it lists anything.
    if any(m.partition_spec_id != current and _list_files(table, [m]) for m in manifests):
        raise OutdatedPartitioning(
            f"{'.'.join(table.name())} has files of an older partitioning.",
            "Recompute it: thermo run --full-refresh.",
        )
    return [m for m in manifests if m.partition_spec_id == current]


def replace_files(table: Table, head: int, rows: Rows, paths: Collection[str]) -> FileChange:
    """Replace the data files at these paths with the rows. Without paths the rows are appended."""
    if not paths:
        return FileChange(write_files(table, rows), appends=True)
    replaced = _find_files(table, head, paths)
    removed = [*(each.file for each in replaced), *_exclusive_deletes(replaced)]
    return FileChange(write_files(table, rows), removed)


def replace_rows(
    table: Table, head: int, rows: Rows, gone: Mapping[str, Positions], *, on_read: bool
) -> FileChange:
    """Append the rows, and remove the rows at positions of data files, by path.

    With `on_read` write delete files, which readers apply; otherwise rewrite the other rows of the
    files together with the added ones.
    """
    affected = _find_files(table, head, gone)
    current = table.spec().spec_id
    marked = [each.file for each in affected if on_read and each.file.spec_id == current]
    rewritten = [each for each in affected if not on_read or each.file.spec_id != current]
    rest = _RemainingRows(table, rewritten, gone)
    added = write_files(table, _chain(rest, rows))
    return FileChange(
        [*added, *_write_deletes(table, marked, gone)],
        [*(each.file for each in rewritten), *_exclusive_deletes(rewritten)],
    )


def _find_files(table: Table, head: int, paths: Collection[str]) -> list[ChangedFile]:
    """Return the data files at these paths, with their deletes; all must be in the snapshot."""
    found = find_files_at_paths(table, head, paths)
    if len(found) < len(paths):
        raise Permanent(
            f"Files that were read from {'.'.join(table.name())} are not in it any more.",
            "This is a bug; please report it.",
        )
    return found


def _live_manifests(table: Table, snapshot: int) -> list[ManifestFile]:
    """Return the manifests of a snapshot that may list live data or delete files."""
    return [m for m in snapshot_of(table, snapshot).manifests(table.io) if is_live(m)]


def _list_files(table: Table, manifests: Iterable[ManifestFile]) -> list[DataFile]:
    """Return the live files that these manifests list."""
    return [
        entry.data_file
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


class _RemainingRows:
    """The remaining rows of rewritten files, in parts. It can be iterated more than once."""

    def __init__(
        self, table: Table, files: Sequence[ChangedFile], gone: Mapping[str, Positions]
    ) -> None:
        self._table, self._files, self._gone = table, files, gone

    def __iter__(self) -> Iterator[pa.Table]:
        reader = DataFileReader(self._table, self._table.schema())
        dead = deleted_positions(self._table.io, (each.end for each in self._files))
        for each in self._files:
            path = each.file.file_path
            out = np.union1d(dead.get(path, np.zeros(0, np.int64)), self._gone[path])
            for _, rows in reader.live_parts(each.file, out):
                yield rows


def _chain(first: Iterable[pa.Table], rows: Rows) -> Iterable[pa.Table]:
    class Both:
        def __iter__(self) -> Iterator[pa.Table]:
            yield from first
            yield from [rows] if isinstance(rows, pa.Table) else rows

    return Both()


def _exclusive_deletes(files: Sequence[ChangedFile]) -> list[DataFile]:
    """Return the delete files that apply only to these rewritten files."""
    paths = {each.file.file_path for each in files}
    found = {delete for each in files for delete in each.end or ()}
    return [delete for delete in found if single_target_path(delete) in paths]


def _write_deletes(
    table: Table, files: Sequence[DataFile], gone: Mapping[str, Positions]
) -> list[DataFile]:
    """Write one delete file for each partition, so that its readers open only one more file."""
    groups: dict[Record, list[DataFile]] = defaultdict(list)
    for file in files:
        groups[file.partition].append(file)
    return [
        write_delete_file(table, partition, {file.file_path: gone[file.file_path] for file in some})
        for partition, some in groups.items()
    ]


def write_delete_file(table: Table, partition: Record, gone: Mapping[str, Positions]) -> DataFile:
    """Write a position-delete file for data files of one partition of the current spec."""
    metadata = table.metadata
    provider = load_location_provider(metadata.location, metadata.properties)
    output = table.io.new_output(provider.new_data_location(f"deletes-{uuid4()}.parquet", None))
    paths = sorted(gone)
    rows = pa.Table.from_arrays(
        [
            pa.array([path for path in paths for _ in range(len(gone[path]))], pa.string()),
            pa.array(np.concatenate([np.sort(gone[path]) for path in paths]), pa.int64()),
        ],
        schema=_DELETES,
    )
    with output.create(overwrite=False) as stream:
        pq.write_table(rows, stream, compression="zstd")
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=output.location,
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=rows.num_rows,
        file_size_in_bytes=len(output),
        lower_bounds={2147483546: paths[0].encode()},
        upper_bounds={2147483546: paths[-1].encode()},
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = metadata.default_spec_id
    return file


def _to_record(table: Table, values: Mapping[str, Any]) -> Record:
    """Convert a partition's column values to the record that its files carry."""
    spec, schema = table.spec(), table.schema()
    fields = [
        PartitionFieldValue(
            field, _to_stored_value(values[schema.find_column_name(field.source_id) or ""])
        )
        for field in spec.fields
    ]
    return PartitionKey(fields, spec, schema).partition


def partition_values(table: Table, record: Record) -> tuple[Any, ...]:
    """Convert a partition's record to the values of its columns, as in `Partitions`."""
    from datetime import UTC, date, datetime, timedelta

    from pyiceberg.types import DateType, TimestampType, TimestamptzType

    found: list[Any] = []
    for position, field in enumerate(table.spec().partition_type(table.schema()).fields):
        value = record[position]
        if isinstance(field.field_type, DateType) and isinstance(value, int):
            value = date(1970, 1, 1) + timedelta(days=value)
        elif isinstance(field.field_type, TimestampType | TimestamptzType) and value is not None:
            zone = UTC if isinstance(field.field_type, TimestamptzType) else None
            value = datetime(1970, 1, 1, tzinfo=zone) + timedelta(microseconds=value)
        found.append(value)
    return tuple(found)


def _to_stored_value(value: Any) -> Any:
    """Convert a date to its day number: PyIceberg accepts a date only for a date column."""
    from datetime import date, datetime

    is_day = isinstance(value, date) and not isinstance(value, datetime)
    return (value - date(1970, 1, 1)).days if is_day else value


def _outside_error(table: Table, file: DataFile) -> CheckFailed:
    name = ".".join(table.name())
    path = table.spec().partition_to_path(file.partition, table.schema())
    values = dict(part.split("=", 1) for part in path.split("/"))
    shown = json.dumps(values, separators=(",", ":"))
    return CheckFailed(
        f"{name}: a row lies outside the partitions that were computed: {shown}",
        "Nothing was written.",
        table=name,
    )
