"""Work grows with the change and gives what computing everything anew would, on any engine."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.shop_project import contents, copy_of, generate, make_shop, opened

ORDERS = ("--orders", "1500", "--customers", "150", "--products", "40", "--events", "600")
PYTHON = {"silver.orders", "gold.customer_initials"}


def test_after_a_change_the_shop_is_what_a_full_refresh_makes_of_it(tmp_path: Path) -> None:
    project = make_shop(tmp_path / "shop", *ORDERS)
    house = opened(project, {"THERMOCLINE_TRANSFORM__ENGINE": "auto"})
    house.ingest()
    house.run()
    generate(project, "--change", "--share", "0.03")
    house.ingest()
    steps = house.run().steps
    changed = contents(house, "duckdb")
    ways = {step.table: step.refresh_mode for step in steps}
    assert ways["silver.orders"] == ways["silver.customers"] == "events"
    assert ways["gold.daily_revenue"] == ways["gold.daily_metrics"] == "touched"
    assert {step.table for step in steps if step.engine == "spark"} == PYTHON

    house.run(full_refresh=True)
    assert contents(house, "duckdb") == changed
    house.lake.duck.stop()

    other = opened(copy_of(project, tmp_path / "other"), {})
    other.ingest()
    assert {step.engine for step in other.run().steps} == {"spark"}
    assert contents(other, "duckdb") == changed
    other.lake.duck.stop()
