"""A project of the best-known shape, unchanged, from seeds to tested tables in the lake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import clean_environment

from thermocline.api import Lakehouse
from thermocline.dbt import DbtReport
from thermocline.errors import CheckFailed, Permanent
from thermocline.lake import bookmark as bookmarks

pytest.importorskip("dbt.adapters.duckdb", reason="the extra `dbt` is not installed")

from tests.integration.dbt.lakehouse import (
    contents,
    dbt,
    make,
    opened,
    pointers,
    replace,
    rows,
)

S = "jaffle_shop"
RAW = {f"{S}.raw_customers", f"{S}.raw_orders", f"{S}.raw_payments"}
STAGED = {f"{S}.stg_customers", f"{S}.stg_orders", f"{S}.stg_payments"}
MARTS = {f"{S}.customers", f"{S}.orders"}
POINTS = ("dbt.prepared", "dbt.ran", "dbt.landed:5", "publish.staged:4")


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Lakehouse, DbtReport]]:
    """A lake in which the project was built once. Tests that use it leave main as it is."""
    folder = make(tmp_path_factory.mktemp("dbt") / "lakehouse")
    with opened(folder) as house:
        yield house, dbt(house, "build")


def test_every_relation_is_a_table_of_the_lake(first: tuple[Lakehouse, DbtReport]) -> None:
    house, report = first
    assert set(house.lake.tables()) == RAW | STAGED | MARTS
    assert set(report.as_dict()["published"]) == RAW | STAGED | MARTS
    customers = "select customer_id, number_of_orders, customer_lifetime_value from {}"
    expected = [(1, 2, 28.0), (2, 1, 26.0), (3, 2, 20.0), (4, None, None)]
    assert rows(house, customers.format(f"{S}.customers") + " order by 1") == expected
    orders = house.lake.iceberg(f"{S}.orders").scan().to_arrow().sort_by("order_id").to_pylist()
    assert [order["amount"] for order in orders] == [10.0, 20.0, 18.0, 26.0, 0.0]
    assert [order["coupon_amount"] for order in orders] == [0.0, 0.0, 1.0, 0.0, 0.0]


def test_a_derived_contract_has_the_projects_words(first: tuple[Lakehouse, DbtReport]) -> None:
    house, _ = first
    state = house.lake.state(f"{S}.customers")
    docs = {field["name"]: field.get("doc") for field in state.schema["fields"]}
    assert docs["customer_id"] == "The customer's number."
    assert state.properties["thermocline.contract"] == "model.jaffle_shop.customers 1.0.0"


def test_each_commit_says_what_it_was_made_from(first: tuple[Lakehouse, DbtReport]) -> None:
    house, report = first
    heads = {table: house.lake.state(table).head() for table in house.lake.tables()}
    orders = house.lake.state(f"{S}.orders")
    assert bookmarks.read(orders) == {
        f"{S}.stg_orders": heads[f"{S}.stg_orders"],
        f"{S}.stg_payments": heads[f"{S}.stg_payments"],
        "@dbt": "model.jaffle_shop.orders",
    }
    assert orders.snapshot(heads[f"{S}.orders"] or 0).summary[bookmarks.RUN] == report.run
    assert sorted(report.lineage) == sorted(
        [(f"{S}.raw_{name}", f"{S}.stg_{name}") for name in ("customers", "orders", "payments")]
        + [(f"{S}.stg_{name}", f"{S}.orders") for name in ("orders", "payments")]
        + [(table, f"{S}.customers") for table in STAGED]
    )


def test_the_projects_tests_are_in_the_report(first: tuple[Lakehouse, DbtReport]) -> None:
    _, report = first
    assert len(report.tests) == 16
    assert {test.status for test in report.tests} == {"pass"}
    (relationship,) = [test for test in report.tests if test.name.startswith("relationships")]
    assert relationship.on == (f"{S}.customers", f"{S}.orders")


def test_built_again_nothing_is_written(first: tuple[Lakehouse, DbtReport]) -> None:
    house, _ = first
    before = pointers(house)
    report = dbt(house, "build")
    assert (report.published, {each.changed for each in report.tables}) == (None, {False})
    assert pointers(house) == before


def test_a_failed_test_publishes_nothing(first: tuple[Lakehouse, DbtReport]) -> None:
    house, _ = first
    seed = house.settings.project / "jaffle_shop" / "seeds" / "raw_orders.csv"
    before = pointers(house)
    replace(seed, "4,2,2026-01-05,placed", "4,2,2026-01-05,lost")
    try:
        with pytest.raises(CheckFailed) as failed:
            dbt(house, "build")
    finally:
        replace(seed, "lost", "placed")
    assert [node["failures"] for node in failed.value.details["nodes"]] == [1]
    assert "accepted_values_stg_orders_status" in failed.value.cause
    assert pointers(house) == before


def test_a_failed_model_publishes_nothing_of_the_others(first: tuple[Lakehouse, DbtReport]) -> None:
    house, _ = first
    project = house.settings.project / "jaffle_shop"
    before = pointers(house)
    replace(project / "models" / "customers.sql", "customers.last_name", "customers.surname")
    replace(project / "seeds" / "raw_customers.csv", "Ada", "Adam")
    try:
        with pytest.raises(Permanent, match="surname"):
            dbt(house, "build", "--exclude-resource-type", "test")
    finally:
        replace(project / "models" / "customers.sql", "customers.surname", "customers.last_name")
        replace(project / "seeds" / "raw_customers.csv", "Adam", "Ada")
    assert pointers(house) == before


def test_only_tests_run_on_what_is_published(first: tuple[Lakehouse, DbtReport]) -> None:
    house, _ = first
    before = pointers(house)
    report = dbt(house, "test", "--select", "orders")
    assert [len(report.tests), report.tables, report.published] == [6, (), None]
    assert pointers(house) == before


def thermo(folder: Path, *words: str, crash: str = "") -> subprocess.CompletedProcess[str]:
    environ = clean_environment() | ({"THERMOCLINE_CRASH_AT": crash} if crash else {})
    environ |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "thermocline.cli.main", *words]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=500
    )


def test_the_command_gives_dbts_words_to_people_and_json_to_programs(
    first: tuple[Lakehouse, DbtReport],
) -> None:
    house, _ = first
    words = ("dbt", "test", "--project-dir", "jaffle_shop", "-s", "customers", "--json")
    done = thermo(house.settings.project, *words)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert sorted(test["name"] for test in report["tests"]) == [
        "not_null_customers_customer_id",
        "relationships_orders_customer_id__customer_id__ref_customers_",
        "unique_customers_customer_id",
    ]
    assert "PASS unique_customers_customer_id" in done.stderr


@pytest.mark.parametrize("point", POINTS)
def test_killed_it_leaves_main_alone_and_is_done_again(
    first: tuple[Lakehouse, DbtReport], point: str
) -> None:
    house, _ = first
    project = house.settings.project
    seed = project / "jaffle_shop" / "seeds" / "raw_payments.csv"
    before, text = contents(house), seed.read_text()
    no_tests = ("--exclude-resource-type", "test")
    seed.write_text(text.replace("2,2,credit_card,2000", "2,2,credit_card,9900"))
    try:
        words = ("dbt", "build", "--project-dir", "jaffle_shop", *no_tests)
        assert thermo(project, *words, crash=point).returncode == -signal.SIGKILL
        assert contents(house) == before
        again = dbt(house, "build", *no_tests)
    finally:
        seed.write_text(text)
    changed = {each.table: (each.added, each.removed) for each in again.tables if each.changed}
    touched = ("raw_payments", "stg_payments", "orders", "customers")
    assert changed == {f"{S}.{name}": (1, 1) for name in touched}
    assert rows(house, f"select amount from {S}.orders where order_id = 2") == [(99.0,)]
    assert list((project / ".thermocline" / "dbt").iterdir()) == []
    house.rollback(again.run)
    assert contents(house) == before
