"""Questions made ready: the clock pinned, the start narrowed, texts kept while they are true."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import duckdb
import pytest

from thermocline.serve.prepare import Preparing
from thermocline.serve.question.clock import Clock
from thermocline.serve.question.guard import Refused
from thermocline.serve.question.span import EVERYTHING, Span
from thermocline.serve.terms import Ask, Head

NOW = datetime(2026, 11, 16, 12, 30, 15, 123456, tzinfo=UTC)
HEADS = {
    name: Head(name, "u", 1, "m", NOW, columns, time, (1,), ())
    for name, columns, time in (
        ("s.zoned", {"moment": "timestamptz", "n": "int"}, "moment"),
        ("s.plain", {"moment": "timestamp", "n": "int"}, "moment"),
        ("s.days", {"moment": "date", "n": "int"}, "moment"),
        ("s.still", {"n": "int"}, None),
    )
}


def prepared(sql: str, now: datetime = NOW, **more: object):
    return Preparing()(Ask(sql, **more), HEADS, now)


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
    with pytest.raises(Refused):
        prepared("select age(timestamp '2020-01-01')")


def test_the_pinned_clock_decides_the_span() -> None:
    found = prepared("select * from s.plain where moment >= current_date - 6")
    assert found.spans(HEADS) == {"s.plain": Span(datetime(2026, 11, 10))}


def test_names_are_the_same_in_any_case_and_joins_do_not_hide_them() -> None:
    sql = """
        with Recent as (select P.N, "Moment" as At_ from S.PLAIN p)
        select COUNT(*) from recent JOIN s.still USING (n) WHERE AT_ >= date '2026-11-14'
    """
    assert prepared(sql).spans(HEADS) == {
        "s.plain": Span(datetime(2026, 11, 14)),
        "s.still": EVERYTHING,
    }


def test_mentions_of_one_table_are_taken_together() -> None:
    one = "select n from s.plain where moment >= timestamp '2026-11-14'"
    other = "select n from s.plain where moment between date '2026-11-01' and date '2026-11-02'"
    both = prepared(f"{one} union all {other}").spans(HEADS)["s.plain"]
    assert both.start == datetime(2026, 11, 1)
    assert both.end is None
    assert prepared(f"{one} union all select n from s.plain").spans(HEADS)["s.plain"] == EVERYTHING


def test_a_text_is_kept_for_as_long_as_it_means_the_same() -> None:
    preparing = Preparing()

    def again(sql: str, later: timedelta) -> bool:
        first = preparing(Ask(sql), HEADS, NOW)
        return preparing(Ask(sql), HEADS, NOW + later) is first

    assert again("select n from s.still", timedelta(days=900))
    assert again("select n from s.days where moment = current_date", timedelta(hours=11))
    assert not again("select n, 2 from s.days where moment = current_date", timedelta(hours=12))
    assert not again("select n from s.days where moment < now()", timedelta(0))


@pytest.mark.parametrize("table", ["s.zoned", "s.plain", "s.days"])
def test_start_time_leaves_out_what_was_before(table: str) -> None:
    start = datetime(2026, 11, 14, 6, tzinfo=UTC)
    found = prepared(f"select o.n from {table} o join s.still using (n)", start_time=start)
    beginning = datetime(2026, 11, 14) if table == "s.days" else datetime(2026, 11, 14, 6)
    assert found.spans(HEADS)[table] == Span(beginning)
    assert found.spans(HEADS)["s.still"] == EVERYTHING
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
    assert found.spans(HEADS)["s.plain"] == Span(datetime(2026, 11, 15))


@pytest.mark.parametrize(
    "sql", ["select * from s.still for version as of 1", "select * from s.still at (version => 1)"]
)
def test_versions_in_the_text_are_refused(sql: str) -> None:
    with pytest.raises(Refused):
        prepared(sql, dialect="trino" if "for" in sql else "duckdb")


def test_table_id_must_be_asked_for() -> None:
    with pytest.raises(Refused):
        prepared("select 1 from s.still", table_id="s.plain")
