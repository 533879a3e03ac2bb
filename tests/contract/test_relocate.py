"""A lake that was copied, moved or given another warehouse: refused, and whole once relocated."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import clean_environment
from tests.contract.catalog_tables import ORDERS, add_orders, ids, orders
from tests.contract.commit_entries import compacting, entry
from tests.contract.random_rows import (
    RandomRows,
    contents,
    left_over,
    names,
    on_duckdb,
    photo,
)
from tests.servers.s3 import S3
from tests.servers.settings import s3_access_settings

from thermocline.config import load_settings
from thermocline.errors import TablesElsewhere, Transient
from thermocline.lake import Lake
from thermocline.recover import Relocation, relocate

TABLE = ORDERS.table
OTHER = "gold.people"

Open = Callable[..., Lake]


@pytest.fixture
def opening() -> Iterator[Open]:
    """Opens the lake of a project in a folder, as a new process would."""
    opened: list[Lake] = []

    def again(folder: Path, environ: Mapping[str, str] | None = None) -> Lake:
        found = load_settings(folder, environ={**clean_environment(), **(environ or {})})
        opened.append(Lake(found))
        return opened[-1]

    yield again
    for lake in opened:
        lake.duck.stop()


@pytest.fixture
def lake(project: Path, opening: Open) -> Lake:
    """A fresh embedded lake."""
    return opening(project)


def state_of(lake: Lake) -> dict[str, object]:
    """All that is to survive: rows of every snapshot, names, and what is known of each table."""
    kept = ("table-uuid", "refs", "snapshot-log", "schemas", "partition-specs", "sort-orders",
            "last-updated-ms", "last-sequence-number", "current-snapshot-id")  # fmt: skip
    return {
        table: (contents(lake, table), on_duckdb(lake, table), [state.raw.get(k) for k in kept])
        for table, state in lake.states().items()
    }


def built(lake: Lake, seed: int = 1, steps: int = 6) -> dict[str, object]:
    """A lake with two tables of random histories; gives what is to survive."""
    for number, table in enumerate((TABLE, OTHER)):
        RandomRows(lake, 10 * seed + number, table).play(steps)
    return state_of(lake)


def relocated(folder: Path, **how: Any) -> Relocation:
    """Relocate as a process of its own would."""
    return relocate(load_settings(folder, environ=clean_environment()), **how)


def killed(point: str, folder: Path, *more: str) -> None:
    """Have `thermo relocate` die at a point."""
    command = [sys.executable, "-m", "thermocline.cli.main", "-C", folder, "relocate", *more]
    environ = {**clean_environment(), "THERMOCLINE_CRASH_AT": point}
    done = subprocess.run(command, env=environ, capture_output=True, timeout=120)
    assert done.returncode == -9, (point, done.stderr)


@pytest.mark.parametrize("seed", range(1, 7))
def test_a_copy_holds_what_the_original_does_and_lives_on_its_own(
    lake: Lake, project: Path, tmp_path: Path, opening: Open, seed: int
) -> None:
    before, unused = built(lake, seed), left_over(lake)
    lake.close()
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    original = photo(project)
    done = relocated(copy)
    assert {each.table for each in done.tables} == {TABLE, OTHER}
    assert all(not each.copied for each in done.tables)
    here = opening(copy)
    assert state_of(here) == before
    assert names(here, str(project)) == []
    assert left_over(here) == unused
    RandomRows(here, 99, TABLE).play(4)
    assert photo(project) == original
    assert state_of(opening(project)) == before


@pytest.mark.parametrize("seed", [7, 8])
def test_a_moved_lake_holds_what_it_did(
    lake: Lake, project: Path, tmp_path: Path, opening: Open, seed: int
) -> None:
    before = built(lake, seed)
    lake.close()
    moved = tmp_path / "moved"
    project.rename(moved)
    with pytest.raises(TablesElsewhere):
        opening(moved).states()
    relocated(moved)
    assert state_of(opening(moved)) == before
    assert names(opening(moved), str(project)) == []
    # And on, and back: names of files that were written again do not grow.
    moved.rename(project)
    relocated(project)
    found = opening(project)
    assert state_of(found) == before
    longest = max(len(Path(path).name) for path in photo(project / "lake"))
    assert longest < 100


def test_a_warehouse_that_was_set_elsewhere_is_filled_from_the_old_one(
    lake: Lake, project: Path, tmp_path: Path, opening: Open
) -> None:
    before = built(lake, 11)  # a part of the catalog is in its log still
    assert (project / "lake" / "catalog.db-wal").stat().st_size > 0
    original = photo(project / "lake")
    settings = (project / "thermocline.toml").read_text()
    new = tmp_path / "disk" / "lake"
    changed = settings.replace("[lake]", f'[lake]\nwarehouse = "{new}"')
    (project / "thermocline.toml").write_text(changed)
    plan = relocated(project, old=str(project / "lake"), plan=True)
    assert not new.exists()
    killed("relocate.catalog", project, "--from", str(project / "lake"))
    done = relocated(project, old=str(project / "lake"))
    assert sum(each.copied for each in done.tables) > 10
    assert plan.tables == ()
    here = opening(project)
    assert state_of(here) == before
    assert left_over(here) == set()
    assert photo(project / "lake") == original
    shutil.rmtree(project / "lake")
    assert state_of(opening(project)) == before


def test_a_lake_goes_to_a_store_and_comes_back(
    lake: Lake, project: Path, tmp_path: Path, opening: Open, s3_server: S3
) -> None:
    before = built(lake, 12)
    lake.close()
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    original = photo(project)
    far = s3_access_settings(s3_server) | {
        "THERMOCLINE_LAKE__WAREHOUSE": f"s3://{s3_server.bucket}/{copy.parent.name}",
    }
    environ = {**clean_environment(), **far}
    relocate(load_settings(copy, environ=environ), old=str(copy / "lake"))
    there = opening(copy, far)
    assert state_of(there) == before
    assert names(there, str(tmp_path)) == []
    assert left_over(there) == set()
    add_orders(there, OTHER, 1001)
    after = state_of(there)
    home = far | {"THERMOCLINE_LAKE__WAREHOUSE": str(copy / "home"),
                  "THERMOCLINE_LAKE__CATALOG__URI": "catalog.db"}  # fmt: skip
    relocate(load_settings(copy, environ={**clean_environment(), **home}))
    assert state_of(opening(copy, home)) == after
    assert names(opening(copy, home), "s3://") == []
    assert photo(project) == original


def test_commits_that_wait_land_in_the_copy(
    lake: Lake, project: Path, tmp_path: Path, opening: Open
) -> None:
    lake.ensure(ORDERS)
    add_orders(lake, TABLE, 1, 2)
    lake.group_commit._queue.put(entry(lake, "waits", 3, 4))
    lake.group_commit._queue.put(compacting(lake, "compacts", 1, 2))
    lake.close()
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    original = photo(project)
    relocated(copy)
    here = opening(copy)
    here.group_commit.commit(entry(here, "next", 5))
    assert ids(here, TABLE) == [1, 2, 3, 4, 5]
    assert names(here, str(project)) == []
    assert photo(project) == original
    assert ids(opening(project), TABLE) == [1, 2]


def test_a_layer_that_says_where_its_tables_go_says_the_new_place(
    lake: Lake, project: Path, tmp_path: Path, opening: Open
) -> None:
    lake.ensure(ORDERS)
    place = f"file://{project}/lake/silver"
    lake.catalog.create_namespace("own", {"location": place})
    opening(project).states()
    moved = tmp_path / "moved"
    shutil.copytree(project, moved)
    relocated(moved)
    found = opening(moved)
    assert (
        found.catalog.load_namespace_properties("own")["location"] == f"file://{moved}/lake/silver"
    )
    found.ensure(orders("own.orders"))
    assert found.state("own.orders").location == f"file://{moved}/lake/silver/orders"


def test_a_table_in_a_folder_of_its_own_choice_goes_along(
    lake: Lake, project: Path, tmp_path: Path, opening: Open
) -> None:
    lake.ensure(ORDERS)
    schema = lake.iceberg(TABLE).schema()
    lake.catalog.create_table(OTHER.replace("gold", "silver"), schema,
                              location=f"file:{project}/lake/deep/er")  # fmt: skip
    before = opening(project).states()
    assert len(before) == 2
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    relocated(copy)
    assert opening(copy).state("silver.people").location == f"file://{copy}/lake/deep/er"


POINTS = ("relocate.examined", "relocate.copied:3", "relocate.written:7", "relocate.verified",
          "relocate.swapping", "relocate.swapped", "relocate.cleaning:2")  # fmt: skip


def test_killed_anywhere_it_is_finished_by_the_next_one(
    lake: Lake, project: Path, tmp_path: Path, opening: Open
) -> None:
    RandomRows(lake, 13).play(0)
    before = state_of(lake)
    lake.close()
    for number, point in enumerate(POINTS):
        copy = tmp_path / str(number)
        shutil.copytree(project, copy)
        for path in (copy / "lake").rglob("*.parquet"):
            if not path.name.startswith("deletes"):
                path.unlink()  # it is copied again
        original = photo(project)
        killed(point, copy)
        if point in ("relocate.swapped", "relocate.cleaning:2"):
            assert state_of(opening(copy)) == before, point
        else:
            with pytest.raises(TablesElsewhere):
                opening(copy).states()
        relocated(copy)
        assert state_of(opening(copy)) == before, point
        assert names(opening(copy), f"{project}/") == [], point
        assert photo(project) == original, point
        assert not list(copy.rglob("*.part"))


def test_two_at_once_do_it_once(lake: Lake, project: Path, tmp_path: Path, opening: Open) -> None:
    RandomRows(lake, 14).play(0)
    before = state_of(lake)
    lake.close()
    copy = tmp_path / "copy"
    shutil.copytree(project, copy)
    command = [sys.executable, "-m", "thermocline.cli.main", "-C", copy, "--json", "relocate"]
    frozen = {**clean_environment(), "THERMOCLINE_FREEZE_AT": "relocate.written:3"}
    first = subprocess.Popen(command, env=frozen, stdout=subprocess.PIPE)
    try:
        until = time.monotonic() + 60
        while not stopped(first.pid) and time.monotonic() < until:
            time.sleep(0.02)
        assert stopped(first.pid)
        with pytest.raises(Transient, match="by another process"):
            relocated(copy)
    finally:
        os.kill(first.pid, signal.SIGCONT)
    said = json.loads(first.communicate(timeout=60)[0])
    assert [each["table"] for each in said["tables"]] == [TABLE]
    assert relocated(copy).tables == ()
    assert state_of(opening(copy)) == before


def stopped(pid: int) -> bool:
    """Whether a process stands still."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
