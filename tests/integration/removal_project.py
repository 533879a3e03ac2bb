"""A project with one table, files in its folder that nothing references, and a shifted clock."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.conftest import SETTINGS, clean_environment

from thermocline.config import load_settings
from thermocline.contract import Column, Contract, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.metadata import TableState
from thermocline.lake.metadata_files import local_path
from thermocline.lake.naming import new_run_id
from thermocline.maintain.maintenance_plan import MaintenancePlan
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.removal import RemoveTask
from thermocline.maintain.service import MaintenanceReport, MaintenanceService

TABLE = "bronze.events"
DAY = 86_400.0
EVENTS = Contract(
    TABLE,
    (Column("id", Primitive("long"), True), Column("kind", Primitive("string"))),
    write=WriteMode.APPEND,
)


class ShiftedClock:
    """The process's clock, which a test moves. Files keep their real times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        real = time.time_ns
        monkeypatch.setattr(time, "time_ns", lambda: real() + int(self.seconds * 1e9))

    def wait(self, days: float) -> None:
        """Move the clock forward, or back."""
        self.seconds += days * DAY


@dataclass
class RemovalProject:
    """A lake with one table, and the maintenance of it."""

    folder: Path
    clock: ShiftedClock
    policy: MaintenancePolicy = field(default_factory=lambda: MaintenancePolicy(min_files=1000))

    def __post_init__(self) -> None:
        (self.folder / "thermocline.toml").write_text(SETTINGS)
        self.lake = self.open()
        self.lake.ensure(EVENTS)
        self.number = 0
        for _ in range(3):
            self.append()

    def open(self) -> Lake:
        """Open the lake once more, with empty caches."""
        return Lake(load_settings(self.folder, environ=clean_environment()))

    @property
    def state(self) -> TableState:
        """The table's current metadata."""
        return self.lake.state(TABLE)

    @property
    def location(self) -> Path:
        """The table's folder."""
        found = local_path(self.state.location)
        assert found is not None
        return found

    def append(self) -> None:
        """Append a few rows in one commit."""
        self.number += 1
        rows = pa.table({"id": [self.number, -self.number], "kind": ["a", "b"]})
        draft = self.lake.draft(new_run_id())
        draft.append(TABLE, rows, bookmark=None, operation="append")
        draft.publish()

    def leave_file(self) -> Path:
        """Write a data file as a writer that then dies: no commit ever names it."""
        rows = pa.table({"id": [0], "kind": ["lost"]})
        [file] = write_files(self.lake.iceberg(TABLE), rows)
        path = local_path(file.file_path)
        assert path is not None and path.exists()
        return path

    def maintain(self) -> RemovalOutcome:
        """Apply one pass, with empty caches; return what it removed, and why not."""
        service = MaintenanceService(self.open(), self.policy)
        plan = service.plan([TABLE])
        return RemovalOutcome(plan, service.apply(plan))

    def read_snapshots(self) -> dict[int, Counter[Any]]:
        """Return the rows of every snapshot."""
        lake = self.open()
        state = lake.state(TABLE)
        return {
            snapshot: Counter(lake.duck.read(state.metadata_location, snapshot).fetchall())
            for snapshot in state.snapshots
        }


@dataclass
class RemovalOutcome:
    """A plan and the report of it, as far as removal is concerned."""

    plan: MaintenancePlan
    report: MaintenanceReport

    @property
    def planned(self) -> list[RemoveTask]:
        """The planned removals."""
        return [task for task in self.plan.tasks if isinstance(task, RemoveTask)]

    @property
    def removed(self) -> int:
        """How many files were removed."""
        return sum(result.counts["files_removed"] or 0 for result in self.report.results)

    @property
    def found(self) -> int:
        """How many files were found unreferenced for the first time."""
        return sum(result.counts["files_found"] or 0 for result in self.report.results)

    @property
    def reason(self) -> str:
        """Why nothing was removed, by the plan or by the report."""
        texts = [*dict(self.plan.skipped).values(), *(r.reason for r in self.report.results)]
        return " ".join(texts)
