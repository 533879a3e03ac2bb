"""Files that take the place of others: whole partitions, a whole table, or single rows."""

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
from thermocline.lake.filediff import FileChange as Difference
from thermocline.lake.filediff import files_at_paths, only_path, snapshot_of
from thermocline.lake.manifest_pruning import Manifests, is_live
from thermocline.lake.snapshot_producer import FileChange

Partitions = Sequence[Mapping[str, Any]]
"""Partitions by the values of the columns that they are cut by; of a day, the date."""

_DELETES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)
"""The columns of a position-delete file, with the ids that the specification gives them."""


class OlderPartitioning(Permanent):
    """Partitions cannot be replaced one by one: some files are cut in another way."""


def everything(table: Table, head: int, rows: Rows) -> FileChange:
    """The rows in the place of all there are at a snapshot."""
    return FileChange(write_files(table, rows), _files(table, _live(table, head)))


def partitions(table: Table, head: int, rows: Rows, wanted: Partitions | None) -> FileChange:
    """The rows in the place of these partitions, or of those that they lie in themselves.

    A row outside the partitions raises CheckFailed: it would be added beside others' rows.
    """
    added, named = of_partitions(table, rows, wanted)
    replaced = {file.partition for file in added} if named is None else named
    return FileChange(added, _of_today(table, head, replaced))


def of_partitions(
    table: Table, rows: Rows, wanted: Partitions | None
) -> tuple[list[DataFile], set[Record] | None]:
    """The rows as files, and the wanted partitions as files carry them; none lies outside."""
    added = write_files(table, rows)
    if wanted is None:
        return added, None
    named = {_record(table, values) for values in wanted}
    for file in added:
        if file.partition not in named:
            raise _outside(table, file)
    return added, named


def partitions_again(
    table: Table, start: int, end: int, onto: int
) -> tuple[FileChange, set[Record]]:
    """What became of partitions between two snapshots, as a change of a third one.

    The very files are used again. Partitions that are not the same in `onto` as in `start` either
    are left out of the change, and named.
    """
    changed = changed_partitions(table, start, end)
    moved = changed_partitions(table, start, onto)
    free = changed - moved
    return FileChange(_of_today(table, end, free), _of_today(table, onto, free)), changed & moved


def changed_partitions(table: Table, start: int, end: int) -> set[Record]:
    """The partitions that have other files in one snapshot than in another.

    Manifests that both snapshots have list the same files, so they are not opened.
    """
    before, after = (set(_manifests_of_today(table, snapshot)) for snapshot in (start, end))
    old, new = (
        {f.file_path: f for f in _files(table, m)} for m in (before - after, after - before)
    )
    both = {**old, **new}
    return {both[path].partition for path in old.keys() ^ new.keys()}


def standing_partitions(table: Table, snapshot: int) -> dict[Record, list[DataFile]]:
    """The partitions that have files, with these."""
    found: dict[Record, list[DataFile]] = defaultdict(list)
    for file in _of_today(table, snapshot):
        found[file.partition].append(file)
    return found


def _of_today(
    table: Table, snapshot: int, among: Collection[Record] | None = None
) -> list[DataFile]:
    """The files of a snapshot, or of some partitions of it; delete files are among them.

    None of the snapshot's files may be of an older partitioning. Manifests that cannot list a
    file of the partitions are not opened.
    """
    manifests: Iterable[ManifestFile] = _manifests_of_today(table, snapshot)
    if among is not None:
        judged = Manifests(table)
        manifests = [each for each in manifests if judged.may_hold(each, among)]
    files = _files(table, manifests)
    return [file for file in files if among is None or file.partition in among]


def _manifests_of_today(table: Table, snapshot: int) -> list[ManifestFile]:
    """The manifests that list live files of a snapshot; none may be of an older partitioning."""
    manifests = _live(table, snapshot)
    today = table.spec().spec_id
    # Counts may be missing: whether such a manifest lists anything is then looked up.
    if any(m.partition_spec_id != today and _files(table, [m]) for m in manifests):
        raise OlderPartitioning(
            f"{'.'.join(table.name())} has files of an older partitioning.",
            "Compute it anew: thermo run --full-refresh.",
        )
    return [m for m in manifests if m.partition_spec_id == today]


def files_at(table: Table, head: int, rows: Rows, paths: Collection[str]) -> FileChange:
    """The rows in the place of the data files at these paths. With no path they are added."""
    if not paths:
        return FileChange(write_files(table, rows), appends=True)
    leaving = _standing(table, head, paths)
    gone = [*(each.file for each in leaving), *_own_deletes(leaving)]
    return FileChange(write_files(table, rows), gone)


def rows_at(
    table: Table, head: int, rows: Rows, gone: Mapping[str, Positions], *, on_read: bool
) -> FileChange:
    """The rows added, and those at the positions in the files at these paths taken out.

    With `on_read` by delete files, which readers apply; otherwise by writing the files' other
    rows anew, with the added ones.
    """
    standing = _standing(table, head, gone)
    current = table.spec().spec_id
    marked = [each.file for each in standing if on_read and each.file.spec_id == current]
    rewritten = [each for each in standing if not on_read or each.file.spec_id != current]
    rest = _Rest(table, rewritten, gone)
    added = write_files(table, _chained(rest, rows))
    return FileChange(
        [*added, *_delete_files(table, marked, gone)],
        [*(each.file for each in rewritten), *_own_deletes(rewritten)],
    )


def _standing(table: Table, head: int, paths: Collection[str]) -> list[Difference]:
    """The data files at these paths, with their deletes; all of them must be there."""
    found = files_at_paths(table, head, paths)
    if len(found) < len(paths):
        raise Permanent(
            f"Files of {'.'.join(table.name())} that were read are not in it.",
            "This is a bug; please report it.",
        )
    return found


def _live(table: Table, snapshot: int) -> list[ManifestFile]:
    """The manifests of a snapshot that may list live files, delete files among them."""
    return [m for m in snapshot_of(table, snapshot).manifests(table.io) if is_live(m)]


def _files(table: Table, manifests: Iterable[ManifestFile]) -> list[DataFile]:
    """The live files that some manifests list."""
    return [
        entry.data_file
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io)
    ]


class _Rest:
    """The rows of files that stay, part by part, as often as they are asked for."""

    def __init__(
        self, table: Table, files: Sequence[Difference], gone: Mapping[str, Positions]
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


def _chained(first: Iterable[pa.Table], rows: Rows) -> Iterable[pa.Table]:
    class Both:
        def __iter__(self) -> Iterator[pa.Table]:
            yield from first
            yield from [rows] if isinstance(rows, pa.Table) else rows

    return Both()


def _own_deletes(files: Sequence[Difference]) -> list[DataFile]:
    """The delete files that speak of nothing but files which are written anew."""
    paths = {each.file.file_path for each in files}
    found = {delete for each in files for delete in each.end or ()}
    return [delete for delete in found if only_path(delete) in paths]


def _delete_files(
    table: Table, files: Sequence[DataFile], gone: Mapping[str, Positions]
) -> list[DataFile]:
    """One delete file for each partition: readers of a partition open one file more, not many."""
    groups: dict[Record, list[DataFile]] = defaultdict(list)
    for file in files:
        groups[file.partition].append(file)
    return [
        _delete_file(table, partition, {file.file_path: gone[file.file_path] for file in some})
        for partition, some in groups.items()
    ]


def _delete_file(table: Table, partition: Record, gone: Mapping[str, Positions]) -> DataFile:
    metadata = table.metadata
    places = load_location_provider(metadata.location, metadata.properties)
    output = table.io.new_output(places.new_data_location(f"deletes-{uuid4()}.parquet", None))
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


def _record(table: Table, values: Mapping[str, Any]) -> Record:
    """A partition's values as its files carry them."""
    spec, schema = table.spec(), table.schema()
    fields = [
        PartitionFieldValue(
            field, _physical(values[schema.find_column_name(field.source_id) or ""])
        )
        for field in spec.fields
    ]
    return PartitionKey(fields, spec, schema).partition


def values_of(table: Table, record: Record) -> tuple[Any, ...]:
    """A partition by the values of the columns that it is cut by, as `Partitions` has them."""
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


def _physical(value: Any) -> Any:
    """A day as its number: PyIceberg takes a date only where the column is one."""
    from datetime import date, datetime

    is_day = isinstance(value, date) and not isinstance(value, datetime)
    return (value - date(1970, 1, 1)).days if is_day else value


def _outside(table: Table, file: DataFile) -> CheckFailed:
    name = ".".join(table.name())
    path = table.spec().partition_to_path(file.partition, table.schema())
    values = dict(part.split("=", 1) for part in path.split("/"))
    shown = json.dumps(values, separators=(",", ":"))
    return CheckFailed(
        f"{name}: a row lies outside the partitions that were computed: {shown}",
        "Nothing was written.",
        table=name,
    )
