"""The shop's models as Dagster assets, loaded and materialised in this process."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from tests.e2e.shop_project import environment, make_shop

import thermocline
from thermocline.api import Lakehouse

dg = pytest.importorskip("dagster", reason="the extra `dagster` is not installed")

TINY = ("--customers", "20", "--products", "20", "--orders", "30", "--events", "50")


@pytest.fixture(autouse=True)
def kept_signals() -> Iterator[None]:
    """Restore the signal handlers that Dagster replaces: later tests start processes."""
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
    yield
    for each, handler in before.items():
        signal.signal(each, handler)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lakehouse]:
    """A tiny shop that has products, customers and orders, of which nothing is computed yet."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in environment({}).items():
            patch.setenv(name, value)
        folder = make_shop(tmp_path_factory.mktemp("dagster") / "shop", *TINY)
        house = thermocline.open(folder)
        house.ingest(["products", "customers", "orders"])
        yield house
        house.lake.duck.stop()


def definitions(shop: Lakehouse) -> Any:
    from thermocline.dagster import definitions

    return definitions(shop.settings.project, since="2025-01-01")


def materialise(defs: Any, table: str, **more: Any) -> Any:
    from thermocline.dagster import asset_key

    job = defs.resolve_implicit_global_asset_job_def()
    instance = dg.DagsterInstance.ephemeral()
    return job.execute_in_process(
        asset_selection=[asset_key(table)], instance=instance, raise_on_error=False, **more
    )


def verdicts(result: Any) -> dict[str, bool]:
    return {each.check_name: each.passed for each in result.get_asset_check_evaluations()}


def test_every_model_is_an_asset_after_what_it_reads(shop: Lakehouse) -> None:
    from thermocline.dagster import asset_key

    graph = definitions(shop).resolve_asset_graph()
    for table, model in shop.models.items():
        assert graph.get(asset_key(table)).parent_keys >= {
            asset_key(source) for source in model.sources
        }
    # Its rules refer to customers, so they must be there.
    assert asset_key("silver.customers") in graph.get(asset_key("silver.orders")).parent_keys
    assert graph.materializable_asset_keys == {asset_key(table) for table in shop.models}
    orders = graph.get(asset_key("silver.orders")).partitions_def
    assert isinstance(orders, dg.DailyPartitionsDefinition)
    assert orders.get_first_partition_key() == "2025-01-01"
    assert graph.get(asset_key("silver.products")).partitions_def is None


def test_a_model_is_computed_and_its_rules_are_the_assets_checks(shop: Lakehouse) -> None:
    result = materialise(definitions(shop), "silver.products")
    assert result.success
    (event,) = result.get_asset_materialization_events()
    metadata = event.materialization.metadata
    assert metadata["snapshot"].value == str(shop.lake.state("silver.products").head())
    assert metadata["dagster/row_count"].value == 20
    found = verdicts(result)
    assert found["missing_sku"] and found["category_is_one_of_the_eight"]
    assert len(found) == 11 and all(found.values())


def test_a_broken_rule_fails_the_asset_and_its_check(shop: Lakehouse) -> None:
    contract = shop.settings.project / "contracts" / "silver" / "products.odcs.yaml"
    model = shop.settings.project / "models" / "silver" / "products.sql"
    before = contract.read_text(), model.read_text()
    materialise(definitions(shop), "silver.products")
    head = shop.lake.state("silver.products").head()
    contract.write_text(re.sub(r"validValues: \[[^]]*\]", "validValues: [Books]", before[0]))
    model.write_text(before[1] + "-- another model, so that it is computed again\n")
    try:
        result = materialise(definitions(shop), "silver.products")
    finally:
        contract.write_text(before[0])
        model.write_text(before[1])
    assert not result.success
    assert [name for name, passed in verdicts(result).items() if not passed] == [
        "category_is_one_of_the_eight"
    ]
    assert shop.lake.state("silver.products").head() == head


def test_a_partition_is_there_once_it_is_materialised(shop: Lakehouse) -> None:
    days = "select distinct cast(order_date as date) from silver.orders"
    defs = definitions(shop)
    assert materialise(defs, "silver.customers").success
    result = materialise(defs, "silver.orders", partition_key="2025-06-01")
    assert result.success
    (event,) = result.get_asset_materialization_events()
    assert event.partition == "2025-06-01"
    assert shop.query(days).rows


def test_a_partition_that_is_materialised_again_is_computed_again(shop: Lakehouse) -> None:
    defs = definitions(shop)
    assert materialise(defs, "silver.customers").success
    assert materialise(defs, "silver.orders", partition_key="2025-06-01").success
    assert materialise(defs, "gold.daily_revenue", partition_key="2026-06-01").success
    before = shop.lake.state("gold.daily_revenue").head()
    revenue = "select day, orders, revenue from gold.daily_revenue order by day"
    rows = shop.query(revenue).rows
    last = str(rows[-1][0])
    assert materialise(defs, "gold.daily_revenue", partition_key=last).success
    state = shop.lake.state("gold.daily_revenue")
    made = state.between(before, state.head())
    assert made and {each.count("added-records") for each in made} == {0, 1}
    assert shop.query(revenue).rows == rows


def test_names_of_checks_are_what_dagster_takes() -> None:
    from thermocline.contract import Rule
    from thermocline.dagster import check_names

    rules = [Rule("sql", name="50 % off"), Rule("sql", name="50 € off"), Rule("missing", ("a.b",))]
    assert check_names(rules) == ["50_off", "50_off__2", "missing_a_b"]
