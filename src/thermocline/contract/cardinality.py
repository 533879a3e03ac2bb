"""Warn about partitioning that is too fine for the data, from the data's statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thermocline.contract.definition import PartitionField

# With fewer partitions than this, any partitioning is harmless.
MIN_PARTITIONS = 100
MIN_TIME_PARTITIONS = 1_000
# A partition that holds fewer rows than this is mostly file overhead.
MIN_ROWS_PER_PARTITION = 1_000
# Planning reads one manifest entry per file; with more partitions, every query slows down.
MAX_PARTITIONS = 100_000

_COARSER_TRANSFORMS = {"hour": "day", "day": "month", "month": "year"}
_TIME_TRANSFORMS = frozenset({"year", "month", "day", "hour"})


@dataclass(frozen=True)
class FieldStatistics:
    """Number of partitions of a single partition field: counted, or estimated from the distinct
    values of its transform."""

    field: PartitionField
    partitions: int


@dataclass(frozen=True)
class CardinalityWarning:
    """A partition field that splits the data too finely, and a better one."""

    field: PartitionField
    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}"


def find_warnings(
    rows: int, fields: Sequence[FieldStatistics], files: int | None = None
) -> tuple[CardinalityWarning, ...]:
    """Return warnings about partition fields whose partitions have too few rows.

    `rows` and `files` count the whole table; the number of files is reported if known. An empty
    table gets no warning.
    """
    if rows <= 0:
        return ()
    return tuple(
        _build_warning(rows, files, field) for field in fields if _is_too_fine(rows, field)
    )


def _is_too_fine(rows: int, statistics: FieldStatistics) -> bool:
    partitions = statistics.partitions
    if partitions >= MAX_PARTITIONS:
        return True
    is_time = statistics.field.transform in _TIME_TRANSFORMS
    minimum = MIN_TIME_PARTITIONS if is_time else MIN_PARTITIONS
    return partitions >= minimum and rows / partitions < MIN_ROWS_PER_PARTITION


def _build_warning(rows: int, files: int | None, statistics: FieldStatistics) -> CardinalityWarning:
    field, partitions = statistics.field, statistics.partitions
    each = max(1, round(rows / partitions))
    what = (
        f"{field.transform} partition on {field.column} makes ~{partitions:,} partitions "
        f"of ~{each:,} row{'s' if each != 1 else ''}"
    )
    if files is not None and files > partitions:
        what += f" in {files:,} files"
    return CardinalityWarning(field, what, _suggest_transform(rows, field))


def _suggest_transform(rows: int, field: PartitionField) -> str:
    if field.transform in _COARSER_TRANSFORMS:
        return f"partition by {_COARSER_TRANSFORMS[field.transform]}({field.column})"
    buckets = 1
    while buckets < 1024 and rows / (buckets * 2) >= MIN_ROWS_PER_PARTITION * 100:
        buckets *= 2
    if buckets == 1:
        return "remove the partition field and sort by the column"
    if field.transform == "truncate":
        return f"truncate further, or use bucket[{buckets}]"
    return f"use bucket[{buckets}], or sort by the column"
