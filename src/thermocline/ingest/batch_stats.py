"""Statistics of a batch's records: counted while writing, or derived from missing rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from thermocline.engine.spark import CATALOG
from thermocline.ingest.validation import (
    BAD,
    EVENT_TIME,
    FILE,
    HAS_DRIFT,
    PAYLOAD,
    POSITION,
    RAW,
    REASONS,
    UNKNOWN_FIELDS,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation

    from thermocline.ingest.batch import Batch
    from thermocline.lake import Draft, Lake


@dataclass(frozen=True)
class BatchStats:
    """Statistics of a batch's records. `bad_files` are the numbers of provenances with bad ones."""

    rows: int
    bad: int
    bad_files: frozenset[int]
    drifted: bool = False
    outside: int = 0
    bytes: int = 0
    oldest: datetime | None = None
    newest: datetime | None = None

    def plus(self, other: BatchStats) -> BatchStats:
        """Return the combined statistics."""
        times = [
            [it for it in each if it is not None]
            for each in ((self.oldest, other.oldest), (self.newest, other.newest))
        ]
        return BatchStats(
            self.rows + other.rows,
            self.bad + other.bad,
            self.bad_files | other.bad_files,
            drifted=self.drifted or other.drifted,
            outside=self.outside + other.outside,
            bytes=self.bytes + other.bytes,
            oldest=min(times[0], default=None),
            newest=max(times[1], default=None),
        )


def observe(batch: Batch, frame: DataFrame) -> tuple[Observation, DataFrame]:
    """Return an observation that counts the rows while they are written, and the observed frame.

    The columns that only bad rows need are dropped first, because Spark computes every column that
    an observation sees; bad rows are read again.
    """
    from pyspark.sql import Observation

    observation = Observation()
    return observation, frame.drop(RAW, REASONS, UNKNOWN_FIELDS).observe(
        observation, *_count_columns(batch)
    )


def from_counts(counts: Mapping[str, Any]) -> BatchStats:
    """Return the statistics from the counts of `observe`."""
    return BatchStats(
        counts["rows"], counts["bad"], frozenset(counts["bad_files"]),
        drifted=bool(counts["drifted"]),
        outside=counts.get("outside") or 0,
        bytes=counts.get("bytes") or 0,
        oldest=to_utc(counts.get("oldest")),
        newest=to_utc(counts.get("newest")),
    )  # fmt: skip


def from_missing(batch: Batch, draft: Draft, snapshot: int) -> BatchStats:
    """Return the statistics from the rows missing of provenances with a known number of records.

    This is cheaper than counting while writing: Spark then reads, validates and writes in one loop.
    """
    rows = sum(origin.records or 0 for origin in batch.origins)
    bad = rows - count_added_rows(draft.lake, batch.source.target, snapshot)
    if not bad:
        return BatchStats(rows, 0, frozenset())
    landed = _count_landed_by_file(draft, batch.source.target, snapshot)
    incomplete = (
        number
        for number, origin in enumerate(batch.origins)
        if landed.get(origin.name, 0) < (origin.records or 0)
    )
    return BatchStats(rows, bad, frozenset(incomplete))


def _count_landed_by_file(draft: Draft, table: str, snapshot: int) -> dict[str, int]:
    reader = draft.lake.spark.session.read.option("start-snapshot-id", str(draft.base(table)))
    added = reader.option("end-snapshot-id", str(snapshot)).table(f"{CATALOG}.{table}")
    return {row[0]: row[1] for row in added.groupBy("_source_file").count().collect()}


def count_added_rows(lake: Lake, table: str, snapshot: int) -> int:
    """How many rows a snapshot added to its table."""
    return lake.state(table).snapshot(snapshot).count("added-records")


def _count_columns(batch: Batch) -> list[Any]:
    from pyspark.sql import functions as F

    counted = [
        F.count(F.lit(1)).alias("rows"),
        F.count_if(F.expr(BAD)).alias("bad"),
        F.count_if(F.col(HAS_DRIFT)).alias("drifted"),
        F.collect_set(F.expr(f"case when {BAD} then {FILE} end")).alias("bad_files"),
    ]
    if batch.source.has_messages:
        micros = F.expr(f"unix_micros({EVENT_TIME})")
        counted += [
            F.min(micros).alias("oldest"),
            F.max(micros).alias("newest"),
            F.sum(F.octet_length(PAYLOAD)).alias("bytes"),
        ]
    if batch.position_ranges:
        starts, ends = (", ".join(f"{at}L" for at in side) for side in zip(*batch.position_ranges))
        inside = f"{POSITION} >= array({starts})[{FILE}] and {POSITION} < array({ends})[{FILE}]"
        counted.append(F.count_if(F.expr(f"not coalesce({inside}, false)")).alias("outside"))
    return counted


def to_utc(micros: float | None) -> datetime | None:
    """Return a time in microseconds since 1970 as a datetime; None if it is out of range.

    The writer of a message or a file sets its time, and may use another unit.
    """
    if micros is None:
        return None
    try:
        return datetime.fromtimestamp(micros / 1e6, UTC)
    except (OverflowError, ValueError, OSError):
        return None
