"""Data files as tests name them, and their sums."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from thermocline.serve.file_sums import FileTimes, TableFileTotals, sum_files

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def file(
    bytes: int, rows: int, low: datetime | None = None, high: datetime | None = None, id: int = 0
) -> FileTimes:
    """A data file; times without a zone are in UTC."""
    return FileTimes(bytes, rows, micros(low), micros(high), id)


def micros(at: datetime | None) -> int | None:
    if at is None:
        return None
    utc = at.replace(tzinfo=UTC) if at.tzinfo is None else at
    return (utc - EPOCH) // timedelta(microseconds=1)


def sums(*files: FileTimes) -> TableFileTotals:
    """The sums of some files."""
    return sum_files(files)
