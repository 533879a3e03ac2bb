"""An order-independent fingerprint of rows: their number and a sum of hashes.

The sum is over 128-bit hashes of whole rows: sums of columns miss values that were swapped between
rows, and exclusive-or cancels pairs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from thermocline.engine.duck_types import quote_identifier

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa


@dataclass(frozen=True)
class RowSum:
    """A number of rows, and the sum of their hashes."""

    rows: int = 0
    hashes: int = 0

    def __add__(self, other: RowSum) -> RowSum:
        return RowSum(self.rows + other.rows, self.hashes + other.hashes)


class RowHasher:
    """Computes sums of rows. Columns count by position and value, not by name."""

    def sum_of(self, rows: pa.Table) -> RowSum:
        """Return the number of rows and the sum of their hashes."""
        if not rows.num_columns or not rows.num_rows:
            return RowSum(rows.num_rows)
        texts = (f"CAST({quote_identifier(name)} AS VARCHAR)" for name in rows.column_names)
        # Each value after its length, and a null as a length of -1: no two rows have one text.
        row = ", ".join(f"coalesce(strlen({it}), -1), ':', {it}" for it in texts)
        self._duck.register("rows", rows)
        found = self._duck.execute(
            "SELECT count(*), sum((hash & 18446744073709551615)::HUGEINT),"
            " sum((hash >> 64)::HUGEINT)"
            f" FROM (SELECT md5_number(concat({row})) AS hash FROM rows)"
        ).fetchone()
        self._duck.unregister("rows")
        assert found is not None
        count, low, high = found
        return RowSum(count, int(low or 0) + (int(high or 0) << 64))

    @cached_property
    def _duck(self) -> duckdb.DuckDBPyConnection:
        import duckdb

        connection = duckdb.connect()
        connection.execute("SET TimeZone = 'UTC'")
        return connection
