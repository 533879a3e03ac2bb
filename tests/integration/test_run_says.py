"""What a run says of itself: the partitions that it will compute, and the rows that it changed."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import clean_environment
from tests.integration.every_write import MODES, land, make, many, row

from thermocline.api import Lakehouse
from thermocline.config import load_settings

LOGICAL = ("append", "merge", "merge_on_read", "state", "scd2")
TABLES = {name: f"silver.{name}" for name in MODES}


def with_engine(project: Path, engine: str) -> None:
    settings = project / "thermocline.toml"
    settings.write_text(settings.read_text() + f'[transform]\nengine = "{engine}"\n')


@pytest.fixture
def house(project: Path) -> Iterator[Lakehouse]:
    with_engine(project, "duckdb")
    made = make(project)
    yield made
    made.lake.duck.stop()


def stale(house: Lakehouse, table: str) -> set[str]:
    found = house.partitions(table)
    assert not found.note
    return {p.name for p in found.partitions if str(p.status) in {"stale", "missing"}}


def held(house: Lakehouse, table: str) -> dict[str, set[str]]:
    """The files of each partition."""
    from thermocline.lake.overwrite import live_partitions, partition_values
    from thermocline.transform.workers.work_unit import format_partition

    iceberg, head = house.lake.iceberg(table), house.lake.state(table).head()
    assert head is not None
    return {
        format_partition(partition_values(iceberg, record)): {file.file_path for file in files}
        for record, files in live_partitions(iceberg, head).items()
    }


def touched(house: Lakehouse, table: str, before: dict[str, set[str]]) -> set[str]:
    """The partitions that have other files than before."""
    after = held(house, table)
    return {name for name in {*before, *after} if before.get(name) != after.get(name)}


def test_300_rows_in_three_new_days_make_three_days_stale(house: Lakehouse) -> None:
    land(house, many(range(27), each=10))
    house.run()
    assert not any(stale(house, table) for table in TABLES.values())
    land(house, many(range(27, 30), each=98))  # with two more a day: 300
    new = {"2026-01-28", "2026-01-29", "2026-01-30"}
    every = {f"2026-01-{day:02}" for day in range(1, 31)}
    said = {name: stale(house, table) for name, table in TABLES.items()}
    assert said["append"] == said["partitions"] == new
    assert said["monthly"] == {"672"}
    assert said["replace"] == every
    before = {name: held(house, table) for name, table in TABLES.items()}
    house.run()
    for name, table in TABLES.items():
        assert touched(house, table, before[name]) <= said[name], name
        assert stale(house, table) == set()


def test_what_a_run_computes_was_said_to_be_stale(house: Lakehouse) -> None:
    chance = random.Random(17)
    land(house, many(range(8), each=6))
    for _ in range(5):
        said = {name: stale(house, table) for name, table in TABLES.items()}
        existing = bool(house.lake.exists("silver.merge"))
        before = {
            name: held(house, table) if house.lake.exists(table) else {}
            for name, table in TABLES.items()
        }
        report = house.run()
        details = {step.table: step.detail for step in report.steps}
        for name, table in TABLES.items():
            moved = touched(house, table, before[name])
            if existing or name == "partitions":
                assert moved <= said[name], name
            if existing and name in {"append", "monthly", "partitions"}:
                assert moved == said[name], name
            if details.get(table, "").endswith("partitions touched"):
                assert details[table] == f"{len(said[name])} partitions touched"
        land(house, [
            row(chance.randrange(60), chance.randrange(10), chance.choice(["a", "gone"]),
                f"{chance.randrange(90)}.00", chance.randrange(1400))
            for _ in range(chance.randrange(1, 5))
        ])  # fmt: skip


def thermo(house: Lakehouse, *words: str) -> Any:
    command = [sys.executable, "-m", "thermocline.cli.main", "-C", str(house.settings.project)]
    done = subprocess.run(
        [*command, "--json", *words], text=True, capture_output=True, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("engine", ["duckdb", "spark"])
def test_a_run_says_what_changed_as_history_does(project: Path, engine: str) -> None:
    with_engine(project, engine)
    house = make(project)
    land(house, [row(n, n % 3, "a", "1.00", n) for n in range(500)])
    house.run()
    changed = [row(n, n % 3, "b", "2.00", 1000 + n) for n in range(6)]
    gone = [row(n, n % 3, "gone", "3.00", 1000 + n) for n in range(10, 13)]
    new = [row(1000 + n, n % 3, "c", "4.00", 5) for n in range(4)]
    land(house, [*changed, *gone, *new])
    with Lakehouse_(project) as again:
        report = again.run()
        said = {
            step.table.partition(".")[2]: (step.added, step.changed, step.removed)
            for step in report.steps
        }
        for name, table in TABLES.items():
            newest = again.table(table).history()[0]
            assert (newest.added, newest.changed, newest.removed) == said[name], name
    assert {name: said[name] for name in LOGICAL} == {
        "append": (13, 0, 0),
        "merge": (4, 6, 3),
        "merge_on_read": (4, 6, 3),
        "state": (4, 9, 0),
        # Each change closes a version; a delete begins none.
        "scd2": (10, 9, 0),
    }
    # Partitions and tables that are computed anew are replaced.
    assert said["partitions"] == (513, 0, 500)
    assert said["replace"] == (513, 0, 500)
    if engine == "duckdb":
        entry = thermo(house, "history", "silver.merge")[0]
        assert (entry["added"], entry["changed"], entry["removed"]) == (4, 6, 3)
    house.lake.duck.stop()


class Lakehouse_:
    """The project opened by another process, as it were."""

    def __init__(self, project: Path) -> None:
        self._house = Lakehouse(load_settings(project, environ=clean_environment()))

    def __enter__(self) -> Lakehouse:
        return self._house

    def __exit__(self, *error: object) -> None:
        self._house.lake.duck.stop()
