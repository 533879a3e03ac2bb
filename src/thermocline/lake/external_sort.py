"""Sort more rows than fit in memory: sorted runs on disk, then one merge.

The merge works on blocks, not on rows. A block of each run is in memory; what is not above the
smallest last row of the blocks is sorted together and returned. Blocks that begin above it are not
touched, so that runs which hardly overlap are merged in linear time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from thermocline.errors import Transient, first_line
from thermocline.lake.row_order import sort_indices

if TYPE_CHECKING:
    from thermocline.lake.row_order import RowOrder

DEFAULT_MEMORY = 512 << 20
_BLOCK_BYTES = 1 << 20
"""What is read from a run at once, at most."""
_PART_BYTES = 8 << 20


class ExternalSort:
    """Sorts rows with limited memory; runs are spilled to files of a folder.

    Sorting a run takes a copy of it, and merging three copies of the blocks in memory, so that
    each may have a quarter of `memory`.
    """

    def __init__(self, order: RowOrder, folder: Path, memory: int = DEFAULT_MEMORY) -> None:
        self.order = order
        self._folder = folder
        self._limit = max(1, memory // 4)
        self._block_bytes = max(1, min(_BLOCK_BYTES, self._limit // 8))
        self._buffered: list[pa.Table] = []
        self._bytes = 0
        self._spilled: list[Path] = []

    @property
    def spilled_runs(self) -> int:
        """How many runs have been written to disk."""
        return len(self._spilled)

    def add(self, rows: pa.Table) -> None:
        """Add rows, all of one schema."""
        if not rows.num_rows:
            return
        self._buffered.append(rows)
        self._bytes += rows.nbytes
        if self._bytes >= self._limit:
            self._spill()

    def sorted_parts(self, part_bytes: int = _PART_BYTES) -> Iterator[pa.Table]:
        """Yield all rows in order, in parts of at most about so many bytes. Call it once."""
        for rows in self._sort_all():
            part = max(1, rows.num_rows * min(part_bytes, _PART_BYTES) // max(1, rows.nbytes))
            for first in range(0, rows.num_rows, part):
                yield rows.slice(first, part)

    def _sort_all(self) -> Iterator[pa.Table]:
        if not self._spilled:
            if self._buffered:
                yield self._sort_buffer()
            return
        if self._buffered:
            self._spill()
        runs = [_SpilledRun(path) for path in self._spilled]
        try:
            wanted = max(self._block_bytes, self._limit // len(runs))
            yield from _merge(runs, self.order, wanted)
        finally:
            for run in runs:
                run.close()

    def _sort_buffer(self) -> pa.Table:
        rows = pa.concat_tables(self._buffered).combine_chunks()
        self._buffered, self._bytes = [], 0
        return rows.take(sort_indices(self.order.keys(rows)))

    def _spill(self) -> None:
        rows = self._sort_buffer()
        path = self._folder / f"run-{len(self._spilled)}.arrow"
        block_rows = max(1, rows.num_rows * self._block_bytes // max(1, rows.nbytes))
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._spilled.append(path)
        try:
            with (
                pa.OSFile(str(path), "wb") as sink,
                pa.ipc.new_file(sink, rows.schema, options=options) as writer,
            ):
                writer.write_table(rows, max_chunksize=block_rows)
        except OSError as error:
            raise Transient(
                f"Rows cannot be spilled to {self._folder} for sorting: {first_line(error)}.",
                "Free space there, or raise maintain.sort_memory.",
            ) from error


class _SpilledRun:
    """A sorted run on disk, of which some rows are in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._source = pa.OSFile(str(path))
        self._reader = pa.ipc.open_file(self._source)
        self._next = 0
        self.rows = self._reader.schema.empty_table()

    @property
    def is_read(self) -> bool:
        """Whether all rows that are left are in memory."""
        return bool(self._next >= self._reader.num_record_batches)

    def fill(self, wanted: int) -> None:
        """Read blocks until so many bytes are in memory, if less than half of them are."""
        if self.is_read or (self.rows.num_rows and self.rows.nbytes * 2 > wanted):
            return
        batches: list[pa.RecordBatch] = []
        size = self.rows.nbytes
        while not self.is_read and (size < wanted or not batches):
            batches.append(self._reader.get_batch(self._next))
            size += batches[-1].nbytes
            self._next += 1
        self.rows = pa.concat_tables([self.rows, pa.Table.from_batches(batches)])

    def drop(self, count: int) -> None:
        """Drop the first rows in memory."""
        self.rows = self.rows.slice(count)

    def close(self) -> None:
        """Close and remove the file."""
        self._source.close()
        self._path.unlink(missing_ok=True)


def _merge(runs: Sequence[_SpilledRun], order: RowOrder, block_bytes: int) -> Iterator[pa.Table]:
    while True:
        for run in runs:
            run.fill(block_bytes)
        left = [run for run in runs if run.rows.num_rows]
        if not left:
            return
        chosen, last = _choose(left, order)
        rows = pa.concat_tables([run.rows for run in chosen]).combine_chunks()
        indices = sort_indices(order.keys(rows)).to_numpy()
        ends = np.cumsum([run.rows.num_rows for run in chosen])
        if last is not None:
            bound = ends[chosen.index(last)] - 1
            indices = indices[: int(np.flatnonzero(indices == bound)[0]) + 1]
        counts = np.bincount(np.searchsorted(ends, indices, side="right"), minlength=len(chosen))
        yield rows.take(pa.array(indices))
        for run, count in zip(chosen, counts, strict=True):
            run.drop(int(count))


def _choose(
    runs: Sequence[_SpilledRun], order: RowOrder
) -> tuple[list[_SpilledRun], _SpilledRun | None]:
    """Return the runs to merge now, and the one up to whose last row in memory they are merged.

    Rows that are still on disk are not below the last row in memory of their run. Without a run
    that has rows on disk everything is merged.
    """
    partly = [run for run in runs if not run.is_read]
    if not partly:
        return list(runs), None
    heads = [run.rows.slice(0, 1) for run in runs]
    tails = [run.rows.slice(run.rows.num_rows - 1) for run in partly]
    ends = pa.concat_tables([*heads, *tails]).combine_chunks()
    in_order = sort_indices(order.keys(ends)).to_pylist()
    ranks = {index: rank for rank, index in enumerate(in_order)}
    bound, last = min((ranks[len(runs) + number], number) for number in range(len(partly)))
    return [run for number, run in enumerate(runs) if ranks[number] < bound], partly[last]
