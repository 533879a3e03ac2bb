"""What reads of a table weigh in a plan, from the project's log of reads."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from thermocline.lake.read_log import ReadRate, read_rates

LEAST_SCANS = 0.1
"""Scans per day that every table counts with: engines that are not logged may read it."""
UNKNOWN_LOOKUPS = 1.0
"""Lookups per day by the order of a table when no reads have been recorded at all."""


@dataclass(frozen=True)
class ReadWeights:
    """Reads per day by table; None if none have been recorded in the project."""

    rates: Mapping[str, ReadRate] | None = None

    @classmethod
    def of_project(cls, project: Path) -> ReadWeights:
        """Return the weights of a project."""
        return cls(read_rates(project))

    def rate(self, table: str) -> ReadRate | None:
        """Return the recorded reads of a table; None if there is no log."""
        return None if self.rates is None else self.rates.get(table, ReadRate())

    def scans(self, table: str) -> float:
        """Return the scans per day that a table counts with."""
        rate = self.rate(table)
        return LEAST_SCANS if rate is None else max(LEAST_SCANS, rate.scans)

    def lookups(self, table: str, columns: Iterable[str]) -> float:
        """Return the scans per day that filter by one of the columns, as they count."""
        rate = self.rate(table)
        if rate is None:
            return UNKNOWN_LOOKUPS
        found = sum(rate.columns.get(name, 0.0) for name in columns)
        return max(LEAST_SCANS, min(rate.scans, found))


def describe_reads(scans: float | None) -> str:
    """Return how often a table is read, for people; empty if no reads have been recorded."""
    if scans is None:
        return ""
    if scans < LEAST_SCANS:
        return "not read lately"
    return f"read {scans:,.0f} times a day" if scans >= 1.5 else "read about once a day"
