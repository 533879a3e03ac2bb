"""Rows of a table as a node keeps them: each with the number of its data file and its place there.

So a row can be taken away again without a key: by the file it came from, or by its place in it.
Files are read one by one and rows are given in batches, whatever the size of the table.
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

from thermocline.lake import filediff, readschema
from thermocline.lake.datafile import DataFileReader, deleted_positions
from thermocline.serve.keeper.heads import Sight, file_times
from thermocline.serve.keeper.patience import patiently

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile

    from thermocline.lake.datafile import Part, Positions
    from thermocline.lake.filediff import FileChange

BATCH_ROWS = 64 * 1024
_NONE = np.zeros(0, dtype=np.int64)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLACES = pa.schema([pa.field("__file", pa.int32()), pa.field("__pos", pa.int64())])


class Numbers:
    """The numbers by which a node knows the data files that its copy has rows of.

    A difference is taken in when the node has taken it: until then the numbers are those of before.
    """

    def __init__(self) -> None:
        self._of: dict[str, tuple[int, int | None]] = {}
        """By path: the number, and the last time in the file where that is known."""
        self._since = 0
        self.next = 1

    def __contains__(self, path: str) -> bool:
        return path in self._of

    def __len__(self) -> int:
        return len(self._of)

    def __getitem__(self, path: str) -> int:
        return self._of[path][0]

    def take(self, found: Difference) -> None:
        """Note the files that left and those that came."""
        for path in found.left:
            del self._of[path]
        for path, number in found.came.items():
            self._of[path] = number, found.last[path]
            self.next = max(self.next, number + 1)
        if found.since > self._since:
            # A node drops all rows from before; what is left of files without others is a number.
            self._since = found.since
            self._of = {
                path: each
                for path, each in self._of.items()
                if each[1] is None or each[1] >= found.since
            }


@dataclass(frozen=True)
class Difference:
    """What a copy needs to come from one snapshot to another.

    `left` are files that are no longer there and `gone` their numbers, `deleted` places of rows
    that left. `came` are new files with their numbers, and `last` the last time in each. All of it
    is as large as the change, whatever the table holds.
    """

    left: tuple[str, ...]
    gone: tuple[int, ...]
    deleted: pa.Table
    came: Mapping[str, int]
    last: Mapping[str, int | None]
    since: int
    """From which time on rows are held, in microseconds since 1970; 0: from the beginning."""
    _again_in: Mapping[str, int]
    _added: tuple[tuple[DataFile, Positions], ...]
    _again: tuple[tuple[DataFile, Positions], ...]
    _reader: _Rows

    def rows(self) -> Iterator[pa.RecordBatch]:
        """The rows that came, in batches."""
        for file, deleted in self._added:
            yield from self._reader.live(file, deleted, self.came[file.file_path])
        for file, positions in self._again:
            yield from self._reader.at(file, positions, self._again_in[file.file_path])

    @property
    def bytes(self) -> int:
        """How much is read to have them, at most."""
        return sum(file.file_size_in_bytes for file, _ in (*self._added, *self._again))


def difference(
    sight: Sight,
    start: int | None,
    since: datetime | None,
    files: Numbers,
) -> Difference:
    """From snapshot `start` (None: nothing) to the one in sight, of rows from `since` on.

    `files` are the numbers of the files that the copy has. Any two snapshots of a table can be
    compared, so a copy also follows a rollback.
    """
    reader = _Rows(sight, since)
    found = patiently(partial(filediff.compare, sight.table, start, sight.head.snapshot)).files
    left = [c for c in found if c.end is None and c.file.file_path in files]
    came = [c for c in found if c.start is None and reader.wants(c.file)]
    came.sort(key=lambda c: file_times(c.file, sight.time_id)[0] or 0)  # nodes keep rows by time
    touched = [c for c in found if c.start is not None and c.end is not None]
    touched = [c for c in touched if c.file.file_path in files]
    numbers = {c.file.file_path: files.next + at for at, c in enumerate(came)}
    before = _deletes(sight, (c.start for c in touched))
    after = _deletes(sight, (c.end for c in [*came, *touched]))

    def moved(change: FileChange) -> tuple[Positions, Positions]:
        path = change.file.file_path
        old, new = before.get(path, _NONE), after.get(path, _NONE)
        return np.setdiff1d(new, old), np.setdiff1d(old, new)

    moves = [(change.file, *moved(change)) for change in touched]
    return Difference(
        left=tuple(c.file.file_path for c in left),
        gone=tuple(files[c.file.file_path] for c in left),
        deleted=_places((files[f.file_path], newly) for f, newly, _ in moves if len(newly)),
        came=numbers,
        last={c.file.file_path: file_times(c.file, sight.time_id)[1] for c in came},
        since=reader.micros,
        _again_in={f.file_path: files[f.file_path] for f, _, again in moves if len(again)},
        _added=tuple((c.file, after.get(c.file.file_path, _NONE)) for c in came),
        _again=tuple((file, again) for file, _, again in moves if len(again)),
        _reader=reader,
    )


def _deletes(sight: Sight, files: Iterable[Any]) -> dict[str, Positions]:
    wanted = [each for each in files if each]
    return patiently(lambda: deleted_positions(sight.table.io, wanted)) if wanted else {}


def _places(of: Iterable[tuple[int, Positions]]) -> pa.Table:
    parts = [
        pa.Table.from_arrays(
            [pa.repeat(pa.scalar(number, pa.int32()), len(positions)), pa.array(positions)],
            schema=PLACES,
        )
        for number, positions in of
    ]
    return pa.concat_tables([PLACES.empty_table(), *parts])


class _Rows:
    """Reads files of one table, from a time on."""

    def __init__(self, sight: Sight, since: datetime | None) -> None:
        self._reader = DataFileReader(sight.table, readschema.side_by_side(sight.schema))
        self._time_id = sight.time_id
        self._time = sight.head.time
        self._since = since
        self.micros = 0 if since is None else (since - _EPOCH) // timedelta(microseconds=1)

    def wants(self, file: DataFile) -> bool:
        """Whether a file can have rows from the time on."""
        _, high = file_times(file, self._time_id)
        return self._since is None or high is None or high >= self.micros

    def live(self, file: DataFile, deleted: Positions, number: int) -> Iterator[pa.RecordBatch]:
        return self._batches(partial(self._reader.live_parts, file, deleted), number)

    def at(self, file: DataFile, positions: Positions, number: int) -> Iterator[pa.RecordBatch]:
        return self._batches(partial(self._reader.parts_at, file, positions), number)

    def _batches(self, read: partial[Iterator[Part]], number: int) -> Iterator[pa.RecordBatch]:
        # Only the first part can miss the file: once it is open, it stays.
        parts = patiently(lambda: _begun(read()))
        for positions, rows in parts:
            placed = rows.append_column(
                PLACES.field("__file"), pa.repeat(pa.scalar(number, pa.int32()), len(rows))
            ).append_column(PLACES.field("__pos"), pa.array(positions, pa.int64()))
            yield from self._recent(placed).to_batches(max_chunksize=BATCH_ROWS)

    def _recent(self, rows: pa.Table) -> pa.Table:
        if self._since is None or self._time is None:
            return rows
        column = rows[self._time]
        since = self._since
        zoned = pa.types.is_timestamp(column.type) and column.type.tz is not None
        limit = pa.scalar(since if zoned else since.replace(tzinfo=None), pa.timestamp("us"))
        return rows.filter(pc.greater_equal(column, limit.cast(column.type)))


def _begun(parts: Iterator[Part]) -> Iterator[Part]:
    """The same parts, the first of them read already."""
    first = next(parts, None)
    return iter(()) if first is None else _after(first, parts)


def _after(first: Part, rest: Iterator[Part]) -> Iterator[Part]:
    yield first
    yield from rest
