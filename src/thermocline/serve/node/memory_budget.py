"""The memory budget of copies, and when new rows are compressed.

DuckDB compresses a table in memory only at a checkpoint, to a fifth as a rule. A checkpoint that
runs out of memory ends the whole database, so it is made early, while there is far more room than
it needs, and never when memory is short.
"""

from __future__ import annotations

import duckdb

from thermocline import telemetry
from thermocline.serve.node.engine import is_fatal
from thermocline.serve.wire.jobs import WorkerError

COPIES_SHARE = 0.7
"""The share of DuckDB's memory that copies may take: queries need the rest."""
COMPACT_SHARE = 0.1
COMPACT_BYTES = 32 << 20
"""New rows are compressed from this share of the memory or this size on."""
CHECKPOINT_FACTOR = 3
CHECKPOINT_RESERVE = 16 << 20
"""A checkpoint needs up to this multiple of what it compresses, plus a reserve."""
ROW_GROUP = 122_880
"""Rows that DuckDB compresses together: the last, incomplete group is rewritten."""


class MemoryBudget:
    """How much of DuckDB's memory is used. Only the writing thread uses it."""

    def __init__(self, writer: duckdb.DuckDBPyConnection, limit: int) -> None:
        self._writer = writer
        self._limit = limit
        self._max_bytes = int(limit * COPIES_SHARE)
        self._uncompressed = 0
        self._largest_group = 0

    def used_bytes(self) -> int:
        """Return how much DuckDB uses in total, including running queries."""
        found = self._writer.execute("SELECT sum(memory_usage_bytes) FROM duckdb_memory()")
        return int((found.fetchone() or (0,))[0] or 0)

    def fits(self, more: int) -> bool:
        """Return whether so many bytes of rows can be added."""
        return self.used_bytes() + more <= self._max_bytes

    def require(self, more: int) -> None:
        """Raise WorkerError if so many bytes do not fit."""
        if not self.fits(more):
            raise WorkerError("memory", "The node has no memory left for this.",
                         "Hold fewer tables, or add memory.", most=self._max_bytes)  # fmt: skip

    def record_rows(self, rows: int, size: int) -> None:
        """Record added rows; compress them when there are many."""
        self._uncompressed += size
        self._largest_group = max(
            self._largest_group, size * ROW_GROUP // max(rows, 1) if rows else 0
        )
        if self._uncompressed > min(COMPACT_BYTES, self._limit * COMPACT_SHARE):
            self.compact()

    def compact(self) -> None:
        """Compress the copies, when there is memory for that. Queries continue meanwhile."""
        used = self.used_bytes()
        needed = (
            CHECKPOINT_FACTOR * (self._uncompressed + min(self._largest_group, used))
            + CHECKPOINT_RESERVE
        )
        if used + needed > self._limit:
            return
        try:
            self._writer.execute("CHECKPOINT")
            self._uncompressed = self._largest_group = 0
        except duckdb.TransactionException:
            return  # a query still reads a dropped copy; the next change retries
        except duckdb.Error as error:
            if is_fatal(error):
                raise
            telemetry.log("node", "not compressed", level="WARNING", error=str(error))
