"""What a table's snapshots hold: how many rows, and a sum over the hashes of whole rows.

The sum is over 128-bit hashes: sums of columns miss values that were swapped between rows, and
exclusive-or cancels pairs. A data file is read once for each set of rows deleted from it, however
many snapshots it is in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from thermocline.engine.duck_types import quoted
from thermocline.lake import filediff
from thermocline.lake.datafile import Positions, deleted_positions

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

_BATCH_ROWS = 128 * 1024
_NONE: Positions = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Sum:
    """Some rows: how many, and the sum of their hashes."""

    rows: int = 0
    hashes: int = 0

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.rows + other.rows, self.hashes + other.hashes)


class Contents:
    """Counts tables. Files that lie at the same place are taken for the same."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, bytes], Sum] = {}

    def of(self, table: Table, place: Callable[[str], str]) -> Iterator[tuple[int, Sum]]:
        """What each snapshot of a table holds; `place` says where a location really is."""
        deletes: dict[str, dict[str, Positions]] = {}
        for snapshot in table.metadata.snapshots:
            total = Sum()
            for change in filediff.compare(table, None, snapshot.snapshot_id).files:
                for each in change.end or ():
                    if each.file_path not in deletes:
                        deletes[each.file_path] = deleted_positions(table.io, [frozenset([each])])
                path = change.file.file_path
                found = [deletes[each.file_path].get(path, _NONE) for each in change.end or ()]
                gone = np.unique(np.concatenate(found)) if found else _NONE
                total += self._file(table.io, change.file, gone, place(path))
            yield snapshot.snapshot_id, total

    def _file(self, io: FileIO, file: DataFile, gone: Positions, place: str) -> Sum:
        key = place, blake2b(gone.tobytes(), digest_size=16).digest()
        if key not in self._sums:
            self._sums[key] = sum((self._hashed(rows) for rows in _live(io, file, gone)), Sum())
        return self._sums[key]

    def _hashed(self, rows: pa.Table) -> Sum:
        if not rows.num_columns:
            return Sum(rows.num_rows)
        texts = (f"CAST({quoted(name)} AS VARCHAR)" for name in rows.column_names)
        row = " || ".join(f"coalesce(strlen({it}) || ':' || {it}, '-')" for it in texts)
        self._duck.register("rows", rows)
        found = self._duck.execute(
            "SELECT count(*), sum(md5_number_lower(row)::HUGEINT),"
            " sum(md5_number_upper(row)::HUGEINT)"
            f" FROM (SELECT {row} AS row FROM rows)"
        ).fetchone()
        self._duck.unregister("rows")
        assert found is not None
        count, low, high = found
        return Sum(count, int(low or 0) + (int(high or 0) << 64))

    @cached_property
    def _duck(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        return connection


def _live(io: FileIO, file: DataFile, gone: Positions) -> Iterator[pa.Table]:
    """The rows of a file, with the columns that it has, without those at some positions."""
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
