"""The first load: repeatable, complete, and exactly as bad as it says."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from datetime import date
from pathlib import Path

import pytest

TABLES = ("customers", "products", "orders", "events")


def digests(folder: Path) -> dict[str, str]:
    """Every landing file with the hash of its bytes."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def test_default_numbers(first_load):
    _, summary = first_load
    assert {name: dict(table.roles) for name, table in summary.tables.items()} == {
        "customers": {
            "row": 1000, "update": 41, "duplicate": 5,
            "malformed": 1, "missing_key": 1, "bad_email": 1, "unknown_segment": 1,
        },
        "products": {
            "row": 500, "duplicate": 2, "malformed": 1, "missing_key": 1, "negative_price": 1,
        },
        "orders": {
            "row": 5000, "delete": 12, "duplicate": 25, "out_of_order": 50,
            "malformed": 3, "missing_key": 2, "negative_amount": 2, "unknown_status": 2,
        },
        "events": {
            "row": 40000, "duplicate": 120,
            "missing_key": 2, "missing_user": 2, "unknown_type": 2,
        },
    }  # fmt: skip
    assert {name: len(table.files) for name, table in summary.tables.items()} == {
        "customers": 1, "products": 1, "orders": 3, "events": 1,
    }  # fmt: skip
    assert sum(summary.tables["orders"].bad.values()) == 9


@pytest.mark.parametrize("table", TABLES)
def test_files_hold_what_the_summary_says(first_load, landing, table):
    _, summary = first_load
    landed = landing[table]
    assert dict(landed.bad) == summary.tables[table].bad
    assert len(landed.rows) == summary.tables[table].rows


def test_same_seed_same_bytes(generator, tmp_path):
    sizes = {"customers": 60, "products": 20, "orders": 300, "events": 500}
    for name, seed in (("one", 7), ("two", 7), ("three", 8)):
        generator.generate(tmp_path / name, seed=seed, **sizes)
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    other = digests(tmp_path / "three")
    assert all(other[name] != digest for name, digest in digests(tmp_path / "one").items())


def test_a_second_generation_replaces_the_first(generator, tmp_path):
    generator.generate(tmp_path, customers=60, products=20, orders=300, events=500)
    generator.change(tmp_path)
    generator.generate(tmp_path, customers=60, products=20, orders=2, events=500)
    assert sorted(path.name for path in (tmp_path / "landing" / "orders").iterdir()) == [
        "orders-000-0001.jsonl",
        "orders-000-0002.jsonl",
    ]


def test_ninety_one_days_up_to_the_last(landing, read, generator, tmp_path):
    days = {row["order_date"].date() for row in landing["orders"].rows}
    assert (min(days), max(days), len(days)) == (date(2026, 8, 16), date(2026, 11, 14), 91)
    clicks = {row["event_ts"].date() for row in landing["events"].rows}
    assert clicks == days
    generator.generate(tmp_path, 7, 20, 20, 200, 200, until=date(2024, 2, 29))
    leap = {row["order_date"].date() for row in read(tmp_path, "orders").rows}
    assert max(leap) == date(2024, 2, 29)


def test_identifiers(landing):
    orders = landing["orders"].rows
    known = {row["customer_id"] for row in landing["customers"].rows}
    sold = {row["product_id"] for row in landing["products"].rows}
    assert {row["order_id"] for row in orders} == {f"ORD-{n:09d}" for n in range(5000)}
    assert known == {f"CUST-{n:08d}" for n in range(1000)}
    assert {row["customer_id"] for row in orders} <= known
    assert {item["product_id"] for row in orders for item in row["items"]} <= sold
    clicks = landing["events"].rows
    assert {row["user_id"] for row in clicks} <= known
    assert {row["event_id"] for row in clicks} == {f"EVT-{n:012d}" for n in range(40000)}


def test_the_log_position_follows_the_source(landing):
    for table, key in (("orders", "order_id"), ("customers", "customer_id")):
        rows = landing[table].rows
        by_position = {row["_lsn"]: row for row in rows}
        distinct = {repr(sorted(row.items(), key=lambda item: item[0])) for row in rows}
        assert len(by_position) == len(distinct), "only exact duplicates share a position"
        ordered = [by_position[lsn]["updated_at"] for lsn in sorted(by_position)]
        assert ordered == sorted(ordered)
        versions = defaultdict(list)
        for row in by_position.values():
            versions[row[key]].append(row)
        assert max(len(rows) for rows in versions.values()) > 1


def test_old_versions_come_after_new_ones(first_load, landing):
    _, summary = first_load
    seen, late = {}, 0
    for row in landing["orders"].rows:
        late += row["_lsn"] < seen.get(row["order_id"], 0)
        seen[row["order_id"]] = max(row["_lsn"], seen.get(row["order_id"], 0))
    assert 0 < late <= summary.tables["orders"].roles["out_of_order"]


def test_totals_are_what_the_items_cost(landing, plain):
    for row in landing["orders"].rows:
        assert row["total_amount"] == plain.amounts(row)["subtotal"], row["order_id"]


def test_orders_live_a_plausible_life(landing, plain):
    rows = plain.newest(landing["orders"].rows, "order_id", "_lsn").values()
    assert len(rows) == 4988
    for row in rows:
        assert (row["shipped_date"] is not None) == (
            row["order_status"] in {"shipped", "delivered"}
        )
        assert row["shipped_date"] is None or row["shipped_date"] > row["order_date"]
        assert row["updated_at"] >= row["order_date"]
    old = [row["order_status"] for row in rows if row["order_date"].date() < date(2026, 11, 1)]
    assert set(old) == {"delivered", "cancelled"}
    assert 0.05 < old.count("cancelled") / len(old) < 0.09


def test_parquet_orders_are_the_same_orders(generator, read, plain, tmp_path):
    sizes = {"customers": 60, "products": 20, "orders": 400, "events": 10}
    found = []
    for form in ("jsonl", "parquet"):
        summary = generator.generate(tmp_path / form, orders_format=form, **sizes)
        landed = read(tmp_path / form, "orders")
        assert dict(landed.bad) == summary.tables["orders"].bad
        found.append(plain.newest(landed.rows, "order_id", "_lsn"))
    assert found[0] == found[1]


def test_rows_do_not_depend_on_how_they_are_cut(generator, read, plain, tmp_path, monkeypatch):
    """Whoever asks for more at a time must get the same rows, or millions would differ from few."""
    sizes = {"customers": 60, "products": 20, "orders": 400, "events": 900}
    generator.generate(tmp_path / "whole", **sizes)
    monkeypatch.setattr(generator.history, "PIECE", 37)
    generator.generate(tmp_path / "cut", **sizes)
    for table, key in (("orders", "order_id"), ("events", "event_id")):
        order = "_lsn" if table == "orders" else "event_ts"
        whole, cut = (
            plain.newest(read(tmp_path / name, table).rows, key, order) for name in ("whole", "cut")
        )
        assert whole == cut


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"customers": 0}, "customers must be at least 1"),
        ({"products": 0}, "products must be at least 1"),
        ({"orders": 0}, "orders must be at least 1"),
        ({"orders_format": "avro"}, "orders_format must be jsonl or parquet, not 'avro'"),
    ],
)
def test_what_cannot_be_generated(generator, tmp_path, wrong, said):
    with pytest.raises(ValueError, match=said):
        generator.generate(tmp_path, **wrong)
    assert list(tmp_path.iterdir()) == []


def test_the_smallest_shop_lives(generator, read, tmp_path):
    generator.generate(tmp_path, customers=1, products=1, orders=1, events=1)
    assert [row["order_id"] for row in read(tmp_path, "orders").rows] == ["ORD-000000000"]
    generator.change(tmp_path, share=1.0)
    assert {row["order_id"] for row in read(tmp_path, "orders").rows} > {"ORD-000000000"}


def test_the_command(generator, tmp_path, capsys):
    arguments = ["--folder", str(tmp_path), "--customers", "30", "--orders", "100"]
    assert generator.main([*arguments, "--products", "10", "--events", "50"]) == 0
    assert "orders" in capsys.readouterr().out
    assert generator.main(["--folder", str(tmp_path), "--change"]) == 0
    assert (tmp_path / "landing" / "orders" / "orders-001-0001.jsonl").exists()
    assert generator.main(["--folder", str(tmp_path / "nowhere"), "--change"]) == 2
    assert "run generate first" in capsys.readouterr().err
