"""What is not sorted is sorted, what is sorted is left alone."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import SETTINGS, clean_environment

from thermocline.api.query import execute_query
from thermocline.config import load_settings
from thermocline.contract import Column, Contract, SortField, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.file_commit import append_rows, commit_files
from thermocline.lake.live_files import live_files
from thermocline.lake.pyiceberg_internals import data_file_values
from thermocline.lake.read_log import ReadLog, read_rates
from thermocline.maintain.file_keys import TableOrder
from thermocline.maintain.file_stats import FileStatsReader
from thermocline.maintain.maintenance_plan import CompactTask, plan_tables
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.sort_plan import choose_unsorted
from thermocline.maintain.sort_quality import SortQuality
from thermocline.maintain.table_health import evaluate_table

TABLE = "silver.points"
COLUMNS = (
    Column("x", Primitive("long")), Column("y", Primitive("double")),
    Column("text", Primitive("string")),
)  # fmt: skip
SORTED = Contract(TABLE, COLUMNS, write=WriteMode.APPEND, sort=(SortField("x"),))
CLUSTERED = Contract(TABLE, COLUMNS, write=WriteMode.APPEND, cluster=("x", "y"))
# No file counts as small, so that only the order is a reason to rewrite.
POLICY = MaintenancePolicy(target_bytes=8 << 10, min_files=1_000, cool_down=0)
ROWS = 500


class OrderedLake:
    """A lake with one table that should be ordered."""

    def __init__(self, folder: Path, contract: Contract) -> None:
        (folder / "thermocline.toml").write_text(SETTINGS)
        self.lake = Lake(load_settings(folder, environ=clean_environment()))
        self.reader = FileStatsReader()
        self.random = random.Random(1)
        self.lake.ensure(contract)

    def append(self, low: int = 0, high: int = 1 << 40) -> None:
        """Append a file with values of a range."""
        rows = [
            (self.random.randint(low, high), self.random.random(), f"same prefix {n:08}")
            for n in range(ROWS)
        ]
        columns = zip(*rows, strict=True)
        kinds = [pa.int64(), pa.float64(), pa.string()]
        arrays = [pa.array(values, kind) for values, kind in zip(columns, kinds, strict=True)]
        part = pa.table(arrays, ["x", "y", "text"])
        commit_files(lambda: self.lake.iceberg(TABLE), append_rows(part), "main", {})

    def plan(self) -> list[CompactTask]:
        """Plan a pass over the table."""
        plan = plan_tables(self.lake, self.lake.states([TABLE]), self.reader, POLICY)
        return [task for task in plan.tasks if isinstance(task, CompactTask)]

    def maintain(self) -> list[CompactTask]:
        """Apply a pass."""
        tasks = self.plan()
        for task in tasks:
            task.apply(self.lake)
        return tasks

    def quality(self) -> SortQuality:
        """Return how well the table is ordered."""
        health = evaluate_table(self.lake, self.lake.state(TABLE), self.reader, POLICY)
        assert health.sort is not None
        return health.sort

    def paths(self) -> set[str]:
        """Return the data files of main."""
        head = self.lake.state(TABLE).head()
        assert head is not None
        return {live.path for live in live_files(self.lake.iceberg(TABLE), head)}


@pytest.mark.parametrize("contract", [SORTED, CLUSTERED])
def test_files_that_overlap_are_sorted_once(tmp_path: Path, contract: Contract) -> None:
    lake = OrderedLake(tmp_path, contract)
    for _ in range(8):
        lake.append()
    before = lake.quality()
    assert before.columns == (("x",) if contract is SORTED else ("x", "y"))
    assert before.opened > 7.5
    [task] = lake.maintain()
    assert "a lookup opens 8.0" in task.why
    assert task.files == 8
    after = lake.quality()
    assert len(lake.paths()) > 4
    assert after.opened < (1.1 if contract is SORTED else 0.75 * len(lake.paths()))
    assert lake.plan() == []


def test_files_that_do_not_overlap_are_left_alone(tmp_path: Path) -> None:
    lake = OrderedLake(tmp_path, SORTED)
    for number in range(8):
        lake.append(number * 1_000, number * 1_000 + 1_000)
    assert lake.quality().overlap < 1.1
    assert lake.plan() == []


def test_a_run_is_not_sorted_again_whatever_its_bounds_say(tmp_path: Path) -> None:
    # Bounds of text are cut after 16 characters, and seem to overlap.
    lake = OrderedLake(
        tmp_path, Contract(TABLE, COLUMNS, write=WriteMode.APPEND, sort=(SortField("text"),))
    )
    for _ in range(6):
        lake.append()
    [task] = lake.maintain()
    assert task.files == 6
    assert len(lake.paths()) > 3
    assert lake.quality().overlap >= 2
    assert lake.plan() == []


def test_each_row_is_sorted_a_logarithmic_number_of_times(tmp_path: Path) -> None:
    lake = OrderedLake(tmp_path, SORTED)
    commits, sorted_bytes, appended = 48, 0, Counter[str]()
    for _ in range(commits):
        before = lake.paths()
        lake.append()
        appended.update(new=len(lake.paths() - before))
        sorted_bytes += sum(task.bytes for task in lake.maintain())
        assert lake.quality().opened <= 2 + math.log2(commits)
    health = evaluate_table(lake.lake, lake.lake.state(TABLE), lake.reader, POLICY)
    assert sorted_bytes <= health.files.bytes * math.log2(commits)
    assert sorted_bytes > health.files.bytes


def record(lake: OrderedLake, table: str, scans: int, columns: set[str]) -> None:
    """Record reads of a table as of today."""
    log = ReadLog(lake.lake.settings.project)
    for _ in range(scans):
        log.record(table, 1, 1, columns)
    log.flush()


def test_a_sort_must_pay_by_lookups(tmp_path: Path) -> None:
    lake = OrderedLake(tmp_path, SORTED)
    for _ in range(8):
        lake.append()
    order, head = TableOrder.of_table(lake.lake.iceberg(TABLE)), lake.lake.state(TABLE).head()
    assert head is not None
    files = live_files(lake.lake.iceberg(TABLE), head)
    # As if each file had a gigabyte: opening it costs nothing then.
    for live in files:
        live.file[data_file_values(live.file).index(live.file.file_size_in_bytes)] = 1 << 30
    quality = SortQuality(("x",), is_zorder=False, opened=1.5, ideal=1)
    policy = replace(POLICY, max_sort_bytes=1 << 40)
    often = choose_unsorted(order, quality, files, policy, lookups=2)
    assert often is not None
    assert often.saved_per_day == pytest.approx(2 * 0.5 * (1 << 30), rel=0.01)
    assert choose_unsorted(order, quality, files, policy, lookups=0.1) is None


def test_tasks_of_tables_that_are_read_come_first(tmp_path: Path) -> None:
    lake = OrderedLake(tmp_path, SORTED)
    contracts = [replace(SORTED, table=f"silver.t{number}", sort=()) for number in range(3)]
    part = pa.table({"x": [1], "y": [1.0], "text": ["a"]})
    for contract in contracts:
        lake.lake.ensure(contract)
        for _ in range(6):
            commit_files(
                lambda: lake.lake.iceberg(contract.table),  # noqa: B023
                append_rows(part), "main", {},
            )  # fmt: skip

    def plan() -> list[tuple[str, str, float | None]]:
        tables = [contract.table for contract in contracts]
        policy = MaintenancePolicy(min_files=2, cool_down=0)
        tasks = plan_tables(lake.lake, lake.lake.states(tables), lake.reader, policy).tasks
        return [
            (task.table, task.why.partition("; ")[2], task.reads_per_day)
            for task in tasks if isinstance(task, CompactTask)
        ]  # fmt: skip

    assert [why for _, why, _ in plan()] == ["", "", ""]
    record(lake, "silver.t2", 40, {"x"})
    record(lake, "silver.t1", 3, set())
    assert plan() == [
        ("silver.t2", "read 40 times a day", 40),
        ("silver.t1", "read 3 times a day", 3),
        ("silver.t0", "not read lately", 0),
    ]


def test_queries_are_recorded_with_their_predicates(tmp_path: Path) -> None:
    lake = OrderedLake(tmp_path, SORTED)
    lake.append()
    execute_query(lake.lake, f"SELECT count(*) FROM {TABLE} WHERE X > 5 AND text = 'secret'")
    execute_query(lake.lake, f"SELECT count(*) FROM {TABLE} t JOIN {TABLE} o ON t.x = o.x")
    lake.lake.close()
    rates = read_rates(tmp_path)
    assert rates is not None
    assert (rates[TABLE].scans, rates[TABLE].files) == (2, 2)
    assert rates[TABLE].columns == {"x": 1, "text": 1}
    assert "secret" not in (tmp_path / ".thermocline" / "reads.jsonl").read_text()
