"""A result as it comes from an engine: no more of it than may be given, in types all engines have.

DuckDB adds up integers in 128 bits, Spark and Trino in 64. So a HUGEINT is answered as a BIGINT,
and one that has no room there fails the query, as it does elsewhere: the type of a column must not
depend on who answered, nor on the values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.serve.wire.jobs import Failed, too_large, too_many_rows

BATCH_ROWS = 2048
"""How much of a result is fetched before its size is looked at."""
WIDE = frozenset({"HUGEINT", "UHUGEINT"})


def fetched(batches: Iterable[pa.RecordBatch], schema: pa.Schema, rows: int, size: int) -> pa.Table:
    """The result as a table. Raises Failed at the first batch with which it is too large."""
    kept = []
    count = held = 0
    for batch in batches:
        count += batch.num_rows
        held += batch.nbytes
        if count > rows:
            raise too_many_rows(rows)
        if held > size:
            raise too_large(size)
        kept.append(batch)
    return pa.Table.from_batches(kept, schema=schema)


def _has_infinite_times(column: pa.ChunkedArray) -> bool:
    """Whether a time is one of those that DuckDB has at both ends of its range."""
    kind = column.type
    if not (pa.types.is_timestamp(kind) or pa.types.is_date32(kind)):
        return False
    number = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    ends = pc.min_max(column.cast(number))
    end = 2 ** (number.bit_width - 1) - 1
    return bool(ends["max"].as_py() == end or ends["min"].as_py() == -end)


def narrowed(table: pa.Table, description: Sequence[Sequence[Any]]) -> pa.Table:
    """DuckDB's rows with its widest integers as 64-bit ones. `description` is the cursor's.

    Raises Failed for what no answer can hold: integers beyond that, and infinite times.
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        if _has_infinite_times(column):
            raise Failed(
                "query",
                f"A time of {name[:60]} is infinite, which an answer cannot hold.",
                "Leave those rows out, or cast it to VARCHAR.",
            )
    for place, (name, kind, *_) in enumerate(description):
        if str(kind) not in WIDE:
            continue
        try:
            column = table.column(place).cast(pa.int64())
        except pa.ArrowInvalid:
            raise Failed(
                "query",
                f"The integer {str(name)[:60]} is out of the range of a BIGINT.",
                "Cast what is added up to DECIMAL(38, 0).",
            ) from None
        table = table.set_column(place, table.schema.field(place).name, column)
    return table
