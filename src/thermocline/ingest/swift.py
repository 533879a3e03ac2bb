"""The swift lane's way of a batch: records that were read in this process, and are all good.

It lands what Spark would land, in the same commit with the same bookmark, at the same points where
a process may be killed. Whoever reads the records (`kafka/swift`) gives all of them or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.ingest.judge import EVENT_TIME, FILE, MESSAGE, PAYLOAD, POSITION
from thermocline.ingest.tally import Tally

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.ingest.batch import Batch

REST = 64
"""For how many batches, at most, the lane is not tried after it was declined again and again."""


class Pace:
    """Whether the lane is worth a try: a batch that it declines was read for nothing."""

    def __init__(self) -> None:
        self._declined = 0
        self._left = 0

    def ready(self) -> bool:
        """Whether to try with this batch. Each call is one batch."""
        if self._left:
            self._left -= 1
            return False
        return True

    def declined(self) -> None:
        """A batch was not taken: one alone changes nothing, a row of them makes a longer rest."""
        self._declined += 1
        self._left = min(REST, (1 << self._declined) - 2)

    def took(self) -> None:
        """A batch was taken."""
        self._declined = 0


def bronze(batch: Batch, records: pa.Table, now: datetime) -> pa.Table:
    """Records (FILE, POSITION, MESSAGE's and the contract's columns) as rows of the target."""
    import pyarrow as pa
    from pyiceberg.io.pyarrow import schema_to_pyarrow

    from thermocline.lake.schema import iceberg_type

    count = records.num_rows
    names = pa.array([origin.name for origin in batch.origins], pa.string())
    filled = {
        "_source": pa.repeat(pa.scalar(batch.source.name), count),
        "_source_file": names.take(records.column(FILE).combine_chunks()),
        "_position": records.column(POSITION),
        "_ingested_at": pa.repeat(pa.scalar(now, pa.timestamp("us", "UTC")), count),
    }
    filled |= {name: records.column(held) for name, held in MESSAGE.items()}
    columns = {}
    for column in batch.contract.table_columns:
        if column.name == "_rescued":
            kind = schema_to_pyarrow(iceberg_type(column.type), include_field_ids=False)
            columns[column.name] = pa.nulls(count, kind)
        elif column.name in filled:
            columns[column.name] = filled[column.name]
        else:
            columns[column.name] = records.column(column.name)
    return pa.table(columns)


def tally_of(records: pa.Table, spans: Sequence[tuple[int, int]]) -> Tally:
    """What records are, counted exactly: those not in order, or outside their span, are outside."""
    import pyarrow.compute as pc

    times = pc.min_max(records.column(EVENT_TIME).cast("int64")).as_py()
    size = pc.sum(pc.binary_length(records.column(PAYLOAD))).as_py()
    return Tally(
        records.num_rows, 0, frozenset(),
        outside=_outside(records, spans),
        bytes=size or 0,
        oldest=_utc(times["min"]),
        newest=_utc(times["max"]),
    )  # fmt: skip


def _outside(records: pa.Table, spans: Sequence[tuple[int, int]]) -> int:
    import numpy as np

    files = records.column(FILE).to_numpy()
    positions = records.column(POSITION).to_numpy()
    bounds = np.asarray(spans, dtype=np.int64).reshape(-1, 2)
    inside = (positions >= bounds[files, 0]) & (positions < bounds[files, 1])
    again = (np.diff(files) == 0) & (np.diff(positions) <= 0)
    return int((~inside).sum() + again.sum() + (np.diff(files) < 0).sum())


def _utc(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)
