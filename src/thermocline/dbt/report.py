"""Report of a dbt run: landed tables, test results and lineage."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thermocline.check.gate import CheckReport
    from thermocline.lake import PublishResult


@dataclass(frozen=True)
class LandedTable:
    """Result for one table. `reads` maps the tables it was computed from to their snapshots."""

    table: str
    node: str
    materialized: str
    added: int
    removed: int
    snapshot: int
    changed: bool
    reads: Mapping[str, int]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**vars(self), "reads": dict(self.reads)}


@dataclass(frozen=True)
class DbtTestResult:
    """Result of one dbt test. `on` lists the tables it reads."""

    name: str
    status: str
    failures: int
    on: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {**vars(self), "on": list(self.on)}


@dataclass(frozen=True)
class DbtReport:
    """Result of one dbt command."""

    run: str
    command: str
    tables: tuple[LandedTable, ...]
    tests: tuple[DbtTestResult, ...]
    checks: tuple[CheckReport, ...]
    published: PublishResult | None
    seconds: float

    @property
    def lineage(self) -> list[tuple[str, str]]:
        """Table lineage as pairs (from, to)."""
        return [(source, landed.table) for landed in self.tables for source in landed.reads]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        published = self.published.tables if self.published else {}
        return {
            "run": self.run,
            "command": self.command,
            "tables": [table.as_dict() for table in self.tables],
            "tests": [test.as_dict() for test in self.tests],
            "checks": [check.as_dict() for check in self.checks],
            "lineage": [list(edge) for edge in self.lineage],
            "published": {table: after for table, (_, after) in published.items()},
            "seconds": round(self.seconds, 3),
        }
