"""Whether a partitioning suits the data: warnings from the data's own statistics."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thermocline.contract.definition import PartitionField

# Below these a partitioning is small enough to do no harm, whatever its fields.
MIN_PARTITIONS = 100
MIN_TIME_PARTITIONS = 1_000
# A partition that holds fewer rows than this is mostly file overhead.
MIN_ROWS_PER_PARTITION = 1_000
# Planning reads one manifest entry a file; beyond this it is felt in every query.
MAX_PARTITIONS = 100_000

_COARSER_TRANSFORMS = {"hour": "day", "day": "month", "month": "year"}
_TIME_TRANSFORMS = frozenset({"year", "month", "day", "hour"})


@dataclass(frozen=True)
class FieldStatistics:
    """How many partitions one partition field makes alone: counted, or estimated as distinct
    values of its transform."""

    field: PartitionField
    partitions: int


@dataclass(frozen=True)
class CardinalityWarning:
    """One partition field that splits the data too finely, and what would suit it better."""

    field: PartitionField
    what: str
    hint: str

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}"


def find_warnings(
    rows: int, fields: Sequence[FieldStatistics], files: int | None = None
) -> tuple[CardinalityWarning, ...]:
    """Warnings about partition fields with so many values that partitions hold hardly any rows.

    `rows` and `files` are those of the whole table; files are told when known. A table without
    rows gives no warning: nothing is known yet.
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
    fewest = MIN_TIME_PARTITIONS if is_time else MIN_PARTITIONS
    return partitions >= fewest and rows / partitions < MIN_ROWS_PER_PARTITION


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
        return "leave the partition out and sort by the column"
    if field.transform == "truncate":
        return f"truncate further, or use bucket[{buckets}]"
    return f"use bucket[{buckets}], or sort by the column"
