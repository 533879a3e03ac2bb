"""Batches of change: realistic, repeatable, and told apart by what they are."""

from __future__ import annotations

import statistics
from datetime import UTC, date, datetime, timedelta

import pytest
from _pytest.tmpdir import TempPathFactory

BATCHES = 4
SIZES = {"customers": 400, "products": 100, "orders": 3000, "events": 6000}


@pytest.fixture(scope="module")
def story(generator, tmp_path_factory: TempPathFactory):
    """A shop after four days of change, and what each day's summary said."""
    folder = tmp_path_factory.mktemp("story")
    generator.generate(folder, **SIZES)
    return folder, [generator.change(folder, share=0.02) for _ in range(BATCHES)]


@pytest.mark.parametrize("table", ["customers", "products", "orders", "events"])
def test_each_batch_holds_what_its_summary_says(story, read, table):
    folder, summaries = story
    for summary in summaries:
        landed = read(folder, table, summary.batch)
        assert len(landed.rows) == summary.tables[table].rows
        assert dict(landed.bad) == summary.tables[table].bad
        assert sum(landed.bad.values()) > 0


def test_every_kind_of_change_happens(story):
    _, summaries = story
    orders = summaries[0].tables["orders"].roles
    assert {"new", "late", "update", "out_of_order", "duplicate", "delete"} <= set(orders)
    assert orders["new"] + orders["late"] + orders["update"] + orders["delete"] == 60
    people = summaries[0].tables["customers"].roles
    assert {"new", "late", "update", "duplicate", "delete"} <= set(people)


def test_updates_keep_to_recent_orders(story, read):
    folder, _ = story
    first = {row["order_id"]: row for row in read(folder, "orders", 0).rows if row["_op"] == "r"}
    changed = [row for row in read(folder, "orders", 1).rows if row["_op"] == "u"]
    ages = [(date(2026, 11, 15) - row["order_date"].date()).days for row in changed]
    assert statistics.median(ages) <= 7
    assert max(ages) > 20, "a few old orders are corrected, too"
    for row in changed:
        before = first[row["order_id"]]
        assert row["_lsn"] > before["_lsn"]
        assert row["updated_at"].date() == date(2026, 11, 15)
        assert row["order_date"] == before["order_date"]
        assert row["items"] == before["items"]
    assert any(row["order_status"] != first[row["order_id"]]["order_status"] for row in changed)


def test_late_orders_were_placed_before(story, read):
    folder, _ = story
    known = {row["order_id"] for row in read(folder, "orders", 0).rows}
    new = [row for row in read(folder, "orders", 1).rows if row["order_id"] not in known]
    late = {row["order_id"] for row in new if row["order_date"].date() < date(2026, 11, 15)}
    assert len({row["order_id"] for row in new} - late) == 15
    assert len(late) == 3


def test_the_dead_stay_dead(story, read):
    folder, summaries = story
    for table, key in (("orders", "order_id"), ("customers", "customer_id")):
        gone = {}
        for batch in range(BATCHES + 1):
            for row in read(folder, table, batch).rows:
                if row["_op"] == "d":
                    assert row[key] not in gone, "nothing is deleted twice"
                    gone[row[key]] = row["_lsn"]
        expected = sum(s.tables[table].roles["delete"] for s in summaries)
        assert len(gone) == expected + (7 if table == "orders" else 0)
        for row in read(folder, table).rows:
            assert row["_lsn"] <= gone.get(row[key], row["_lsn"])


def test_late_profiles_fall_between_versions_we_have(story, read):
    folder, _ = story
    known = {}
    for row in read(folder, "customers", 0).rows:
        known.setdefault(row["customer_id"], set()).add(row["updated_at"])
    late = [
        row
        for row in read(folder, "customers", 1).rows
        if row["_op"] == "u" and row["updated_at"].date() < date(2026, 11, 15)
    ]
    assert len(late) == 2
    for row in late:
        versions = known[row["customer_id"]]
        assert min(versions) <= row["updated_at"] < max(versions)


def test_late_clicks(story, read):
    folder, _ = story
    midnight = datetime(2026, 11, 15, tzinfo=UTC)
    known = {row["event_id"] for row in read(folder, "events", 0).rows}
    rows = {row["event_id"]: row for row in read(folder, "events", 1).rows}
    assert len(rows) == 120
    assert not known & set(rows)
    late = [row for row in rows.values() if row["event_ts"] < midnight]
    assert len(late) == 12
    assert min(row["event_ts"] for row in late) >= midnight - timedelta(days=3)


def test_prices_change(story, read):
    folder, _ = story
    before = {row["product_id"]: row for row in read(folder, "products", 0).rows}
    rows = read(folder, "products", 1).rows
    assert all(row["updated_at"] > before[row["product_id"]]["updated_at"] for row in rows)
    assert any(row["price"] != before[row["product_id"]]["price"] for row in rows)


def test_a_batch_can_be_made_again(story, generator, tmp_path):
    folder, _ = story
    generator.generate(tmp_path, **SIZES)
    generator.change(tmp_path, share=0.02)
    generator.change(tmp_path, share=0.02, batch=1)
    names = sorted(path.name for path in (tmp_path / "landing").glob("*/*-001-*"))
    assert len(names) == 4
    for name in names:
        table = name.split("-")[0]
        one, two = (root / "landing" / table / name for root in (folder, tmp_path))
        assert one.read_bytes() == two.read_bytes()


def test_what_cannot_be_changed(generator, tmp_path):
    with pytest.raises(ValueError, match="run generate first"):
        generator.change(tmp_path)
    generator.generate(tmp_path, customers=20, products=5, orders=50, events=20)
    with pytest.raises(ValueError, match="batch 3 needs batch 2: the next one is 1"):
        generator.change(tmp_path, batch=3)
    with pytest.raises(ValueError, match="generated with seed 7, not 8"):
        generator.change(tmp_path, seed=8)
    with pytest.raises(ValueError, match="share must be more than 0 and at most 1"):
        generator.change(tmp_path, share=1.5)
