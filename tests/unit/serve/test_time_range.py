"""The time range that a query can see: rows outside of it never change the answer."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

import duckdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thermocline.serve.analysis.time_range import TimedTable, TimeRange, find_time_ranges
from thermocline.sql.guard import guard

NOW = datetime(2026, 3, 10, 15, 30)
DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)
TABLES = {
    "s.a": TimedTable("m", frozenset({"id", "m", "k", "v"})),
    "s.b": TimedTable("ts", frozenset({"id", "ts", "k", "w"})),
}


def day(number: int) -> datetime:
    return datetime(2026, 3, number)


def seen(sql: str, dialect: str = "duckdb") -> list[tuple[str, datetime | None, datetime | None]]:
    question = guard(sql, dialect)
    found = find_time_ranges(question.tree, TABLES, NOW)
    named = {id(node): name for name, nodes in question.tables.items() for node in nodes}
    assert found.keys() == named.keys()
    return sorted(
        ((named[i], span.start, span.end) for i, span in found.items()), key=lambda each: str(each)
    )


@pytest.mark.parametrize(
    ("condition", "start", "end"),
    [
        ("m >= date '2026-03-01'", day(1), None),
        ("m > timestamp '2026-03-01 12:00:00' and v > 3", day(1) + DAY / 2, None),
        ("'2026-03-01' <= m", day(1), None),
        ("m < date '2026-03-05' and m >= '2026-03-01'", day(1), day(5)),
        ("m between date '2026-03-01' and date '2026-03-05'", day(1), day(5)),
        ("m = date '2026-03-02'", day(2), day(2)),
        ("m in (date '2026-03-02', date '2026-03-07')", day(2), day(7)),
        ("m >= current_date - 6", day(4), None),
        ("m >= current_date - interval 1 month", datetime(2026, 2, 10), None),
        ("m > now() - interval '36 hours'", NOW - timedelta(hours=36), None),
        ("m >= date_trunc('month', current_date)", day(1), None),
        ("cast(m as date) = date '2026-03-02'", day(2), day(3) - TICK),
        ("m::date <= '2026-03-02'", None, day(3) - TICK),
        ("date_trunc('hour', m) = timestamp '2026-03-02 05:00:00'",
         day(2) + timedelta(hours=5), day(2) + timedelta(hours=6) - TICK),
        ("year(m) = 2026", datetime(2026, 1, 1), datetime(2027, 1, 1) - TICK),
        ("m >= timestamptz '2026-03-02 00:00:00+02'", day(1) + timedelta(hours=22), None),
        ("(m >= '2026-03-01' and v = 1) or m = '2026-03-04'", day(1), None),
        ("m >= '2026-03-01' or v = 1", None, None),
        ("not (m >= '2026-03-01')", None, None),
        ("m >= '2026-03-01' is null", None, None),
        ("coalesce(m, now()) >= '2026-03-01'", None, None),
        ("m >= id", None, None),
        ("k >= '2026-03-01'", None, None),
        ("m >= 'no date'", None, None),
        ("m >= '2026-03-01' and m is not null", day(1), None),
    ],
)  # fmt: skip
def test_conditions(condition: str, start: datetime | None, end: datetime | None) -> None:
    assert seen(f"select count(*) from s.a where {condition}") == [("s.a", start, end)]


def test_conditions_in_trinos_words() -> None:
    sql = """select 1 from s.a where m >= date_add('day', -7, current_timestamp)
        and date(m) <= current_date and m < from_iso8601_timestamp('2026-03-10T12:00:00Z')"""
    assert seen(sql, "trino") == [("s.a", NOW - 7 * DAY, day(10) + DAY / 2)]


@pytest.mark.parametrize(
    ("sql", "a", "b"),
    [
        ("select * from s.a x join s.b y on x.k = y.k where x.m >= '2026-03-01'", day(1), None),
        ("select * from s.a x join s.b y on x.k = y.k and x.m >= '2026-03-01'", day(1), None),
        ("select * from s.a x left join s.b y on x.k = y.k and x.m >= '2026-03-01'", None, None),
        ("select * from s.a x left join s.b y on x.k = y.k and y.ts >= '2026-03-01'", None, day(1)),
        ("select * from s.a x full join s.b y on x.k = y.k and y.ts >= '2026-03-01'", None, None),
        ("select * from s.a, s.b where m >= '2026-03-01' and ts >= '2026-03-02'", day(1), day(2)),
        ("select * from s.a asof join s.b on m >= ts where ts >= '2026-03-02'", None, None),
        ("select (select max(w) from s.b where ts >= '2026-03-02') from s.a", None, day(2)),
        ("select * from s.a where k in (select k from s.b) and m >= '2026-03-01'", day(1), None),
        ("with c as (select m, v from s.a) select * from c, s.b where m >= '2026-03-01'", day(1),
         None),
        ("with c as (select m, v from s.a) select * from c x, c y, s.b where x.m >= '2026-03-01'",
         None, None),
        ("with c as (select m, v from s.a) select * from c x, c y, s.b where x.m >= '2026-03-01' "
         "and y.m >= '2026-02-01'", datetime(2026, 2, 1), None),
        ("with c as (select m, sum(v) v from s.a group by m) select * from c, s.b "
         "where m >= '2026-03-01'", day(1), None),
        ("with c as (select max(m) m, k from s.a group by k) select * from c, s.b "
         "where m >= '2026-03-01'", None, None),
        ("select * from (select m, row_number() over (order by m) n from s.a) x, s.b "
         "where m >= '2026-03-01'", None, None),
        ("select * from (select m from s.a order by m limit 3) x, s.b where m >= '2026-03-01'",
         None, None),
        ("select * from (select m as t from s.a union all select ts from s.b) u "
         "where t >= '2026-03-01'", day(1), day(1)),
        ("select * from (select * from s.a) x, (select * from s.b) y where x.m >= '2026-03-01'",
         day(1), None),
    ],
)  # fmt: skip
def test_joins_and_inner_queries(sql: str, a: datetime | None, b: datetime | None) -> None:
    assert [(name, start) for name, start, _ in seen(sql)] == [("s.a", a), ("s.b", b)]


MOMENTS = st.integers(1, 9).map(lambda n: f"2026-03-{n:02}")
COMPARED = st.sampled_from(["<", "<=", "=", ">=", ">"])


def conditions(column: str, others: tuple[str, ...]) -> st.SearchStrategy[str]:
    plain = st.builds(lambda c, m: f"{column} {c} timestamp '{m}'", COMPARED, MOMENTS)
    cut = st.builds(lambda c, m: f"{column}::date {c} date '{m}'", COMPARED, MOMENTS)
    week = st.builds(lambda c, m: f"date_trunc('week', {column}) {c} date '{m}'", COMPARED, MOMENTS)
    between = st.builds(lambda m, n: f"{column} between '{m}' and '{n}'", MOMENTS, MOMENTS)
    other = st.sampled_from([*others, f"{column} is null", f"not ({column} > '2026-03-04')"])
    leaf = st.one_of(plain, cut, week, between, other)
    return st.recursive(
        leaf, lambda of: st.builds(lambda x, w, y: f"({x} {w} {y})", of, st.sampled_from(
            ["and", "and", "or"]), of), max_leaves=4)  # fmt: skip


A, B = conditions("x.m", ("x.v > 2", "x.k = 1")), conditions("y.ts", ("y.w > 2", "y.k = 1"))
OUTER = conditions("q.t", ("q.n > 2",))
JOINS = st.sampled_from(["join", "left join", "right join", "full join", "asof left join"])
INNER = st.one_of(
    st.builds(lambda c: f"select x.m as t, x.v as n from s.a x where {c}", A),
    st.builds(lambda c: f"select m t, sum(v) n from s.a x where {c} group by m", A),
    st.builds(lambda c: f"select max(m) t, k n from s.a x where {c} group by k", A),
    st.just("select m t, row_number() over (order by m, id) n from s.a"),
    st.just("select m t, v n from s.a order by m, id limit 4"),
    st.just("select distinct m t, v n from s.a"),
    st.builds(
        lambda c, d: f"select m t, v n from s.a x where {c} "
        f"union all select ts, w from s.b y where {d}", A, B,
    ),
    st.builds(
        lambda j, c, d: f"select x.m t, y.w n from s.a x {j} s.b y on x.k = y.k and x.m >= y.ts "
        f"and {c} where {d}" if "asof" not in j else
        f"select x.m t, y.w n from s.a x {j} s.b y on x.k = y.k and x.m >= y.ts where {d}",
        JOINS, st.one_of(A, B), st.one_of(A, B, st.just("true")),
    ),
)  # fmt: skip
QUERIES = st.one_of(
    INNER,
    st.builds(lambda q, c: f"select * from ({q}) q where {c}", INNER, OUTER),
    st.builds(lambda q, c: f"with q as ({q}) select t, n from q where {c}", INNER, OUTER),
    st.builds(
        lambda q, c: f"with q as ({q}), r as (select * from q) select q.t, r.n from q left join r "
        f"on q.n = r.n where {c}", INNER, OUTER,
    ),
    st.builds(lambda q, c: f"select count(*) from s.b y where y.w in (select n from ({q}) q "
              f"where {c})", INNER, OUTER),
    st.builds(lambda q, c: f"select t, sum(n) over (order by t) from ({q}) q where {c}", INNER,
              OUTER),
)  # fmt: skip


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    """Two tables whose rows differ in all that a query may look at, with gaps and repetitions."""
    draw = random.Random(5)
    with duckdb.connect() as held:
        held.execute("set threads = 1; create schema s")
        held.execute("create table s.a (id int, m timestamp, k int, v int)")
        held.execute("create table s.b (id int, ts timestamp, k int, w int)")
        for table in ("a", "b"):
            for number in range(30):
                at = None if number % 10 == 9 else day(1) + draw.randrange(20) * DAY / 2
                row = [number, at, draw.randrange(4), draw.randrange(6)]
                held.execute(f"insert into s.{table} values (?, ?, ?, ?)", row)
        yield held


@given(sql=QUERIES)
@settings(
    max_examples=500, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_rows_outside_of_a_span_never_change_the_answer(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> None:
    question = guard(sql)
    found = find_time_ranges(question.tree, TABLES, NOW)
    whole = sorted(map(str, connection.execute(sql).fetchall()))
    for name, nodes in question.tables.items():
        for node in nodes:
            assert id(node) in found
            node.replace(_only(node, TABLES[name].column, found[id(node)]))
    narrowed = question.tree.sql("duckdb")
    assert sorted(map(str, connection.execute(narrowed).fetchall())) == whole, narrowed


def _only(node, column: str, span: TimeRange):  # type: ignore[no-untyped-def]
    from sqlglot import exp

    query = exp.select("*").from_(exp.table_(node.name, db=node.db))
    if span.start:
        query = query.where(f"{column} >= timestamp '{span.start}'")
    if span.end:
        query = query.where(f"{column} <= timestamp '{span.end}'")
    return query.subquery(node.alias_or_name)
