"""Maintenance expires snapshots of tables that get no commits, and nothing that is needed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table.update import RemoveSnapshotsUpdate
from tests.conftest import SETTINGS, clean_environment
from tests.integration.expiry_races import HARSHEST, SCHEMA, TABLE, append, race
from tests.integration.table_histories import KINDS, History

from thermocline.config import load_settings
from thermocline.errors import BadInput
from thermocline.lake import Lake, refs
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.snapshot_producer import FileChange, write_snapshot
from thermocline.maintain.expiry import plan_table_expiry
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.service import MaintenanceService
from thermocline.maintain.task import TaskKind

RACES = 60


@pytest.fixture
def open_lake(tmp_path: Path) -> Iterator[Callable[[], Lake]]:
    """Open the lake of a project in which all expires that may, by maintenance alone."""
    (tmp_path / "thermocline.toml").write_text(SETTINGS)
    opened = []

    def open_once_more() -> Lake:
        environ = {**clean_environment(), **HARSHEST}
        opened.append(Lake(load_settings(tmp_path, environ=environ)))
        return opened[-1]

    yield open_once_more
    for lake in opened:
        lake.disconnect()


def make_table(lake: Lake) -> list[int]:
    """Create a table of five commits; return its snapshots."""
    lake.catalog.create_namespace_if_not_exists("silver")
    lake.catalog.create_table(TABLE, SCHEMA)
    found = [append(lake, number) for number in range(5)]
    time.sleep(0.002)
    return found


def set_property(lake: Lake, name: str, value: str) -> None:
    """Set a property of the table."""
    with lake.iceberg(TABLE).transaction() as transaction:
        transaction.set_properties({name: value})


def test_snapshots_of_a_table_without_commits_expire(open_lake: Callable[[], Lake]) -> None:
    lake = open_lake()
    first, second, third, _, last = make_table(lake)
    state = lake.state(TABLE)
    lake.commit([refs.new_ref(state, "kept", first, tag=True)])
    lake.commit([refs.new_ref(lake.state(TABLE), "side", third, tag=False)])
    service = MaintenanceService(lake, MaintenancePolicy(min_files=1000))
    plan = service.plan([TABLE])
    [task] = [task for task in plan.tasks if task.kind is TaskKind.EXPIRE]
    assert task.details == {"snapshots": 1, "refs": 0}
    report = service.apply(plan)
    assert sum(r.counts["snapshots_expired"] or 0 for r in report.results) == 1
    kept = lake.state(TABLE)
    assert second not in kept.snapshots
    assert {name: ref.snapshot for name, ref in kept.refs.items()} == {
        "main": last, "kept": first, "side": third,
    }  # fmt: skip
    assert plan_table_expiry(lake, kept) is None


@pytest.mark.parametrize("name", ["min-snapshots-to-keep", "max-snapshot-age-ms"])
@pytest.mark.parametrize("value", ["-1", "soon", "", "1e3", "9" * 40, "٣"])
def test_an_absurd_property_expires_nothing(
    name: str, value: str, open_lake: Callable[[], Lake]
) -> None:
    lake = open_lake()
    snapshots = make_table(lake)
    set_property(lake, f"history.expire.{name}", value)
    plan = MaintenanceService(lake, MaintenancePolicy()).plan([TABLE])
    assert f"history.expire.{name}" in plan.skipped[TABLE]
    with pytest.raises(BadInput, match="none of its snapshots expire"):
        plan_table_expiry(lake, lake.state(TABLE))
    assert set(lake.state(TABLE).snapshots) == set(snapshots)
    append(lake, 5)  # and writers are not stopped


def test_the_largest_age_means_forever(open_lake: Callable[[], Lake]) -> None:
    lake = open_lake()
    make_table(lake)
    set_property(lake, "history.expire.max-snapshot-age-ms", str(2**63 - 1))
    assert plan_table_expiry(lake, lake.state(TABLE)) is None


def test_no_ref_is_lost_whoever_is_first(open_lake: Callable[[], Lake]) -> None:
    outcomes = race(open_lake(), open_lake(), range(RACES))
    assert outcomes["published alone"] > 0
    assert outcomes["published beside"] > 3
    assert outcomes["discarded beside"] > 10


@pytest.mark.parametrize(
    "point",
    ["expiry.before-commit", "publish.staged", "publish.swapping", "publish.swapped",
     "expiry.committed"],
)  # fmt: skip
def test_a_killed_expiry_loses_nothing_and_is_done_once(
    point: str, open_lake: Callable[[], Lake], tmp_path: Path
) -> None:
    lake = open_lake()
    snapshots = make_table(lake)
    lake.commit([refs.new_ref(lake.state(TABLE), "kept", snapshots[1], tag=True)])
    started: Any = subprocess.run(
        [sys.executable, "-m", "thermocline", "maintain", "--json"], cwd=tmp_path, check=False,
        env={**clean_environment(), **HARSHEST, "THERMOCLINE_CRASH_AT": point},
        capture_output=True,
    )  # fmt: skip
    assert started.returncode == -signal.SIGKILL, started.stderr
    landed = point in {"publish.swapped", "expiry.committed"}
    state = open_lake().state(TABLE)
    assert len(state.snapshots) == (2 if landed else 5)
    task = plan_table_expiry(lake, state)
    assert (task is None) == landed
    if task is not None:
        task.apply(lake)
    state = open_lake().state(TABLE)
    assert set(state.snapshots) == {snapshots[1], snapshots[-1]}
    for snapshot, rows in ((snapshots[1], 2), (snapshots[-1], 5)):
        assert len(lake.iceberg(TABLE).scan(snapshot_id=snapshot).to_arrow()) == rows


def test_two_maintainers_expire_once(open_lake: Callable[[], Lake]) -> None:
    one, other = open_lake(), open_lake()
    make_table(one)
    tasks = [plan_table_expiry(lake, lake.state(TABLE)) for lake in (one, other)]
    outcomes = []
    for lake, task in zip((one, other), tasks, strict=True):
        assert task is not None
        service = MaintenanceService(lake, MaintenancePolicy())
        plan = service.plan([])
        report = service.apply(type(plan)((task,)))
        outcomes.append(report.results[0].outcome)
    assert outcomes == ["published", "discarded"]
    assert len(one.state(TABLE).snapshots) == 1


def test_manifests_that_a_rolled_back_snapshot_shares_stay(open_lake: Callable[[], Lake]) -> None:
    lake = open_lake()
    make_table(lake)
    shared = lake.state(TABLE).head()
    assert shared is not None
    gone = append(lake, 5)  # lists the manifest that `shared` added
    lake.commit([refs.rollback(lake.state(TABLE), shared)])
    table = lake.iceberg(TABLE)
    files = [task.file for task in table.scan().plan_files()]
    made = write_snapshot(table, FileChange(removed=files), shared, {})
    lake.commit(snapshot_changes(table, made, "main", shared))  # and the head lists none of them
    change = RemoveSnapshotsUpdate(snapshot_ids=[gone])
    lake.commit([TableChange(TABLE, (), (change,))])
    assert len(lake.iceberg(TABLE).scan(snapshot_id=shared).to_arrow()) == 5


class _ExpiringHistory(History):
    """A history of tables with companions in which maintenance expires all that it may."""

    def __init__(self, folder: Path, seed: int, kind: str) -> None:
        super().__init__(folder, seed, kind)
        self._expiring = True  # what main can go back to is what has not expired
        self.expired = 0

    def _weighted(self) -> tuple[list[Callable[[], None]], list[int]]:
        steps, weights = super()._weighted()
        return [*steps, self.expire], [*weights, 8]

    def expire(self) -> None:
        """Expire snapshots of all tables, as a pass of maintenance does."""
        time.sleep(0.002)
        self.log.append("expire")
        environ = {**clean_environment(), **HARSHEST}
        lake = Lake(load_settings(self.folder, environ=environ))
        for state in lake.states().values():
            task = plan_table_expiry(lake, state)
            if task is not None:
                task.apply(lake)
                self.expired += task.snapshots
        lake.disconnect()


@pytest.mark.parametrize("kind", KINDS)
def test_tables_and_companions_stay_what_the_model_says(tmp_path: Path, kind: str) -> None:
    expired = 0
    for seed in range(20, 23):
        folder = tmp_path / str(seed)
        os.mkdir(folder)
        history = _ExpiringHistory(folder, seed, kind)
        try:
            history.play(10)
        finally:
            history.close()
        expired += history.expired
    assert expired > 0
