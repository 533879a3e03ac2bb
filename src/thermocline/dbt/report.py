"""What a dbt run did to the lake: what landed, what was tested, and what was made from what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from thermocline.check.gate import Report as CheckReport
    from thermocline.lake import Published


@dataclass(frozen=True)
class Landed:
    """What became of one table. `reads` are the tables it was made from, at their snapshots."""

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
        """For programs."""
        return {**vars(self), "reads": dict(self.reads)}


@dataclass(frozen=True)
class Tested:
    """What one of dbt's tests found. `on` are the tables it looks at."""

    name: str
    status: str
    failures: int
    on: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {**vars(self), "on": list(self.on)}


@dataclass(frozen=True)
class Report:
    """What one command of dbt did."""

    run: str
    command: str
    tables: tuple[Landed, ...]
    tests: tuple[Tested, ...]
    checks: tuple[CheckReport, ...]
    published: Published | None
    seconds: float

    @property
    def lineage(self) -> list[tuple[str, str]]:
        """Which table was made from which, as pairs (from, to)."""
        return [(source, landed.table) for landed in self.tables for source in landed.reads]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
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
