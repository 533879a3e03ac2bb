"""Prepared queries: pinned clock, applied start_time, cache validity."""

from __future__ import annotations

import gc
import tracemalloc
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import duckdb
import pytest

from thermocline.serve import query_preparation
from thermocline.serve.analysis.clock import Clock
from thermocline.serve.analysis.time_range import UNBOUNDED, TimeRange
from thermocline.serve.query_preparation import PreparedQuery, QueryPreparer
from thermocline.serve.values import QueryRequest, TableHead
from thermocline.sql.guard import QueryRefused

NOW = datetime(2026, 11, 16, 12, 30, 15, 123456, tzinfo=UTC)
HEADS = {
    name: TableHead(name, "u", 1, "m", NOW, columns, time, (1,))
    for name, columns, time in (
        ("s.zoned", {"moment": "timestamptz", "n": "int"}, "moment"),
        ("s.plain", {"moment": "timestamp", "n": "int"}, "moment"),
        ("s.days", {"moment": "date", "n": "int"}, "moment"),
        ("s.still", {"n": "int"}, None),
    )
}


def prepared(sql: str, now: datetime = NOW, **more: object):
    return QueryPreparer()(QueryRequest(sql, **more), HEADS, now)


@pytest.mark.parametrize(
    ("word", "value", "clock"),
    [
        ("current_date", NOW.date(), Clock.DAY),
        ("today()", NOW.date(), Clock.DAY),
        ("now()", NOW, Clock.INSTANT),
        ("current_timestamp", NOW, Clock.INSTANT),
        ("localtimestamp", NOW.replace(tzinfo=None), Clock.INSTANT),
        ("1", 1, Clock.NEVER),
    ],
)
def test_the_clock_shows_when_the_question_came(word: str, value: object, clock: Clock) -> None:
    found = prepared(f"select {word} as it")
    assert found.clock is clock
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        ((given,),) = connection.execute(found.text).fetchall()
    assert given == value


def test_a_clock_elsewhere_or_hidden_is_refused() -> None:
    with pytest.raises(QueryRefused):
        prepared("select age(timestamp '2020-01-01')")


def test_the_pinned_clock_decides_the_span() -> None:
    found = prepared("select * from s.plain where moment >= current_date - 6")
    assert found.time_ranges(HEADS) == {"s.plain": TimeRange(datetime(2026, 11, 10))}


def test_names_are_the_same_in_any_case_and_joins_do_not_hide_them() -> None:
    sql = """
        with Recent as (select P.N, "Moment" as At_ from S.PLAIN p)
        select COUNT(*) from recent JOIN s.still USING (n) WHERE AT_ >= date '2026-11-14'
    """
    assert prepared(sql).time_ranges(HEADS) == {
        "s.plain": TimeRange(datetime(2026, 11, 14)),
        "s.still": UNBOUNDED,
    }


def test_mentions_of_one_table_are_taken_together() -> None:
    one = "select n from s.plain where moment >= timestamp '2026-11-14'"
    other = "select n from s.plain where moment between date '2026-11-01' and date '2026-11-02'"
    both = prepared(f"{one} union all {other}").time_ranges(HEADS)["s.plain"]
    assert both.start == datetime(2026, 11, 1)
    assert both.end is None
    assert (
        prepared(f"{one} union all select n from s.plain").time_ranges(HEADS)["s.plain"]
        == UNBOUNDED
    )


def test_a_text_is_kept_for_as_long_as_it_means_the_same() -> None:
    preparing = QueryPreparer()

    def again(sql: str, later: timedelta) -> bool:
        first = preparing(QueryRequest(sql), HEADS, NOW)
        return preparing(QueryRequest(sql), HEADS, NOW + later) is first

    assert again("select n from s.still", timedelta(days=900))
    assert again("select n from s.days where moment = current_date", timedelta(hours=11))
    assert not again("select n, 2 from s.days where moment = current_date", timedelta(hours=12))
    assert not again("select n from s.days where moment < now()", timedelta(0))


@pytest.mark.parametrize("table", ["s.zoned", "s.plain", "s.days"])
def test_start_time_leaves_out_what_was_before(table: str) -> None:
    start = datetime(2026, 11, 14, 6, tzinfo=UTC)
    found = prepared(f"select o.n from {table} o join s.still using (n)", start_time=start)
    beginning = datetime(2026, 11, 14) if table == "s.days" else datetime(2026, 11, 14, 6)
    assert found.time_ranges(HEADS)[table] == TimeRange(beginning)
    assert found.time_ranges(HEADS)["s.still"] == UNBOUNDED
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'; create schema s; create table s.still (n int)")
        kind = HEADS[table].columns["moment"]
        connection.execute(f"create table {table} (moment {kind}, n int)")
        connection.execute("insert into s.still values (1), (2), (3)")
        connection.execute(
            f"insert into {table} values ('2026-11-13 23:59:59.999999', 1),"
            " ('2026-11-14 06:00', 2), (null, 3)"
        )
        assert connection.execute(found.text).fetchall() == [(2,)]


def test_start_time_only_narrows() -> None:
    sql = "select n from s.plain where moment >= timestamp '2026-11-15'"
    found = prepared(sql, start_time=datetime(2020, 1, 1, tzinfo=UTC))
    assert found.time_ranges(HEADS)["s.plain"] == TimeRange(datetime(2026, 11, 15))


@pytest.mark.parametrize(
    "sql", ["select * from s.still for version as of 1", "select * from s.still at (version => 1)"]
)
def test_versions_in_the_text_are_refused(sql: str) -> None:
    with pytest.raises(QueryRefused):
        prepared(sql, dialect="trino" if "for" in sql else "duckdb")


def test_table_id_must_be_asked_for() -> None:
    with pytest.raises(QueryRefused):
        prepared("select 1 from s.still", table_id="s.plain")


def test_texts_are_remembered_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query_preparation, "MAX_CACHED_BYTES", 500_000)
    preparing = QueryPreparer()

    def ask(number: int) -> PreparedQuery:
        terms = " + ".join(["n"] * 30)
        return preparing(
            QueryRequest(f"select {terms} as it from s.still where n <> {number}"), HEADS, NOW
        )

    first = ask(0)
    assert ask(0) is first
    for number in range(1, 100):
        ask(number)
        assert preparing.bytes <= 500_000
    assert ask(0) is not first
    last = ask(99)
    assert ask(99) is last, "the most recent ones are still there"


def test_what_a_text_takes_is_about_what_it_is_said_to_take() -> None:
    texts = [
        f"select day, sum(n) as total, count(*) filter (where n > {number}) as many"
        f" from s.still where n between {number} and 9 group by day order by total desc"
        for number in range(200)
    ]
    preparing = QueryPreparer()
    preparing(QueryRequest("select 1"), HEADS, NOW)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        said = preparing.bytes
        for text in texts:
            preparing(QueryRequest(text), HEADS, NOW)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.5 * taken < preparing.bytes - said < 2 * taken


def test_a_text_that_grows_while_it_is_remembered_counts_as_it_is() -> None:
    preparing = QueryPreparer()
    found = preparing(QueryRequest("select n from s.still"), HEADS, NOW)
    before = preparing.bytes
    found.sql["duckdb",] = "x" * 1000
    preparing(QueryRequest("select n from s.still"), HEADS, NOW)
    assert preparing.bytes == before + 1000


def test_another_time_of_a_table_is_another_span() -> None:
    found = prepared("select n from s.zoned where moment >= timestamptz '2026-11-10 00:00:00+00'")
    assert found.time_ranges(HEADS)["s.zoned"] == TimeRange(datetime(2026, 11, 10))
    untimed = replace(HEADS["s.zoned"], time=None)
    assert found.time_ranges({**HEADS, "s.zoned": untimed})["s.zoned"] == UNBOUNDED
