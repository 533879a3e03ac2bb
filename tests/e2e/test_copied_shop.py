"""A shop that was copied: refused until it is relocated, then as whole as the original."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.contract.random_rows import contents as history
from tests.contract.random_rows import names, photo
from tests.e2e.shop_project import (
    WHEN_IT_RAN,
    Embedded,
    contents,
    environment,
    generate,
    opened,
    thermo,
)

from thermocline.api import Lakehouse
from thermocline.engine.spark import CATALOG

ENGINE = {"THERMOCLINE_TRANSFORM__ENGINE": "auto"}
ORDERS, REVENUE = "silver.orders", "gold.daily_revenue"
COMMANDS = (
    ("ingest",), ("run",), ("stream",), ("backfill", REVENUE), ("serve", "--port", "0"),
    ("query", f"select count(*) from {REVENUE}"), ("doctor", "--fix"),
)  # fmt: skip


@pytest.fixture(scope="module")
def city(embedded_shop: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shop with a change, deletes on read, tombstones, quarantine, a tag and an environment."""
    folder = tmp_path_factory.mktemp("city") / "city"
    subprocess.run(["cp", "-r", embedded_shop.project, folder], check=True)
    assert thermo(folder, ENGINE, "relocate")["done"]
    house = opened(folder, ENGINE)
    assert contents(house, "duckdb") == embedded_shop.contents
    house.table(REVENUE).tag("before")
    generate(folder, "--change", "--share", "0.05")
    house.ingest()
    house.run()
    model = folder / "models" / "gold" / "daily_revenue.sql"
    text = model.read_text()
    model.write_text(text.replace("count(distinct customer_id)", "count(customer_id)"))
    house = opened(folder, ENGINE)
    assert house.run([REVENUE], env="dev").published is not None
    model.write_text(text)
    house.lake.disconnect()
    return folder


def failed(project: Path, *arguments: str) -> tuple[int, Any]:
    """The exit code of a command that is refused, and what it says to programs."""
    done = subprocess.run(
        [sys.executable, "-m", "thermocline.cli.main", "-C", project, "--json", *arguments],
        capture_output=True, text=True, timeout=100, env=environment({}),
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout)


def deletes(house: Lakehouse, table: str) -> int:
    """How many delete files main has."""
    return int(house.lake.iceberg(table).inspect.delete_files().num_rows)


def test_a_copied_shop_is_refused_and_whole_once_it_is_relocated(
    city: Path, tmp_path: Path
) -> None:
    house = opened(city, ENGINE)
    assert deletes(house, ORDERS) > 0
    before = {engine: contents(house, engine) for engine in ("duckdb", "pyiceberg")}
    snapshots = {table: history(house.lake, table) for table in house.lake.tables()}
    refs = {table: state.refs for table, state in house.lake.states().items()}
    assert {"before", "env-dev"} <= set(refs[REVENUE])
    house.lake.disconnect()
    original = photo(city)
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-r", city, copy], check=True)
    untouched = files_of(copy)
    for command in COMMANDS:
        code, said = failed(copy, *command)
        assert (code, said["error"]["code"]) == (2, "elsewhere"), (command, said)
        assert "thermo relocate" in said["error"]["next_step"]
    code, findings = failed(copy, "doctor")
    [finding] = [each for each in findings if each["status"] == "fail"]
    assert code == 1
    assert "thermo relocate" in finding["next_step"]
    assert files_of(copy) == untouched
    assert photo(city) == original

    done = thermo(copy, ENGINE, "relocate")
    assert {each["table"]: each["snapshots"] for each in done["tables"]} == {
        table: len(found) for table, found in snapshots.items()
    }
    assert sum(each["copied"] for each in done["tables"]) == 0
    here = opened(copy, ENGINE)
    assert {table: state.refs for table, state in here.lake.states().items()} == refs
    assert {table: history(here.lake, table) for table in here.lake.tables()} == snapshots
    assert contents(here, "duckdb") == before["duckdb"]
    assert contents(here, "pyiceberg") == before["pyiceberg"]
    on_spark(here, before["duckdb"])
    assert names(here.lake, f"{city}/") == []
    assert all(finding.status == "ok" for finding in here.doctor())

    assert sum(target.files for target in here.ingest().targets) == 0, "nothing is landed again"
    assert here.run().published is None
    generate(copy, "--change", "--share", "0.05")
    assert sum(target.files for target in here.ingest().targets) > 0
    ran = {step.table for step in here.run().steps}
    assert {ORDERS, REVENUE} <= ran
    changed = contents(here, "duckdb")
    assert changed[ORDERS] != before["duckdb"][ORDERS]
    on_spark(here, {ORDERS: changed[ORDERS]})
    here.table(REVENUE).rollback("before")
    here.run()
    assert contents(here, "duckdb")[REVENUE] == changed[REVENUE]
    assert {each.table for each in here.diff("dev")} == {REVENUE}
    here.lake.disconnect()
    assert photo(city) == original
    there = opened(city, ENGINE)
    assert all(finding.status == "ok" for finding in there.doctor()), "no file of the copy is there"
    there.lake.disconnect()


def on_spark(house: Lakehouse, wanted: dict[str, list[str]]) -> None:
    """Hold tables as Spark reads them against the rows that they are to hold."""
    for table, rows in wanted.items():
        columns = [c for c, *_ in house.table(table).schema() if c not in WHEN_IT_RAN]
        listed = ", ".join(f"`{column}`" for column in columns)
        found = house.lake.spark.query(f"SELECT {listed} FROM {CATALOG}.{table}")
        assert sorted(map(str, found.to_pylist())) == rows, table


def files_of(copy: Path) -> dict[str, Any]:
    """The files of a copy's lake, but for those that SQLite has only while it is asked."""
    return {path: each for path, each in photo(copy / "lake").items() if "db-" not in path}


def test_a_shop_that_was_moved_is_whole_once_it_is_relocated(city: Path, tmp_path: Path) -> None:
    there, moved, link = (tmp_path / name for name in ("there", "moved", "link"))
    shutil.copytree(city, there)
    subprocess.run(["mv", there, moved], check=True)
    link.symlink_to(moved)
    assert failed(link, "tables")[1]["error"]["code"] == "elsewhere"
    assert len(thermo(link, ENGINE, "relocate")["tables"]) > 10
    assert thermo(moved, ENGINE, "relocate")["tables"] == []
    wanted = contents(opened(city, ENGINE), "duckdb")[ORDERS]
    for project in (moved, link):
        house = opened(project, ENGINE)
        assert contents(house, "duckdb")[ORDERS] == wanted
        assert sum(target.files for target in house.ingest().targets) == 0
        house.lake.disconnect()
