"""Runs: what is stale, how it is computed, what is published, and what happens when main moves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import thermocline as tc
from thermocline.api import Lakehouse
from thermocline.errors import CheckFailed, ContractError, NotFound, ThermoclineError
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.naming import new_run_id
from thermocline.transform import runner

RAW = """
apiVersion: v3.1.0
kind: DataContract
id: t.bronze.raw
version: 1.0.0
status: active
schema:
  - name: raw
    properties:
      - {name: id, logicalType: string, physicalType: string}
      - {name: day, logicalType: date, physicalType: date}
      - {name: amount, logicalType: number, physicalType: "decimal(12,2)"}
      - {name: seq, logicalType: integer, physicalType: long}
      - {name: op, logicalType: string, physicalType: string}
customProperties:
  - {property: write, value: append}
"""
ORDERS = """
apiVersion: v3.1.0
kind: DataContract
id: t.silver.orders
version: 1.0.0
status: active
schema:
  - name: orders
    properties:
      - {name: id, logicalType: string, physicalType: string, required: true, primaryKey: true}
      - {name: day, logicalType: date, physicalType: date}
      - {name: amount, logicalType: number, physicalType: "decimal(12,2)"}
      - {name: seq, logicalType: integer, physicalType: long}
    quality:
      - {type: sql, query: "select count(*) from {object} where amount < 0", mustBe: 0,
         name: no negative amount}
customProperties:
  - {property: write, value: merge}
  - {property: orderBy, value: seq}
  - {property: deleteWhen, value: "op = 'd'"}
  - {property: updates, value: merge-on-read}
"""
DAILY = """
apiVersion: v3.1.0
kind: DataContract
id: t.gold.daily
version: 1.0.0
status: active
schema:
  - name: daily
    properties:
      - {name: day, logicalType: date, physicalType: date, partitioned: true}
      - {name: orders, logicalType: integer, physicalType: long}
      - {name: revenue, logicalType: number, physicalType: "decimal(38,2)"}
customProperties:
  - {property: write, value: partitions}
"""
TOTALS = """
apiVersion: v3.1.0
kind: DataContract
id: t.gold.totals
version: 1.0.0
status: active
schema:
  - name: totals
    properties:
      - {name: id, logicalType: string, physicalType: string, required: true, primaryKey: true}
      - {name: days, logicalType: integer, physicalType: long}
customProperties:
  - {property: write, value: merge}
"""
MODELS = {
    "silver/orders.sql": "select id, day, amount, seq, op from bronze.raw",
    "gold/daily.sql": "select day, count(*) as orders,\n"
    "cast(sum(amount) as decimal(38,2)) as revenue from silver.orders group by day",
    "gold/totals.sql": "select id, count(distinct day) as days from silver.orders group by id",
}


@pytest.fixture(params=["spark", "duckdb"])
def house(
    project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Lakehouse]:
    """A small project: bronze.raw → silver.orders → gold.daily and gold.totals, on each engine."""
    monkeypatch.setenv("THERMOCLINE_TRANSFORM__ENGINE", request.param)
    for name, text in {"bronze/raw": RAW, "silver/orders": ORDERS, "gold/daily": DAILY,
                       "gold/totals": TOTALS}.items():  # fmt: skip
        path = project / "contracts" / f"{name}.odcs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name, text in MODELS.items():
        path = project / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    opened = tc.open(project)
    opened.lake.ensure(opened.contracts["bronze.raw"])
    yield opened
    opened.lake.duck.stop()


def land(house: Lakehouse, *rows: tuple[str, str, str, int, str]) -> None:
    """Put raw rows into bronze: id, day, amount, seq, op."""
    ids, days, amounts, seqs, ops = zip(*rows, strict=True)
    ready = pa.table(
        {
            "id": ids,
            "day": [date.fromisoformat(day) for day in days],
            "amount": pa.array(map(Decimal, amounts), pa.decimal128(12, 2)),
            "seq": seqs,
            "op": ops,
        }
    )
    draft = house.lake.draft(new_run_id())
    draft.append("bronze.raw", ready, bookmark={"files": {}}, operation="append")
    draft.publish()


def rows(house: Lakehouse, sql: str, **options: Any) -> list[tuple[Any, ...]]:
    return [tuple(str(v) for v in row) for row in house.query(sql, **options).rows]


def daily(house: Lakehouse, **options: Any) -> list[tuple[Any, ...]]:
    return rows(house, "select day, orders, revenue from gold.daily order by day", **options)


def fresh(house: Lakehouse) -> Lakehouse:
    """The same project opened anew, as the next command would."""
    return tc.open(house.settings.project)


def test_a_run_computes_publishes_and_then_has_nothing_to_do(house: Lakehouse) -> None:
    land(house, ("a", "2026-01-01", "10.00", 1, "c"), ("b", "2026-01-02", "5.50", 2, "c"))
    report = house.run()
    assert [step.table for step in report.steps] == ["silver.orders", "gold.daily", "gold.totals"]
    assert set(report.published.tables) >= {"silver.orders", "gold.daily", "gold.totals"}
    assert daily(house) == [("2026-01-01", "1", "10.00"), ("2026-01-02", "1", "5.50")]
    again = fresh(house)
    assert again.plan().steps == ()
    assert again.run().published is None
    assert not again.lake.spark.started


@pytest.mark.parametrize("house", ["duckdb"], indirect=True)
def test_a_run_on_duckdb_needs_no_java(project: Path, house: Lakehouse) -> None:
    without = {**os.environ, "JAVA_HOME": "/nowhere", "PATH": "/nowhere"}
    for seq in range(2):
        land(house, ("a", f"2026-01-0{seq + 1}", "10.00", seq, "c"))
        done = subprocess.run(
            [sys.executable, "-m", "thermocline.cli.main", "--project", project, "--json", "run"],
            env=without, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
    assert daily(house) == [("2026-01-02", "1", "10.00")]
    assert not house.lake.spark.started


@pytest.mark.parametrize("house", ["duckdb"], indirect=True)
def test_what_duckdb_cannot_compute_goes_to_spark_and_is_told(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = house.settings.project / "models/gold/daily.sql"
    model.write_text(model.read_text().replace("count(*)", "cast(pmod(count(*), 7) as bigint)"))
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))
    with pytest.raises(ThermoclineError, match="pmod") as refused:
        fresh(house).run()
    assert "transform.engine = auto" in refused.value.next_step
    assert (
        not fresh(house)
        .lake.state("silver.orders")
        .snapshot(fresh(house).lake.state("silver.orders").head() or 0)
        .count("total-records")
    )

    monkeypatch.setenv("THERMOCLINE_TRANSFORM__ENGINE", "auto")
    again = fresh(house)
    how = {step.table: step.summary for step in again.plan().steps}
    assert how["gold.daily"] == "partitions, all rows, on spark (pmod may differ on DuckDB)"
    assert how["silver.orders"].startswith("merge, all rows, on duckdb (")
    engines = {step.table: step.engine for step in again.run().steps}
    assert engines == {
        "silver.orders": "duckdb", "gold.daily": "spark", "gold.totals": "duckdb",
    }  # fmt: skip
    assert daily(again) == [("2026-01-01", "1", "10.00")]


@pytest.mark.parametrize("house", ["auto"], indirect=True)
def test_what_is_much_to_read_is_for_spark_or_workers(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))

    def engines(most: str) -> dict[str, str]:
        monkeypatch.setenv("THERMOCLINE_TRANSFORM__DUCKDB_BYTES", most)
        steps = fresh(house).plan().steps
        return {step.table: step.choice.executor_key for step in steps}

    state = house.lake.state("bronze.raw")
    size = state.snapshot(state.head() or 0).count("total-files-size")
    assert set(engines(str(size)).values()) == {"duckdb"}
    large = engines(str(size - 1))
    assert large.pop("gold.daily") == "duckdb partition"  # which is cut by day
    assert set(large.values()) == {"spark"}
    house.run()
    land(house, *[(str(n), "2026-01-01", "10.00", 1, "c") for n in range(5000)])
    orders = fresh(house).lake.state("silver.orders")
    target = orders.snapshot(orders.head() or 0).count("total-files-size")
    came = house.lake.state("bronze.raw")
    new = came.snapshot(came.head() or 0).count("added-files-size")
    # What is new, and the target that it is held against; not what was read before.
    assert engines(str(new + target))["silver.orders"] == "duckdb"
    assert engines(str(new + target - 1))["silver.orders"] == "spark"


def test_only_touched_partitions_are_written_again(house: Lakehouse) -> None:
    land(house, *[(str(i), f"2026-01-{i + 1:02}", "1.00", i, "c") for i in range(9)])
    house.run()
    land(house, ("3", "2026-01-20", "7.00", 50, "u"), ("5", "2026-01-06", "9.99", 51, "d"))
    step = {s.table: s for s in house.plan().steps}
    assert (step["silver.orders"].refresh_mode, step["gold.daily"].refresh_mode) == (
        "events",
        "touched",
    )
    report = house.run()
    done = {s.table: s for s in report.steps}
    # 2026-01-04 lost its order, 2026-01-20 got it, 2026-01-06 lost one: three of ten days
    assert done["gold.daily"].detail == "3 partitions touched"
    assert done["gold.totals"].detail == "2 keys touched"
    assert ("2026-01-20", "1", "7.00") in daily(house)
    assert not [row for row in daily(house) if row[0] in ("2026-01-04", "2026-01-06")]
    incremental = daily(house), rows(house, "select * from gold.totals order by id")
    house.run(full_refresh=True)
    assert incremental == (daily(house), rows(house, "select * from gold.totals order by id"))


def test_a_late_old_version_does_not_win_and_a_deleted_row_stays_dead(house: Lakehouse) -> None:
    land(house, ("a", "2026-01-01", "10.00", 5, "c"), ("b", "2026-01-01", "1.00", 5, "c"))
    house.run()
    land(house, ("b", "2026-01-01", "1.00", 9, "d"))
    house.run()
    land(house, ("a", "2026-01-01", "99.00", 4, "u"), ("b", "2026-01-01", "2.00", 8, "u"))
    house.run()
    assert rows(house, "select id, amount from silver.orders") == [("a", "10.00")]


def test_a_broken_rule_leaves_main_and_keeps_the_branch(house: Lakehouse) -> None:
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))
    house.run()
    before = {t.name: t.snapshot for t in house.tables(companions=True)}
    land(house, ("bad", "2026-01-01", "-3.00", 2, "c"))
    with pytest.raises(CheckFailed) as caught:
        house.run()
    assert "no negative amount" in caught.value.cause
    after = {t.name: t.snapshot for t in house.tables(companions=True)}
    assert {t: s for t, s in after.items() if t != "bronze.raw"} == {
        t: s for t, s in before.items() if t != "bronze.raw"
    }
    branch = caught.value.details["branch"]
    assert rows(house, "select id from silver.orders order by id", at=branch) == [("a",), ("bad",)]
    assert rows(house, "select id from silver.orders") == [("a",)]


def test_an_environment_is_apart_until_it_is_published(house: Lakehouse) -> None:
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))
    house.run()
    model = house.settings.project / "models/gold/daily.sql"
    model.write_text(model.read_text().replace("sum(amount)", "sum(amount) * 2"))
    again = fresh(house)
    report = again.run(env="rework")
    assert [step.table for step in report.steps] == ["gold.daily"]
    assert daily(again) == [("2026-01-01", "1", "10.00")]
    assert daily(again, at="env-rework") == [("2026-01-01", "1", "20.00")]
    [difference] = again.diff(env="rework")
    assert difference.counts == {"inserts": 1, "updates": 0, "deletes": 1}
    assert again.run(env="rework").steps == ()
    assert str(again.publish(env="rework")) == "published 1 table in one commit"
    assert daily(again) == [("2026-01-01", "1", "20.00")]
    assert again.plan().steps == ()
    with pytest.raises(NotFound, match="no environment rework"):
        again.publish(env="rework")


def test_an_environment_behind_main_is_not_published_over_it(house: Lakehouse) -> None:
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))
    house.run()
    land(house, ("b", "2026-01-02", "1.00", 2, "c"))
    house.run(env="slow")
    land(house, ("c", "2026-01-03", "2.00", 3, "c"))
    house.run()
    with pytest.raises(Exception, match="main moved"):
        house.publish(env="slow")
    assert [row[0] for row in daily(house)] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert "silver.orders" in house.drop_env("slow")


@pytest.mark.parametrize("same_key", [False, True])
def test_main_that_moved_is_never_overwritten(
    house: Lakehouse, monkeypatch: pytest.MonkeyPatch, same_key: bool
) -> None:
    """Somebody commits to silver.orders between our checks and our publish."""
    land(house, ("a", "2026-01-01", "10.00", 1, "c"), ("b", "2026-01-02", "1.00", 2, "c"))
    house.run()
    land(house, ("a", "2026-01-01", "11.00", 3, "u"))
    theirs = "a" if same_key else "b"
    published = runner._Run._publish

    def meddle(run: Any) -> Any:
        draft = house.lake.draft("MEDDLER")
        session = house.lake.spark.session
        update = f"update {{}} set amount = 77.00, seq = 100 where id = '{theirs}'"
        draft.commit(
            "silver.orders", lambda t: session.sql(update.format(t)), bookmark=None, operation="fix"
        )
        draft.publish()
        monkeypatch.setattr(runner._Run, "_publish", published)
        return published(run)

    monkeypatch.setattr(runner._Run, "_publish", meddle)
    report = house.run()
    expected = {"a": "77.00", "b": "1.00"} if same_key else {"a": "11.00", "b": "77.00"}
    assert dict(rows(house, "select id, amount from silver.orders")) == expected
    assert report.replayed == (() if same_key else ("silver.orders",))
    assert dict(row[::2] for row in daily(house)) == {
        "2026-01-01": expected["a"],
        "2026-01-02": expected["b"],
    }
    assert fresh(house).plan().steps == ()


def test_compaction_makes_nothing_stale_and_hides_no_bookmark(house: Lakehouse) -> None:
    for seq in range(3):
        land(house, (f"k{seq}", "2026-01-01", "1.00", seq, "c"))
        house.run()
    marked = bookmarks.read(house.lake.state("silver.orders"))
    house.lake.spark.session.sql(
        "call lake.system.rewrite_data_files(table => 'silver.orders', "
        "options => map('rewrite-all', 'true'))"
    ).collect()
    state = house.lake.state("silver.orders")
    assert state.snapshot(state.head() or 0).operation == "replace"
    assert bookmarks.read(state) == marked
    assert fresh(house).plan().steps == ()


def test_what_a_contract_may_not_do_is_refused_before_anything_is_written(house: Lakehouse) -> None:
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))
    house.run()
    contract = house.settings.project / "contracts/silver/orders.odcs.yaml"
    contract.write_text(contract.read_text().replace("decimal(12,2)", "decimal(10,2)"))
    before = {t.name: t.snapshot for t in house.tables(companions=True)}
    with pytest.raises(ContractError, match=r"decimal\(12,2\) → decimal\(10,2\) narrows"):
        fresh(house).run()
    assert {t.name: t.snapshot for t in house.tables(companions=True)} == before


def test_selection_and_missing_sources(house: Lakehouse) -> None:
    with pytest.raises(NotFound, match=r"reads silver\.orders, which does not exist yet"):
        house.run(["gold.daily"])
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))
    assert [s.table for s in house.plan(["+gold.daily"]).steps] == ["silver.orders", "gold.daily"]
    assert [s.table for s in house.plan(["layer:silver"]).steps] == ["silver.orders"]
    assert [s.table for s in house.plan(["silver.orders+"]).steps] == [
        "silver.orders", "gold.daily", "gold.totals",
    ]  # fmt: skip


def test_rolling_a_source_back_makes_its_readers_compute_again(house: Lakehouse) -> None:
    land(house, ("a", "2026-01-01", "10.00", 1, "c"))
    first = house.lake.state("bronze.raw").head()
    house.run()
    land(house, ("b", "2026-01-02", "1.00", 2, "c"))
    report = house.run()
    house.table("bronze.raw").rollback(first or 0)
    house.run()
    assert rows(house, "select id from silver.orders") == [("a",)]
    with pytest.raises(Exception, match="was changed after run"):
        house.rollback(run=report.run)
