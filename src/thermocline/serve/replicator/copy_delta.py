"""The difference between two snapshots of a table, as rows and deletes for a node's copy.

A node stores each row with the number of its data file and its position there, so that a row can be
deleted without a key. Files are read one by one and rows are returned in batches, whatever the size
of the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from thermocline.lake import filediff, read_schema
from thermocline.lake.data_file_reader import DataFileReader, deleted_positions
from thermocline.serve.replicator.catalog_poller import PolledTable, file_times
from thermocline.serve.replicator.retry import retry_reads

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from thermocline.lake.data_file_reader import Part, Positions
    from thermocline.lake.filediff import ChangedFile

BATCH_ROWS = 64 * 1024
_NONE = np.zeros(0, dtype=np.int64)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
POSITIONS = pa.schema([pa.field("__file", pa.int32()), pa.field("__pos", pa.int64())])


class FileNumbers:
    """The numbers that a node's copy uses for data files.

    A delta is applied here once the node has applied it.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, tuple[int, int | None]] = {}
        """By path: the number, and the last time in the file where that is known."""
        self._since = 0
        self.next = 1

    def __contains__(self, path: str) -> bool:
        return path in self._numbers

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, path: str) -> int:
        return self._numbers[path][0]

    def apply(self, found: CopyDelta) -> None:
        """Remove the files that left and add those that came."""
        for path in found.removed:
            del self._numbers[path]
        for path, number in found.added.items():
            self._numbers[path] = number, found.last_times[path]
            self.next = max(self.next, number + 1)
        if found.since > self._since:
            # The node drops all older rows: files with only such rows need no number.
            self._since = found.since
            self._numbers = {
                path: each
                for path, each in self._numbers.items()
                if each[1] is None or each[1] >= found.since
            }


@dataclass(frozen=True)
class CopyDelta:
    """What a copy needs to get from one snapshot to another.

    `removed` are files that left and `removed_numbers` their numbers, `deleted_rows` the positions
    of deleted rows. `added` are new files with their numbers, and `last_times` the last time in
    each. Its size follows the change, not the table.
    """

    removed: tuple[str, ...]
    removed_numbers: tuple[int, ...]
    deleted_rows: pa.Table
    added: Mapping[str, int]
    last_times: Mapping[str, int | None]
    since: int
    """The start of the window, in microseconds since 1970; 0: all rows."""
    _restored_numbers: Mapping[str, int]
    _added_files: tuple[tuple[DataFile, Positions], ...]
    _restored_rows: tuple[tuple[DataFile, Positions], ...]
    _reader: _FileRowReader

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield the new rows, in batches."""
        for file, deleted in self._added_files:
            yield from self._reader.read_live(file, deleted, self.added[file.file_path])
        for file, positions in self._restored_rows:
            yield from self._reader.read_at(file, positions, self._restored_numbers[file.file_path])

    @property
    def bytes(self) -> int:
        """How many bytes of files are read for them, at most."""
        return sum(
            file.file_size_in_bytes for file, _ in (*self._added_files, *self._restored_rows)
        )


def compute_delta(
    polled: PolledTable,
    start: int | None,
    since: datetime | None,
    files: FileNumbers,
) -> CopyDelta:
    """Return the delta from snapshot `start` (None: empty) to the polled one, of rows from `since`
    on.

    `files` are the file numbers of the copy. Any two snapshots of a table can be compared, so a
    copy also follows a rollback.
    """
    reader = _FileRowReader(polled, since)
    found = retry_reads(partial(filediff.compare, polled.table, start, polled.head.snapshot)).files
    removed = [c for c in found if c.end is None and c.file.file_path in files]
    added = [c for c in found if c.start is None and reader.includes(c.file)]
    added.sort(key=lambda c: file_times(c.file, polled.time_id)[0] or 0)  # nodes keep rows by time
    changed = [c for c in found if c.start is not None and c.end is not None]
    changed = [c for c in changed if c.file.file_path in files]
    numbers = {c.file.file_path: files.next + at for at, c in enumerate(added)}
    before = _read_deletes(polled, (c.start for c in changed))
    after = _read_deletes(polled, (c.end for c in [*added, *changed]))

    def position_changes(change: ChangedFile) -> tuple[Positions, Positions]:
        path = change.file.file_path
        old, new = before.get(path, _NONE), after.get(path, _NONE)
        return np.setdiff1d(new, old), np.setdiff1d(old, new)

    changes = [(change.file, *position_changes(change)) for change in changed]
    return CopyDelta(
        removed=tuple(c.file.file_path for c in removed),
        removed_numbers=tuple(files[c.file.file_path] for c in removed),
        deleted_rows=_to_positions(
            (files[f.file_path], deleted) for f, deleted, _ in changes if len(deleted)
        ),
        added=numbers,
        last_times={c.file.file_path: file_times(c.file, polled.time_id)[1] for c in added},
        since=reader.micros,
        _restored_numbers={
            f.file_path: files[f.file_path] for f, _, restored in changes if len(restored)
        },
        _added_files=tuple((c.file, after.get(c.file.file_path, _NONE)) for c in added),
        _restored_rows=tuple((file, restored) for file, _, restored in changes if len(restored)),
        _reader=reader,
    )


def _read_deletes(polled: PolledTable, files: Iterable[Any]) -> dict[str, Positions]:
    paths = [each for each in files if each]
    return retry_reads(lambda: deleted_positions(polled.table.io, paths)) if paths else {}


def _to_positions(of: Iterable[tuple[int, Positions]]) -> pa.Table:
    parts = [
        pa.Table.from_arrays(
            [pa.repeat(pa.scalar(number, pa.int32()), len(positions)), pa.array(positions)],
            schema=POSITIONS,
        )
        for number, positions in of
    ]
    return pa.concat_tables([POSITIONS.empty_table(), *parts])


class _FileRowReader:
    """Reads rows of one table's files, from a time on."""

    def __init__(self, polled: PolledTable, since: datetime | None) -> None:
        self._reader = DataFileReader(polled.table, read_schema.comparison_schema(polled.schema))
        self._time_id = polled.time_id
        self._time = polled.head.time
        self._since = since
        self.micros = 0 if since is None else (since - _EPOCH) // timedelta(microseconds=1)

    def includes(self, file: DataFile) -> bool:
        """Return whether a file can have rows from the time on."""
        _, high = file_times(file, self._time_id)
        return self._since is None or high is None or high >= self.micros

    def read_live(
        self, file: DataFile, deleted: Positions, number: int
    ) -> Iterator[pa.RecordBatch]:
        return self._batches(partial(self._reader.live_parts, file, deleted), number)

    def read_at(
        self, file: DataFile, positions: Positions, number: int
    ) -> Iterator[pa.RecordBatch]:
        return self._batches(partial(self._reader.parts_at, file, positions), number)

    def _batches(self, read: partial[Iterator[Part]], number: int) -> Iterator[pa.RecordBatch]:
        # Only the first read can miss the file: an open file stays readable.
        parts = retry_reads(lambda: _prefetch(read()))
        for positions, rows in parts:
            numbered = rows.append_column(
                POSITIONS.field("__file"), pa.repeat(pa.scalar(number, pa.int32()), len(rows))
            ).append_column(POSITIONS.field("__pos"), pa.array(positions, pa.int64()))
            yield from self._recent(numbered).to_batches(max_chunksize=BATCH_ROWS)

    def _recent(self, rows: pa.Table) -> pa.Table:
        if self._since is None or self._time is None:
            return rows
        column = rows[self._time]
        since = self._since
        zoned = pa.types.is_timestamp(column.type) and column.type.tz is not None
        limit = pa.scalar(since if zoned else since.replace(tzinfo=None), pa.timestamp("us"))
        return rows.filter(pc.greater_equal(column, limit.cast(column.type)))


def _prefetch(parts: Iterator[Part]) -> Iterator[Part]:
    """Read the first part now; return an iterator of all parts."""
    first = next(parts, None)
    return iter(()) if first is None else _chain(first, parts)


def _chain(first: Part, rest: Iterator[Part]) -> Iterator[Part]:
    yield first
    yield from rest
