"""The Arrow lane: the fast path of a batch, which reads and writes records without Spark.

It lands exactly what Spark would land, in the same commit with the same bookmark and the same crash
points. Its readers (`kafka.arrow_reader`, `arrow.reader`) return the records that are certainly
valid. Spark validates the few others if needed, and the whole batch if a reader raises NeedsSpark.
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
"""The most batches that skip the Arrow lane after repeated declines."""


class FastPathBackoff:
    """Decides whether to try the Arrow lane: reading a declined batch is wasted work."""

    def __init__(self) -> None:
        self._declined = 0
        self._skips_left = 0

    def is_ready(self) -> bool:
        """Whether to try the next batch. Call once per batch."""
        if self._skips_left:
            self._skips_left -= 1
            return False
        return True

    def record_declined(self) -> None:
        """Record a declined batch. After the first one, each further one doubles the pause."""
        self._declined += 1
        self._skips_left = min(MAX_SKIPPED, (1 << self._declined) - 2)

    def record_success(self) -> None:
        """Record a batch that landed through the Arrow lane."""
        self._declined = 0


class FastRead(Protocol):
    """One read of a batch's records in this process. Every method may raise NeedsSpark."""

    def read_unambiguous(self) -> Iterator[pa.Table]:
        """Yield the records that are certainly valid, in the form that `to_bronze` reads."""

    def validate_ambiguous(self) -> pa.Table | None:
        """Return the other records, validated. Call it after `read_unambiguous` is exhausted."""


@dataclass(frozen=True)
class SingleTableRead:
    """Records that were read as one table and are all valid."""

    records: pa.Table

    def read_unambiguous(self) -> Iterator[pa.Table]:
        """Yield the table."""
        yield self.records

    def validate_ambiguous(self) -> pa.Table | None:
        """Return None: no record is ambiguous."""
        return None


def to_bronze(batch: Batch, records: pa.Table, now: datetime) -> pa.Table:
    """Convert records to rows of the target.

    Records have FILE, POSITION, the columns of MESSAGE and of the contract, and optionally RESCUED.
    """
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
        filled |= {name: records.column(column_name) for name, column_name in MESSAGE.items()}
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
    """Convert bad validated records and unreadable inputs to rows of the quarantine."""
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
    identities = zip(columns["file_sha256"], columns["position"], strict=True)
    columns["id"] = [sha256(f"{content}:{at}".encode()).hexdigest() for content, at in identities]
    for name, value in {
        "source": batch.source.name, "target": batch.source.target, "run": batch.run,
        "quarantined_at": now, "replayed_at": None, "replayed_run": None,
    }.items():  # fmt: skip
        columns[name] = [value] * len(rows)
    types = {
        "position": pa.int64(), "reasons": pa.list_(pa.string()),
        "quarantined_at": pa.timestamp("us", "UTC"), "replayed_at": pa.timestamp("us", "UTC"),
    }  # fmt: skip
    return pa.table({n: pa.array(v, types.get(n, pa.string())) for n, v in columns.items()})


def _quarantine_layout(origin: Provenance, reasons: Sequence[str]) -> str | None:
    """Return a record's layout; None for one that was cut or could not be decoded."""
    return None if reasons[0] in {TOO_LONG, NOT_TEXT} else origin.layout.to_json()


def split_bad_and_good(validated: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Split validated records into bad and good ones."""
    import pyarrow.compute as pc

    bad = validated.column(BAD)
    return validated.filter(bad), validated.filter(pc.invert(bad))


def count_messages(records: pa.Table, position_ranges: Sequence[tuple[int, int]]) -> BatchStats:
    """Count messages; one that is out of order or out of its range counts as outside."""
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
