"""What the query alone says about the part of the output that a change can touch."""

from __future__ import annotations

import pytest

from thermocline.transform import impact
from thermocline.transform.models import parse_query

COLUMNS = {
    "s.t": {"day": "date", "ts": "timestamptz", "k": "long", "n": "long", "a": "string",
            "x": "double", "items": "list<struct<id: int, size: long>>"},
    "s.u": {"day": "date", "k": "long", "n": "long"},
    "s.d": {"k": "long", "a": "string", "since": "date", "until": "date", "v": "long"},
}  # fmt: skip
DAY = {"day": "date"}


def reason(
    sql: str, target: dict[str, str] | None = None, days: tuple[str, ...] = ()
) -> str | None:
    """Why a query is computed as a whole; None if its parts can be found."""
    try:
        impact.analyze_query(parse_query(sql), COLUMNS, target or DAY, days)
    except impact.Unsafe as unsafe:
        return unsafe.reason
    return None


def touches(sql: str, table: str) -> list[str]:
    """The queries that name what a table's changes touch, without their CTEs."""
    found = impact.analyze_query(parse_query(sql), COLUMNS, DAY)
    texts = []
    for touch in found.touches:
        touch.query.set("with_", None)
        if touch.table == table:
            texts.append(touch.query.sql("duckdb"))
    return texts


@pytest.mark.parametrize(
    "sql",
    [
        "select day, sum(n) as n from s.t group by day",
        "select day, sum(n) as n from s.t group by day having sum(n) > 3",
        "select t.day, d.a from s.t left join s.d on t.k = d.k",
        "select t.day, d.a from s.d right join s.t on t.k = d.k",
        "select t.day, t.n from s.t semi join s.d on t.k = d.k",
        "select t.day, t.n from s.t anti join s.d on t.k = d.k",
        "select day from s.t union all select day from s.u",
        "select day from s.t except select day from s.u",
        "select day, sum(n) over (partition by day, k) as n from s.t",
        "select day, lag(n) over (partition by k order by day, n) as p from s.t",
        "select cast(ts as date) as day, lag(n) over (partition by cast(ts as date) order by n) p "
        "from s.t",
        "with c as (select *, cast(ts as date) as d from s.t), "
        "e as (select *, row_number() over (partition by d, k order by n) as r from c) "
        "select d as day, count(*) as n from e where r = 1 group by d",
        "select t.day, x.m from s.t join (select k, max(v) m from s.d group by k) x on t.k = x.k",
        "select t.day, i.size from s.t, unnest(t.items) as u(i)",
        "select day, string_agg(a, ',' order by a) as l from s.t group by day",
        "select date '2026-01-01' as day, count(*) as n from s.t",
        "select t.k as day from s.t",
    ],
)  # fmt: skip
def test_queries_whose_touched_parts_can_be_found(sql: str) -> None:
    assert reason(sql, {"day": "long"} if "t.k as day" in sql else DAY) is None


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select max(day) as day, count(*) as v from s.t group by k", "is an aggregate"),
        ("with f as (select k, max(day) as j from s.t group by k), g as (select k, j from f), "
         "h as (select k, j as day from g) select day from h", "is an aggregate"),
        ("select min(day) over (partition by k) as day from s.t", "is an aggregate or a window"),
        ("select j.since as day from (select d.since from s.t left join s.d on d.k = t.k) j",
         "an outer join that may supply"),
        ("select coalesce(d.since, t.day) as day from s.t left join s.d on t.k = d.k",
         "an outer join that may supply"),
        ("select t.day from s.t full join s.d on t.k = d.k", "a FULL JOIN"),
        ("select distinct on (k) day from s.t order by k, n", "DISTINCT"),
        ("select day, count(*) as v from s.t group by rollup (day)", "ROLLUP"),
        ("select day from s.t order by n fetch first 2 rows only", "LIMIT"),
        ("select day from s.t limit 5", "LIMIT"),
        ("select day from s.t offset 5", "OFFSET"),
        ("select t.day from s.t positional join s.d", "JOIN with METHOD"),
        ("select t.day from s.t asof join s.d on t.day >= d.since", "JOIN with METHOD"),
        ("select day from s.t where k in (select k from s.u)", "IN with QUERY"),
        ("select day, (select max(n) from s.u) as m from s.t", "a subquery"),
        ("select day from s.t where exists (select 1 from s.u)", "exists()"),
        ("select day, rank() over (order by n) as p from s.t", "a window that reaches across"),
        ("select day, n from s.t tablesample 10%", "SAMPLE"),
        ("select t.day from s.t join (select k, max(v) as m from s.d group by k) x on t.n = x.m",
         "whose key cannot be followed"),
        ("with recursive r as (select 1 as n union all select n + 1 from r where n < 3) "
         "select t.day from s.t join r on r.n = t.n", "a recursive CTE"),
        ("select day, now() as at from s.t", "now()"),
        ("select day, current_timestamp as at from s.t", "not known to be deterministic"),
        ("select day, current_date as at from s.t", "not known to be deterministic"),
        ("select day, localtimestamp as at from s.t", "not known to be deterministic"),
        ("select day, uuid() as id from s.t", "not known to be deterministic"),
        ("select day, random() as r from s.t", "not known to be deterministic"),
        ("select day, monotonically_increasing_id() as i from s.t", "increasing_id()"),
        ("select day, input_file_name() as f from s.t", "input_file_name()"),
        ("select day, first(n) as f from s.t group by day", "first()"),
        ("select day, any_value(n) as f from s.t group by day", "any_value()"),
        ("select day, arg_max(n, ts) as f from s.t group by day", "not known to be deterministic"),
        ("select day, mode(n) as f from s.t group by day", "mode()"),
        ("select day, list(n) as f from s.t group by day", "leaves a choice"),
        ("select day, string_agg(a, ',' order by n) as f from s.t group by day", "leaves a choice"),
        ("select day, some_day(n) as f from s.t", "some_day()"),
        ("select day, sum_of(n) as f from s.t group by day", "sum_of()"),
        ("select day, row_number() over (partition by day) as r from s.t", "without an order"),
        ("select day, cast('now' as timestamp) as t from s.t", "depends on when"),
        ("select day, user as u from s.t", "a name that no source has"),
        ("select date_trunc('day', ts) as day from s.t", "timestamptz there and date"),
        ("select day from s.t as x(day)", "a list of columns"),
        ("select columns('d.*') from s.t", "columns()"),
        ("select day, unnest(items) as i from s.t", "not known to be deterministic"),
        ("with a as (select day from s.t) select b.day from (with a as (select day from s.u) "
         "select day from a) as b join a on a.day = b.day", "two CTEs of one name"),
    ],
)  # fmt: skip
def test_queries_without_a_proof_are_computed_whole(sql: str, said: str) -> None:
    found = reason(sql)
    assert found is not None
    assert said in found


def test_a_filter_on_a_computed_value_takes_no_part_in_finding_what_changed() -> None:
    sql = (
        "with a as (select day, k, sum(n) as total from s.t group by day, k), "
        "b as (select day, k, total from a) select day, k, total from b where total > 100"
    )
    assert touches(sql, "s.t") == ['SELECT t.day AS "day" FROM _tc_changed."s.t" AS t']


def test_changed_rows_of_a_joined_table_are_looked_up_by_the_whole_condition() -> None:
    sql = (
        "select t.day, sum(t.n) as n, d.a from s.t left join s.d on d.k = t.k and t.day >= d.since "
        "where t.n > 0 and d.a is null group by t.day, d.a"
    )
    (found,) = touches(sql, "s.d")
    assert "d.k = t.k AND t.day >= d.since" in found
    assert "t.n > 0" in found
    assert "d.a IS NULL" not in found  # it would hide a row that just found its partner
    assert "GROUP BY t.day, d.a, t.n, t.k" in found  # d.since may change without a difference


def test_changed_rows_of_a_computed_table_are_looked_up_by_its_key() -> None:
    sql = (
        "with x as (select k, max(v) as m from s.d group by k having max(v) > 3) "
        "select t.day, x.m from s.t join x on x.k = t.k and x.m > t.n"
    )
    (found,) = touches(sql, "s.d")
    assert 'SELECT DISTINCT d.k AS c0 FROM _tc_changed."s.d" AS d' in found
    assert "t.k IS NOT DISTINCT FROM _tc_found.c0" in found


def test_a_key_that_the_join_equates_is_named_by_either_side() -> None:
    sql = (
        "with p as (select k, max(a) as a from s.d group by k), "
        "b as (select k, sum(n) as n from s.t group by k) "
        "select p.k as key, p.a, b.n from p left join b on b.k = p.k"
    )
    found = impact.analyze_query(parse_query(sql), COLUMNS, {"key": "long"})
    assert [(touch.table, touch.column) for touch in found.touches] == [("s.d", "k"), ("s.t", "k")]
    assert [(each.table, each.column) for each in found.filters] == [("s.d", "k"), ("s.t", "k")]


def test_each_mention_of_a_table_is_followed() -> None:
    sql = "select a.day from s.t as a join s.t as b on a.k = b.k"
    first, second = touches(sql, "s.t")
    assert first == 'SELECT a.day AS "day" FROM _tc_changed."s.t" AS a'
    assert 'FROM s.t AS a CROSS JOIN _tc_changed."s.t" AS b' in second


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select day, n from s.t", [("s.t", "day", False)]),
        ("select cast(ts as date) as day from s.t", [("s.t", "ts", True)]),
        ("with a as (select day as d, k from s.t), b as (select d, count(*) n from a group by d) "
         "select b.d as day, b.n from b", [("s.t", "day", False)]),
        # The CTE also gives the day before, which must not be left out.
        ("with a as (select day, n from s.t) select x.day, count(y.n) as n from a as x "
         "left join a as y on y.day = x.day - 1 group by x.day", []),
        ("select x.day from s.t as x join s.u as y on y.day = x.day",
         [("s.t", "day", False), ("s.u", "day", False)]),
        ("select day + 1 as day from s.t", []),
        ("select day, lag(n) over (partition by k order by n, day) as p from s.t", []),
        ("select day, lag(n) over (partition by day order by n) as p from s.t",
         [("s.t", "day", False)]),
        ("select day from s.t union all select since as day from s.d",
         [("s.t", "day", False), ("s.d", "since", False)]),
    ],
)  # fmt: skip
def test_mentions_whose_rows_can_be_left_out(
    sql: str, expected: list[tuple[str, str, bool]]
) -> None:
    found = impact.analyze_query(parse_query(sql), COLUMNS, DAY)
    assert [(each.table, each.column, each.day) for each in found.filters] == expected


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select k, n + 1 as b, items[1].size as z from s.t where n > 3", None),
        ("select case when a = 'x' then k end as c from s.t", None),
        ("select count(*) as n from s.t", "an aggregate"),
        ("select distinct k from s.t", "DISTINCT"),
        ("select k, row_number() over (order by n) as r from s.t", "an aggregate or a window"),
        ("select t.k from s.t join s.u on t.k = u.k", "more than one source"),
        ("select k from s.t union all select k from s.u", "more than one source"),
        ("select k from s.t limit 3", "LIMIT"),
        ("select k from (select k from s.t)", "not a stored table"),
        ("select unnest(items) as i from s.t", "not known to be deterministic"),
        ("select k, now() as at from s.t", "now()"),
        ("select k, uuid() as id from s.t", "uuid()"),
        ("select k from s.t where k > (select max(k) from s.u)", "a subquery"),
    ],
)  # fmt: skip
def test_row_by_row(sql: str, said: str | None) -> None:
    try:
        impact.require_row_by_row(parse_query(sql), COLUMNS)
    except impact.Unsafe as unsafe:
        assert said is not None
        assert said in unsafe.reason
    else:
        assert said is None


def test_a_load_time_may_be_the_clock_where_the_contract_says_so() -> None:
    query = parse_query("select k, now() as loaded_at from s.t")
    impact.require_row_by_row(query, COLUMNS, ["loaded_at"])
    with pytest.raises(impact.Unsafe, match="now"):
        impact.require_row_by_row(query, COLUMNS, ["other"])
    hidden = parse_query("select k, extract('hour' from now()) as loaded_at from s.t")
    with pytest.raises(impact.Unsafe, match="now"):
        impact.require_row_by_row(hidden, COLUMNS, ["loaded_at"])


def test_columns_read() -> None:
    query = parse_query("select t.a, b + 1 as x, s.inner from l.t where c is null")
    assert impact.find_columns_read(query, ["a", "b", "c", "s", "z"]) == ["a", "b", "c", "s"]
    assert impact.find_columns_read(parse_query("select * from l.t"), ["a", "z"]) == ["a", "z"]
    counted = parse_query("select count(*) as n, a from l.t group by a")
    assert impact.find_columns_read(counted, ["a", "z"]) == ["a"]
