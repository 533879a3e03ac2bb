"""Drafts, publish, rollback and time travel on the embedded lake, with Spark writing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from thermocline.api.query import execute_query
from thermocline.contract import Column, Contract, PartitionField, UpdateMode, WriteMode
from thermocline.contract.types import Decimal, Primitive
from thermocline.errors import BadInput, EngineUnavailable, NotFound
from thermocline.lake import Lake, MainMoved
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.time_travel import resolve_snapshot


def orders(table: str = "silver.orders") -> Contract:
    return Contract(
        table,
        (
            Column("id", Primitive("string"), True),
            Column("ts", Primitive("timestamptz"), True),
            Column("amount", Decimal(12, 2)),
        ),
        key=("id",),
        partition=(PartitionField("ts", "day"),),
        write=WriteMode.MERGE,
        updates=UpdateMode.MERGE_ON_READ,
    )


def append(lake: Lake, table: str, *ids: str, run: str = "R1", publish: bool = True) -> int:
    draft = lake.draft(run)
    rows = [(i, datetime(2026, 1, 1, tzinfo=UTC)) for i in ids]
    frame = lake.spark.session.createDataFrame(rows, "id string, ts timestamp")
    ready = frame.selectExpr("id", "ts", "cast(1 as decimal(12,2)) as amount")
    snapshot = draft.commit(
        table,
        lambda t: ready.writeTo(t).append(),
        bookmark={"files": list(ids)},
        operation="append",
    )
    if publish:
        draft.publish()
    return snapshot


def ids(lake: Lake, table: str, snapshot: int | None = None) -> list[str]:
    state = lake.state(table)
    lake.duck.view("v", state.metadata_location, snapshot or state.head() or 0)
    found = lake.duck.query("select id from v order by id").to_pydict()["id"]
    return list(found)


def test_a_query_has_the_rows_that_duckdb_alone_gets_wrong(lake: Lake) -> None:
    lake.ensure(orders())
    append(lake, "silver.orders", "a")
    sql = (
        "select count_if(o.ts is null), o.amount / (amount - 1) "
        "from silver.orders o full join (select 'b' as id) b using (id) "
        "where date_trunc('month', ts) <> timestamptz '2026-01-02 00:00:00+00' group by 2"
    )
    found = execute_query(lake, sql)
    assert found.rows == [(0, float("inf"))]
    assert found.columns == ["count_if((o.ts IS NULL))", "(o.amount / (amount - 1))"]


def test_a_draft_is_invisible_until_published_and_then_whole(lake: Lake) -> None:
    for table in ("silver.a", "silver.b"):
        lake.ensure(orders(table))
    draft = lake.draft("RUN")
    frame = lake.spark.session.sql(
        "select 'x' as id, timestamp'2026-01-01' as ts, cast(2 as decimal(12,2)) as amount"
    )
    for table in ("silver.a", "silver.b"):
        draft.commit(
            table, lambda t: frame.writeTo(t).append(), bookmark={"s": 1}, operation="merge"
        )
    assert ids(lake, "silver.a") == [] == ids(lake, "silver.b")
    assert bookmarks.read(lake.state("silver.a")) == {}

    published = draft.publish()

    assert set(published.tables) == {"silver.a", "silver.b"}
    assert ids(lake, "silver.a") == ["x"] == ids(lake, "silver.b")
    state = lake.state("silver.a")
    assert list(state.refs) == ["main"]
    assert bookmarks.read(state) == {"s": 1}
    assert state.snapshot(state.head() or 0).summary["thermocline.run"] == "RUN"


def test_publish_refuses_when_main_moved_in_one_of_the_tables(lake: Lake) -> None:
    for table in ("silver.a", "silver.b"):
        lake.ensure(orders(table))
    draft = lake.draft("SLOW")
    draft.begin("silver.a", "silver.b")
    append(lake, "silver.a", "theirs", run="QUICK")
    before = {t: lake.state(t).head() for t in ("silver.a", "silver.b")}
    with pytest.raises(MainMoved) as caught:
        draft.publish()
    assert caught.value.tables == ["silver.a"]
    assert {t: lake.state(t).head() for t in ("silver.a", "silver.b")} == before


def test_a_commit_that_fails_is_not_landed(lake: Lake) -> None:
    lake.ensure(orders())
    draft = lake.draft("R")

    def broken(target: str) -> None:
        lake.spark.session.sql(f"insert into {target} select nonsense from nowhere")

    with pytest.raises(Exception, match=r"silver\.orders"):
        draft.commit("silver.orders", broken, bookmark={"a": 1}, operation="append")
    assert bookmarks.read(lake.state("silver.orders"), draft.branch) == {}


def test_a_write_without_a_jvm_is_not_to_be_tried_again_in_this_process(
    lake: Lake, call_to_an_ended_jvm: Callable[[], None]
) -> None:
    """A stream tries again what may pass. Without Spark it would do so for ever."""
    lake.ensure(orders())
    draft = lake.draft("R")
    with pytest.raises(EngineUnavailable, match="JVM ended"):
        draft.commit("silver.orders", lambda _: call_to_an_ended_jvm(), bookmark={}, operation="x")
    with (
        pytest.raises(EngineUnavailable, match="JVM ended"),
        draft.open_writer("silver.orders"),
    ):
        call_to_an_ended_jvm()
    assert not EngineUnavailable.transient


def test_a_commit_that_landed_is_believed_though_the_call_failed(lake: Lake) -> None:
    """A connection may break after the catalog took the commit: looking decides, not the error."""
    lake.ensure(orders())
    draft = lake.draft("R")
    frame = lake.spark.session.sql(
        "select 'x' as id, timestamp'2026-01-01' as ts, cast(2 as decimal(12,2)) as amount"
    )

    def lands_and_breaks(target: str) -> None:
        frame.writeTo(target).append()
        raise ConnectionError("connection lost after commit")

    snapshot = draft.commit("silver.orders", lands_and_breaks, bookmark={"a": 1}, operation="x")
    draft.publish()
    assert lake.state("silver.orders").head() == snapshot
    assert ids(lake, "silver.orders") == ["x"]


def test_time_travel_to_every_snapshot_tag_branch_and_moment(lake: Lake) -> None:
    lake.ensure(orders())
    table = "silver.orders"
    known: list[tuple[int, list[str]]] = []
    for index, name in enumerate(("a", "b", "c")):
        append(lake, table, name, run=f"R{index}")
        known.append((lake.state(table).head() or 0, ["a", "b", "c"][: index + 1]))
    for snapshot, expected in known:
        assert ids(lake, table, snapshot) == expected
    state = lake.state(table)
    second = state.snapshots[known[1][0]]
    assert resolve_snapshot(state, state.published_at(second.id)) == second.id
    assert resolve_snapshot(state, str(second.id)) == second.id
    assert resolve_snapshot(state, "now") == known[2][0]
    with pytest.raises(NotFound, match="history begins"):
        resolve_snapshot(state, "2001-01-01")
    with pytest.raises(BadInput, match="not a snapshot"):
        resolve_snapshot(state, "the day before")
    with pytest.raises(BadInput):
        resolve_snapshot(state, "yesterday 25:61")


def test_an_unknown_table_is_said_to_be_unknown(lake: Lake) -> None:
    assert not lake.exists("silver.nothing")
    with pytest.raises(NotFound, match=r"no table silver\.nothing"):
        lake.state("silver.nothing")
    for name in ("orders", "a.b.c", "../b.c", "a'; drop table t--.x", "a.\x00", "a." + "x" * 300):
        with pytest.raises(BadInput, match="not a table name"):
            lake.state(name)
