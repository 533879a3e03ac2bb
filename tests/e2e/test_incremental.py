"""Work grows with the change, and gives what computing everything anew would give."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.shop_project import contents, generate, make_shop, opened

ORDERS = ("--orders", "1500", "--customers", "150", "--products", "40", "--events", "600")


def test_after_a_change_the_shop_is_what_a_full_refresh_makes_of_it(tmp_path: Path) -> None:
    project = make_shop(tmp_path / "shop", *ORDERS)
    house = opened(project, {})
    house.ingest()
    house.run()
    generate(project, "--change", "--share", "0.03")
    house.ingest()
    ways = {step.table: step.way for step in house.run().steps}
    changed = contents(house, "duckdb")
    assert ways["silver.orders"] == ways["silver.customers"] == "events"
    assert ways["gold.daily_revenue"] == ways["gold.daily_metrics"] == "touched"

    house.run(full_refresh=True)

    assert contents(house, "duckdb") == changed
    house.lake.duck.stop()
