"""Fetch the result of an engine within its limits, in types that all engines have.

DuckDB adds up integers in 128 bits, Spark and Trino in 64. So a HUGEINT is returned as a BIGINT,
and one out of that range fails the query, as in the other engines: the type of a column must not
depend on the engine, nor on the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.serve.wire.jobs import WorkerError, too_large, too_many_rows

BATCH_ROWS = 2048
"""How many rows are fetched before the size of the result is checked."""
WIDE_INTEGERS = frozenset({"HUGEINT", "UHUGEINT"})


def fetch_bounded(
    batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int, size: int
) -> pa.Table:
    """Return the result as a table. Raises WorkerError at the first batch that exceeds a limit."""
    batches_kept = []
    count = bytes_kept = 0
    for batch in batches:
        count += batch.num_rows
        bytes_kept += batch.nbytes
        if count > rows:
            raise too_many_rows(rows)
        if bytes_kept > size:
            raise too_large(size)
        batches_kept.append(batch)
    return pa.Table.from_batches(batches_kept, schema=schema)


def _has_infinite_times(column: pa.ChunkedArray) -> bool:
    """Return whether a time is one of the infinities at both ends of DuckDB's range."""
    data_type = column.type
    if not (pa.types.is_timestamp(data_type) or pa.types.is_date32(data_type)):
        return False
    number = pa.int32() if pa.types.is_date32(data_type) else pa.int64()
    ends = pc.min_max(column.cast(number))
    end = 2 ** (number.bit_width - 1) - 1
    return bool(ends["max"].as_py() == end or ends["min"].as_py() == -end)


def downcast_integers(table: pa.Table, description: Sequence[Sequence[Any]]) -> pa.Table:
    """Return DuckDB's rows with its widest integers as 64-bit ones. `description` is the cursor's.

    Raises WorkerError for values that no answer can hold: larger integers, and infinite times.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _has_infinite_times(column):
            raise WorkerError(
                "query",
                f"A time of {name[:60]} is infinite, which an answer cannot hold.",
                "Filter those rows out, or cast it to VARCHAR.",
            )
    for place, (name, data_type, *_) in enumerate(description):
        if str(data_type) not in WIDE_INTEGERS:
            continue
        try:
            column = table.column(place).cast(pa.int64())
        except pa.ArrowInvalid:
            raise WorkerError(
                "query",
                f"The integer {str(name)[:60]} is out of the range of a BIGINT.",
                "Cast the summed column to DECIMAL(38, 0).",
            ) from None
        table = table.set_column(place, table.schema.field(place).name, column)
    return table
