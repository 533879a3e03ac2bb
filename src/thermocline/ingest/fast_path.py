"""The swift lane's way of a batch: records that are read in this process, around Spark.

It lands what Spark would land, in the same commit with the same bookmark, at the same points where
a process may be killed. Whoever reads the records (`kafka/swift`, `arrow`) gives those that are
good for certain. Spark judges the few others, and all of them where the lane declines.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.ingest.batch_stats import BatchStats, to_utc
from thermocline.ingest.lines import NOT_TEXT, TOO_LONG
from thermocline.ingest.validation import (
    BAD,
    EVENT_TIME,
    FILE,
    MESSAGE,
    PAYLOAD,
    POSITION,
    RAW,
    REASONS,
    RESCUED,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.ingest.batch import Batch, Provenance

MAX_SKIPPED = 64
"""For how many batches, at most, the lane is not tried after it was declined again and again."""


class FastPathBackoff:
    """Whether the lane is worth a try: a batch that it declines was read for nothing."""

    def __init__(self) -> None:
        self._declined = 0
        self._left = 0

    def is_ready(self) -> bool:
        """Whether to try with this batch. Each call is one batch."""
        if self._left:
            self._left -= 1
            return False
        return True

    def record_declined(self) -> None:
        """A batch was not taken: one alone changes nothing, a row of them makes a longer rest."""
        self._declined += 1
        self._left = min(MAX_SKIPPED, (1 << self._declined) - 2)

    def record_success(self) -> None:
        """A batch was taken."""
        self._declined = 0


class FastRead(Protocol):
    """The records of a batch, read in this process once. Any of it may raise `plain.Declined`."""

    def pieces(self) -> Iterator[pa.Table]:
        """Records that are good for certain, as `bronze` takes them."""

    def judged(self) -> pa.Table | None:
        """The other records, in the form of `judge`, once the pieces have been read."""


@dataclass(frozen=True)
class SingleTableRead:
    """Records that were read at once and are all good."""

    records: pa.Table

    def pieces(self) -> Iterator[pa.Table]:
        """The one piece."""
        yield self.records

    def judged(self) -> pa.Table | None:
        """None are left."""
        return None


def to_bronze(batch: Batch, records: pa.Table, now: datetime) -> pa.Table:
    """Records (FILE, POSITION, MESSAGE's and the contract's columns, RESCUED where there is any)
    as rows of the target."""
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
    if batch.source.has_messages:
        filled |= {name: records.column(held) for name, held in MESSAGE.items()}
    columns = {}
    for column in batch.contract.table_columns:
        if column.name == RESCUED and RESCUED not in records.column_names:
            kind = schema_to_pyarrow(iceberg_type(column.type), include_field_ids=False)
            columns[column.name] = pa.nulls(count, kind)
        elif column.name in filled:
            columns[column.name] = filled[column.name]
        else:
            columns[column.name] = records.column(column.name)
    return pa.table(columns)


def to_quarantine(batch: Batch, bad: pa.Table | None, now: datetime) -> pa.Table:
    """Bad records, in the form of `judge`, and what is damaged, as rows of the quarantine."""
    import pyarrow as pa

    rows: list[tuple[Any, ...]] = [
        (each.name, each.identity, 0, [each.flaw], None, None) for each in batch.unreadable
    ]
    if bad is not None:
        for row in bad.select([FILE, POSITION, REASONS, RAW]).to_pylist():
            origin = batch.origins[row[FILE]]
            rows.append((origin.name, origin.identity, row[POSITION], row[REASONS], row[RAW],
                         _quarantine_layout(origin, row[REASONS])))  # fmt: skip
    names = ("file", "file_sha256", "position", "reasons", "raw", "layout")
    columns: dict[str, Any] = dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))
    marks = zip(columns["file_sha256"], columns["position"], strict=True)
    columns["id"] = [sha256(f"{content}:{at}".encode()).hexdigest() for content, at in marks]
    for name, said in {
        "source": batch.source.name, "target": batch.source.target, "run": batch.run,
        "quarantined_at": now, "replayed_at": None, "replayed_run": None,
    }.items():  # fmt: skip
        columns[name] = [said] * len(rows)
    kinds = {
        "position": pa.int64(), "reasons": pa.list_(pa.string()),
        "quarantined_at": pa.timestamp("us", "UTC"), "replayed_at": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    return pa.table({n: pa.array(v, kinds.get(n, pa.string())) for n, v in columns.items()})


def _quarantine_layout(origin: Provenance, reasons: Sequence[str]) -> str | None:
    """How a record is written; of one that was cut or could not be decoded it says nothing."""
    return None if reasons[0] in {TOO_LONG, NOT_TEXT} else origin.layout.to_json()


def split_bad_and_good(judged: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Records in the form of `judge`, parted."""
    import pyarrow.compute as pc

    bad = judged.column(BAD)
    return judged.filter(bad), judged.filter(pc.invert(bad))


def count_messages(records: pa.Table, position_ranges: Sequence[tuple[int, int]]) -> BatchStats:
    """What messages are, counted exactly: one not in order, or not in its span, is outside."""
    import pyarrow.compute as pc

    times = pc.min_max(records.column(EVENT_TIME).cast("int64")).as_py()
    size = pc.sum(pc.binary_length(records.column(PAYLOAD))).as_py()
    return BatchStats(
        records.num_rows, 0, frozenset(),
        outside=_count_outside(records, position_ranges),
        bytes=size or 0,
        oldest=to_utc(times["min"]),
        newest=to_utc(times["max"]),
    )  # fmt: skip


def _count_outside(records: pa.Table, position_ranges: Sequence[tuple[int, int]]) -> int:
    import numpy as np

    files = records.column(FILE).to_numpy()
    positions = records.column(POSITION).to_numpy()
    bounds = np.asarray(position_ranges, dtype=np.int64).reshape(-1, 2)
    inside = (positions >= bounds[files, 0]) & (positions < bounds[files, 1])
    again = (np.diff(files) == 0) & (np.diff(positions) <= 0)
    return int((~inside).sum() + again.sum() + (np.diff(files) < 0).sum())
