"""Compute the checksum of each snapshot: its number of rows and the sum of their hashes.

See `row_hash` for the sum. A data file is read once for each set of rows deleted from it, however
many snapshots contain it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.lake import filediff
from thermocline.lake.data_file_reader import NO_POSITIONS, Positions, deleted_positions
from thermocline.lake.row_hash import RowHasher, RowSum

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_BATCH_ROWS = 128 * 1024


class SnapshotChecksums:
    """Computes checksums of snapshots. Files at the same location count as equal."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, bytes], RowSum] = {}
        self._hasher = RowHasher()

    def compute(self, table: Table, resolve: Callable[[str], str]) -> Iterator[tuple[int, RowSum]]:
        """Yield the checksum of each snapshot; `resolve` returns the real location of a file."""
        deletes: dict[str, dict[str, Positions]] = {}
        for snapshot in table.metadata.snapshots:
            total = RowSum()
            for change in filediff.compare(table, None, snapshot.snapshot_id).files:
                for each in change.end or ():
                    if each.file_path not in deletes:
                        deletes[each.file_path] = deleted_positions(table.io, [frozenset([each])])
                path = change.file.file_path
                found = [
                    deletes[each.file_path].get(path, NO_POSITIONS) for each in change.end or ()
                ]
                gone = np.unique(np.concatenate(found)) if found else NO_POSITIONS
                total += self._file(table.io, change.file, gone, resolve(path))
            yield snapshot.snapshot_id, total

    def _file(self, io: FileIO, file: DataFile, gone: Positions, location: str) -> RowSum:
        key = location, blake2b(gone.tobytes(), digest_size=16).digest()
        if key not in self._sums:
            sums = (self._hasher.sum_of(rows) for rows in _read_live_rows(io, file, gone))
            self._sums[key] = sum(sums, RowSum())
        return self._sums[key]


def _read_live_rows(io: FileIO, file: DataFile, gone: Positions) -> Iterator[pa.Table]:
    """Yield the rows of a file with its own columns, without the deleted positions."""
    with io.new_input(file.file_path).open() as stream:
        first = 0
        parquet = pq.ParquetFile(stream, pre_buffer=True, coerce_int96_timestamp_unit="us")
        for batch in parquet.iter_batches(_BATCH_ROWS):
            low, high = np.searchsorted(gone, (first, first + batch.num_rows))
            rows = pa.Table.from_batches([batch])
            if low < high:
                kept = np.delete(np.arange(batch.num_rows), gone[low:high] - first)
                rows = rows.take(pa.array(kept))
            yield rows
            first += batch.num_rows
