"""The router with its real processes on a real lake: replicator, hot nodes and a direct worker."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from tests.integration.serve import shop_lake
from tests.integration.serve.routing import CALLER, Serving, rows_of
from tests.integration.serve.shop_lake import PER_DAY, append, head, order, orders_of, today

from thermocline.engine.arrow import normalize
from thermocline.errors import BadInput, NotFound, ThermoclineError
from thermocline.lake import Lake
from thermocline.lake.read_log import ReadRate, read_rates
from thermocline.serve.failures import BothFailed, TooLate, TooMuch
from thermocline.serve.node import staging
from thermocline.serve.router import QueryLimits
from thermocline.serve.values import QueryRequest
from thermocline.serve.wire.protocol import Channel
from thermocline.sql.guard import QueryRefused

RECENT = "select count(*) as n from silver.orders where ordered_at >= current_date - interval 2 day"
EVERYTHING = "select count(*) as n, sum(amount) as total from silver.orders"


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served") / "p"


@pytest.fixture(scope="module")
def lake(project: Path) -> Lake:
    return shop_lake.build(project)


@pytest.fixture(scope="module")
def serving(project: Path, lake: Lake) -> Iterator[Serving]:
    serving = Serving(project, QueryLimits(rows=5_000, verify_share=0.0))
    serving.settled(lake)
    yield serving
    serving.run(serving.router.stop())


def test_recent_questions_are_hot_and_all_time_ones_direct(serving: Serving, lake: Lake) -> None:
    answer = serving.ask(RECENT)
    assert rows_of(answer) == [[3 * PER_DAY]]
    assert answer.provenance["engine"] == "hot"
    tables = answer.provenance["tables"]
    assert tables["silver.orders"]["snapshot"] == str(head(lake, "silver.orders"))
    assert answer.provenance["scanned"] == {"files": 0, "bytes": 0}
    answer = serving.ask(EVERYTHING)
    total = sum((row["amount"] for day in range(30) for row in orders_of(day)), Decimal(0))
    assert rows_of(answer) == [[30 * PER_DAY, str(total)]]
    assert answer.provenance["engine"] == "direct"
    assert answer.provenance["scanned"]["files"] == 30


def test_scans_of_files_are_recorded_and_hot_and_cached_answers_are_not(
    serving: Serving, project: Path
) -> None:
    def scanned() -> ReadRate:
        assert serving.router._read_recorder is not None
        serving.router._read_recorder.close()
        return (read_rates(project) or {}).get("silver.orders", ReadRate())

    before = scanned()
    assert serving.engine(f"{RECENT} and order_id > 3") == "hot"
    recent_and_older = (
        "select max(order_id) from silver.orders where order_id > 17 and ordered_at >="
        " current_date - interval 20 day and amount in (1, 4711.42)"
    )
    answer = serving.ask(recent_and_older)
    assert answer.provenance["engine"] == "direct"
    assert serving.engine(recent_and_older) == "cache"
    after = scanned()
    assert after.scans == before.scans + 1
    assert after.files == before.files + answer.provenance["scanned"]["files"]
    assert after.bytes == before.bytes + answer.provenance["scanned"]["bytes"]
    counted = {name: after.columns[name] - before.columns.get(name, 0) for name in after.columns}
    filtered = {name for name, count in counted.items() if count}
    assert filtered == {"order_id", "ordered_at", "amount"}
    assert "4711" not in (project / ".thermocline" / "reads.jsonl").read_text()


def test_the_window_begins_at_midnight_seven_days_ago_to_the_microsecond(serving: Serving) -> None:
    edge = today() - timedelta(days=7)
    sql = "select count(*) from silver.orders where ordered_at >= timestamptz '{}'"
    inside, outside = sql.format(edge), sql.format(edge - timedelta(microseconds=1))
    assert serving.engine(inside) == "hot"
    assert serving.engine(outside) == "direct"
    assert serving.rows(inside) == [[8 * PER_DAY]]
    assert serving.rows(outside) == [[8 * PER_DAY]]


def test_joins_and_dates_are_hot_and_say_all_snapshots(serving: Serving, lake: Lake) -> None:
    answer = serving.ask(
        "select city, count(*) from silver.orders join silver.customers using (customer_id)"
        " where ordered_at >= current_date group by city order by city nulls last"
    )
    assert answer.provenance["engine"] == "hot", answer.provenance
    assert set(answer.provenance["tables"]) == {"silver.orders", "silver.customers"}
    expected = [["Bern", 8], ["Oslo", 8], ["São Paulo", 8], ["Zürich", 8], [None, 8]]
    assert rows_of(answer) == expected
    by_date = "select revenue from gold.revenue where day >= current_date"
    assert serving.engine(by_date) == "hot"
    revenue = sum((row["amount"] for row in orders_of(0)), Decimal(0))
    assert serving.rows(by_date) == [[f"{revenue:.2f}"]]


def test_hot_and_direct_give_the_same_rows(serving: Serving) -> None:
    sql = "select * from silver.orders where ordered_at >= current_date - 6 order by order_id"
    hot = serving.ask(sql)
    # The same rows, asked so that no window can hold them.
    direct = serving.ask(sql.replace("where", "where order_id >= 0 and (1 = 1 or 1 = 2) and")
                         .replace("ordered_at >=", "ordered_at + interval 0 day >="))  # fmt: skip
    assert (hot.provenance["engine"], direct.provenance["engine"]) == ("hot", "direct")
    assert hot.rows.columns == direct.rows.columns
    assert rows_of(hot) == rows_of(direct)
    assert len(rows_of(hot)) == 7 * PER_DAY


def test_the_same_question_is_answered_once_a_commit(serving: Serving, lake: Lake) -> None:
    sql = "select max(order_id) as top from silver.orders where ordered_at >= current_date - 1"
    assert serving.engine(sql) == "hot"
    assert serving.engine(sql) == "cache"
    assert serving.engine(sql, snapshot=head(lake, "silver.orders")) == "direct"
    assert serving.engine(sql.upper().replace("SILVER.ORDERS", "silver.orders")) != "direct"
    snapshot = append(lake, "silver.orders", [order(1_000_001, today())])
    assert serving.rows(sql, min_snapshot=snapshot) == [[1_000_001]]


def test_own_writes_are_seen_at_once(serving: Serving, lake: Lake) -> None:
    for n in range(5):
        number = 2_000_000 + n
        snapshot = append(lake, "silver.orders", [order(number, today())])
        sql = (
            f"select order_id from silver.orders where order_id = {number}"
            " and ordered_at >= current_date"
        )
        assert serving.rows(sql, min_snapshot=snapshot) == [[number]]


def test_a_commit_reaches_the_nodes_within_two_seconds(serving: Serving, lake: Lake) -> None:
    serving.settled(lake)
    snapshot = append(lake, "silver.orders", [order(3_000_000, today())])
    began = time.monotonic()
    serving.until(
        lambda: any(
            copies.get("silver.orders") and copies["silver.orders"].snapshot == snapshot
            for copies in serving.router.lake_state().hot_copies.values()
        )
    )
    assert time.monotonic() - began < 10  # the goal of 2 s is measured by benchmarks/serve
    sql = (
        "select count(*) from silver.orders where order_id = 3000000 and ordered_at >= current_date"
    )
    answer = serving.ask(sql, max_staleness=0)
    assert rows_of(answer) == [[1]]
    assert answer.provenance["engine"] == "hot"


def test_a_snapshot_of_the_past_is_answered_as_it_was(serving: Serving, lake: Lake) -> None:
    before = head(lake, "silver.orders")
    ((count, _),) = serving.rows(EVERYTHING, min_snapshot=before)
    append(lake, "silver.orders", [order(4_000_000, today())])
    answer = serving.ask(EVERYTHING, snapshot=before)
    assert rows_of(answer)[0][0] == count
    assert answer.provenance["tables"]["silver.orders"]["snapshot"] == str(before)
    with pytest.raises(NotFound):
        serving.ask(EVERYTHING, snapshot=12345)
    with pytest.raises(NotFound):
        serving.ask(EVERYTHING, min_snapshot=12345)


def test_deletes_and_overwrites_reach_the_nodes(serving: Serving, lake: Lake) -> None:
    sql = (
        "select count(*) from silver.orders where order_id >= 1000000"
        " and ordered_at >= current_date"
    )
    lake.iceberg("silver.orders").delete("order_id >= 1000000")
    snapshot = head(lake, "silver.orders")
    assert serving.rows(sql, min_snapshot=snapshot) == [[0]]
    serving.settled(lake)
    answer = serving.ask(sql)
    assert rows_of(answer) == [[0]]


def test_start_time_narrows_and_makes_hot(serving: Serving) -> None:
    answer = serving.ask(EVERYTHING, start_time=today())
    assert answer.provenance["engine"] == "hot"
    assert rows_of(answer)[0][0] == PER_DAY


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("select * from read_csv('/etc/passwd')", QueryRefused),
        ("select 1; select 2", QueryRefused),
        ("drop table silver.orders", QueryRefused),
        ("select * from silver.nothing", NotFound),
        ("select nothing from silver.orders", BadInput),
        ("select * from silver.orders a, silver.orders b", TooMuch),
    ],
)
def test_bad_questions_get_a_clear_error(serving: Serving, sql: str, error: type) -> None:
    with pytest.raises(error) as caught:
        serving.ask(sql)
    assert isinstance(caught.value, ThermoclineError)
    assert "Traceback" not in str(caught.value)
    assert "/tmp" not in str(caught.value)
    assert serving.rows("select 1") == [[1]]


def test_a_question_that_takes_too_long_ends_at_the_deadline(serving: Serving) -> None:
    began = time.monotonic()
    endless = "select count(*) from range(100000000000) a, range(100000000000) b"
    with pytest.raises((TooLate, TooMuch)):
        serving.ask(endless, timeout=1.0)
    assert time.monotonic() - began < 6
    assert serving.rows("select 1") == [[1]]


def test_a_dead_node_is_answered_for_and_comes_back(serving: Serving, lake: Lake) -> None:
    serving.settled(lake)
    wrong = 0
    for _ in range(3):
        for node in serving.router.fleet.nodes.values():
            if node.pid:
                os.kill(node.pid, signal.SIGKILL)
        for n in range(10):
            sql = f"{RECENT} and {n} = {n}"
            wrong += serving.rows(sql) != [[3 * PER_DAY]]
            serving.run(asyncio.sleep(0.02))
    assert wrong == 0
    serving.settled(lake)
    assert serving.engine(f"{RECENT} and 5 > 4") == "hot"
    assert all(node["restarts"] >= 1 for node in serving.router.nodes())


def test_a_dead_replicator_and_a_dead_direct_worker_come_back(serving: Serving, lake: Lake) -> None:
    fleet = serving.router.fleet
    pids = {child.name: child.pid for child in (fleet.replicator, *fleet.direct)}
    for pid in pids.values():
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    assert serving.rows(f"{RECENT} and 7 > 4") == [[3 * PER_DAY]]
    back = (fleet.replicator, *fleet.direct)
    serving.until(lambda: all(each.is_up and each.pid != pids[each.name] for each in back))
    snapshot = append(lake, "silver.orders", [order(5_000_000, today())])
    sql = "select count(*) from silver.orders where order_id = 5000000"
    assert serving.rows(sql, min_snapshot=snapshot) == [[1]]
    lake.iceberg("silver.orders").delete("order_id >= 1000000")


def test_both_failing_names_both_causes(serving: Serving, lake: Lake) -> None:
    serving.settled(lake)
    fleet = serving.router.fleet
    for child in (*fleet.nodes.values(), *fleet.direct):
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
    with pytest.raises(BothFailed) as caught:
        serving.ask(f"{RECENT} and 8 > 4")
    assert "direct" in caught.value.cause
    serving.until(lambda: fleet.direct[0].is_up and all(n.is_up for n in fleet.nodes.values()))


def test_a_wrong_copy_is_found_and_taken_off(serving: Serving, lake: Lake) -> None:
    """A hot answer that differs from the lake is counted, and the table is copied anew."""
    serving.settled(lake)
    router = serving.router
    router.limits = QueryLimits(rows=5_000, verify_share=1.0)
    try:
        assert serving.engine(f"{RECENT} and 9 > 4") == "hot"
        serving.run(router.verifier.wait())
        assert (router.verifier.checked, router.verifier.mismatches) == (1, 0)
        spoil(serving, "silver.orders")
        assert serving.rows(f"{RECENT} and 10 > 4") == [[3 * PER_DAY + 1]]  # wrong, as we made it
        serving.run(asyncio.sleep(0.5))
        assert router.verifier.mismatches == 1
        assert serving.rows(f"{RECENT} and 10 > 4") == [[3 * PER_DAY]]  # the wrong one is forgotten
        assert serving.rows(f"{RECENT} and 11 > 4") == [[3 * PER_DAY]]
        serving.until(lambda: serving.engine(f"{RECENT} and {time.time()} > 4") == "hot")
        assert serving.rows(f"{RECENT} and 12 > 4") == [[3 * PER_DAY]]
    finally:
        router.limits = QueryLimits(rows=5_000, verify_share=0.0)


def spoil(serving: Serving, table: str) -> None:
    """Add an order of today to the copies that nodes hold, behind the replicator's back."""

    async def spoiled(channel: Channel, held: int) -> None:
        row = {**order(9_000_000, today()), staging.FILE: 999_999, staging.POSITION: 0}
        hidden = [pa.field(staging.FILE, pa.int32()), pa.field(staging.POSITION, pa.int64())]
        schema = pa.schema([*shop_lake.ORDERS.as_arrow(), *hidden])
        body = staging.encode_body(normalize(pa.Table.from_pylist([row], schema=schema)))
        for header, with_ in (
            (staging.begin("spoil"), b""),
            (staging.advance("spoil", table, held, held), b""),
            (staging.add_rows("spoil", table), body),
            (staging.apply("spoil"), b""),
        ):
            assert (await channel.ask(header, with_, timeout=5)).error is None

    for name, copies in serving.router.lake_state().hot_copies.items():
        if table in copies:
            channel = serving.router.fleet.nodes[name].channel
            serving.run(spoiled(channel, copies[table].snapshot))


def test_explain_asks_nobody(serving: Serving) -> None:
    told = serving.run(serving.router.explain(QueryRequest(RECENT), CALLER))
    assert told["ways"][0]["engine"] == "hot"
    assert told["tables"]["silver.orders"]["to"] is None
    assert datetime.fromisoformat(told["tables"]["silver.orders"]["from"]) == (
        today() - timedelta(days=2)
    ).replace(tzinfo=None)
