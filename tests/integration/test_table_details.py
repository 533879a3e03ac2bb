"""`thermo health TABLE`: partitions, reads, updates, alerts and advice, with their numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from tests.conftest import SETTINGS, clean_environment

from thermocline.config import load_settings
from thermocline.contract import Column, Contract, PartitionField, UpdateMode, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.file_commit import append_rows, commit_files
from thermocline.lake.live_files import live_files
from thermocline.lake.overwrite import replace_rows
from thermocline.lake.read_log import ReadLog, ReadRate
from thermocline.maintain import table_details
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.layout_advice import UpdateCosts, UpdateRates, advise_updates
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.table_details import TableDetails, describe_table

TABLE = "silver.events"
EVENTS = Contract(
    TABLE,
    tuple(Column(name, Primitive(kind))
          for name, kind in (("day", "date"), ("user", "long"), ("shop", "string"))),
    partition=(PartitionField("day"),),
    write=WriteMode.APPEND,
)  # fmt: skip
DAYS, FILES, ROWS = 3, 4, 50
POLICY = MaintenancePolicy(target_bytes=4 << 10)


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """A lake with a table of three days; the second has several files."""
    return make_lake(tmp_path, EVENTS)


def make_lake(folder: Path, contract: Contract) -> Lake:
    (folder / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(load_settings(folder, environ=clean_environment()))
    lake.ensure(contract)
    for day in range(DAYS):
        for number in range(FILES if day == 1 else 1):
            commit_files(lambda: lake.iceberg(TABLE), append_rows(rows(day, number)), "main", {})
    return lake


def rows(day: int, number: int) -> pa.Table:
    """Some rows of a day."""
    users = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
    return pa.table({
        "day": pa.array([20_000 + day] * ROWS, pa.int32()).cast(pa.date32()),
        "user": users, "shop": [f"shop {each}" for each in users.to_pylist()],
    })  # fmt: skip


def read(lake: Lake, scans: int, columns: set[str]) -> None:
    """Record scans of the table."""
    log = ReadLog(lake.settings.project)
    for _ in range(scans):
        log.record(TABLE, 6, 5_000_000, columns)
    log.flush()


def describe(lake: Lake) -> TableDetails:
    return describe_table(lake, lake.state(TABLE), FileStatsReader(), POLICY)


def update(lake: Lake, *, on_read: bool) -> None:
    """Replace one row of one file."""
    head = lake.state(TABLE).head()
    assert head is not None
    live = min(live_files(lake.iceberg(TABLE), head), key=lambda each: each.path)
    gone = {live.path: np.array([0], dtype=np.int64)}
    commit_files(
        lambda: lake.iceberg(TABLE),
        lambda table: replace_rows(table, head, rows(0, 9).slice(0, 1), gone, on_read=on_read),
        "main", {},
    )  # fmt: skip


def test_each_partition_is_described(lake: Lake) -> None:
    details = describe(lake)
    named = [(each.name, each.files.files, each.files.small_files) for each in details.partitions]
    assert named == [
        ("day=2024-10-04", 1, 1), ("day=2024-10-05", 4, 4), ("day=2024-10-06", 1, 1),
    ]  # fmt: skip
    assert details.partitions[0].read_amplification < details.partitions[1].read_amplification
    assert details.commit_age is not None
    assert 0 <= details.commit_age < 60
    assert (details.bookmark_age, details.unreferenced, details.reads) == (None, None, None)
    assert (details.alerts, details.advice) == ((), ())


def test_many_small_files_are_an_alert(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_details, "MAX_SMALL_FILES", 3)
    small = describe_table(lake, lake.state(TABLE), FileStatsReader(), MaintenancePolicy())
    assert small.alerts == ("day=2024-10-05 has 4 small files; run `thermo maintain`",)


@pytest.mark.parametrize(
    ("reads", "advised"),
    [
        ([], None),
        ([(40, {"user"}), (10, set())],
         "sortBy: [user] in the contract: of 50 scans a day, user in 80% filter by it; the files"
         " are not ordered"),
        ([(20, {"user", "shop"}), (20, {"shop"})],
         'sortBy: "zorder(shop, user)" in the contract: of 40 scans a day, shop in 100%, user in'
         " 50% filter by it; the files are not ordered"),
        ([(40, {"day"})], None),
        ([(12, {"user"}), (28, set())], None),
    ],
)  # fmt: skip
def test_an_order_is_advised_from_predicates(
    lake: Lake, reads: list[tuple[int, set[str]]], advised: str | None
) -> None:
    for scans, columns in reads:
        read(lake, scans, columns)
    assert describe(lake).advice == (() if advised is None else (advised,))


def test_an_order_that_the_table_has_is_not_advised(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, replace(EVENTS, cluster=("user", "shop")))
    read(lake, 40, {"user"})
    details = describe(lake)
    assert details.advice == ()
    assert details.health.sort is not None
    assert details.health.sort.columns == ("user", "shop")


@pytest.mark.parametrize("mode", UpdateMode)
def test_update_rates_come_from_commits(tmp_path: Path, mode: UpdateMode) -> None:
    lake = make_lake(tmp_path, replace(EVENTS, updates=mode))
    for _ in range(4):
        update(lake, on_read=mode is UpdateMode.MERGE_ON_READ)
    read(lake, 10, set())
    details = describe(lake)
    rates, costs = details.updates, details.update_costs
    assert costs is not None
    assert (rates.observed, rates.commits, costs.mode) == (4, 4, mode.value)
    if mode is UpdateMode.MERGE_ON_READ:
        assert (rates.rows, rates.delete_files, rates.rewritten_bytes) == (4, 4, 0)
        size = details.health.files.bytes / details.health.files.files
        assert costs.copy_on_write == pytest.approx(4 * size)
        assert costs.merge_on_read == 10 * details.health.files.delete_files * (4 << 20)
    else:
        assert rates.delete_files == 0
        assert costs.copy_on_write == rates.rewritten_bytes > 3_000
        assert costs.merge_on_read == 10 * 4 * (4 << 20)


@pytest.mark.parametrize(
    ("mode", "copy", "merge", "observed", "advised"),
    [
        ("copy-on-write", 10e9, 1e9, 9, "updates: merge-on-read"),
        ("copy-on-write", 10e9, 1e9, 2, None),
        ("copy-on-write", 10e9, 6e9, 9, None),
        ("copy-on-write", 90e6, 1e6, 9, None),
        ("merge-on-read", 10e9, 1e9, 9, None),
        ("merge-on-read", 1e9, 10e9, 9, "updates: copy-on-write"),
    ],
)
def test_the_cheaper_update_mode_is_advised(
    mode: str, copy: float, merge: float, observed: int, advised: str | None
) -> None:
    rates = UpdateRates(commits=12, rows=5, observed=observed)
    found = advise_updates(rates, UpdateCosts(mode, copy, merge), ReadRate(scans=30))
    if advised is None:
        assert found is None
        return
    assert found == (
        f"{advised} in the contract would cost 1,000 MB instead of 10,000 MB a day, at 12.0"
        " updating commits and 30.0 scans a day"
    )


def test_people_see_the_partitions_and_programs_get_them(lake: Lake, tmp_path: Path) -> None:
    read(lake, 40, {"user"})
    shown = thermo(tmp_path, "health", TABLE)
    assert "2024-10" in shown
    assert "□" in shown or "▣" in shown
    assert "day=2024-10-05" in shown
    assert "read 40.0 times a day: 240 files, 200.0 MB, filtered by user 40.0" in shown
    [found] = json.loads(thermo(tmp_path, "health", TABLE, "--json"))
    assert [each["name"] for each in found["partition_health"]][1] == "day=2024-10-05"
    assert found["reads"]["columns"] == {"user": 40}
    assert (found["table"], found["alerts"]) == (TABLE, [])


def thermo(folder: Path, *arguments: str) -> str:
    """Call the command line in the project; return what it prints."""
    return subprocess.run(
        [sys.executable, "-m", "thermocline", *arguments], cwd=folder, check=True,
        env={**clean_environment(), "COLUMNS": "200"}, capture_output=True, text=True,
    ).stdout  # fmt: skip
