"""What the SQL alone says about the part of the output that a change can touch."""

from __future__ import annotations

import pytest

from thermocline.transform import delta
from thermocline.transform.models import parse_query


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select order_id, a + 1 as b, c.d from bronze.x where a > 3", True),
        ("select case when a then b end as c from bronze.x", True),
        ("select count(*) as n from bronze.x", False),
        ("select distinct a from bronze.x", False),
        ("select a, row_number() over (order by a) as r from bronze.x", False),
        ("select x.a from bronze.x join bronze.y on x.a = y.a", False),
        ("select a from bronze.x union all select a from bronze.y", False),
        ("select a from bronze.x limit 3", False),
        ("select a from (select a from bronze.x)", False),
        ("select unnest(items) as i from bronze.x", False),
    ],
)
def test_row_by_row(sql: str, expected: bool) -> None:
    assert delta.row_by_row(parse_query(sql)) is expected


@pytest.mark.parametrize(
    ("sql", "reason"),
    [
        ("select day, sum(n) as n from s.t group by day", None),
        ("select day, sum(n) as n from s.t group by day having sum(n) > 3", None),
        ("select t.day, d.a from s.t left join s.d on t.k = d.k", None),
        ("select day from s.t union all select day from s.u", None),
        ("select day, sum(n) over (partition by day, k) as n from s.t", None),
        ("select cast(t as date) as day, lag(n) over (partition by cast(t as date)) as p from s.t",
         None),
        ("with c as (select *, cast(t as date) as day from s.t), "
         "d as (select *, row_number() over (partition by day, k order by n) as r from c) "
         "select day, count(*) as n from d where r = 1 group by day", None),
        ("select day, n from (select s.t.day, sum(n) over (partition by s.t.day) as n from s.t) "
         "union all select day, sum(n) over (partition by day) as n from s.u", None),
        # The window keeps to the days of another table than the one that names the part.
        ("select d.day, r.n from (select k, rank() over (partition by day order by n) n from s.t)"
         " as r join s.d on d.k = r.k", "a window"),
        ("select u.day, rank() over (partition by t.day order by t.n) as n "
         "from s.t join s.u on t.k = u.k", "a window"),
        ("select day, n from (select day + 1 as day, sum(n) over (partition by day) as n from s.t)",
         "a window"),
        ("select * replace (k as day), sum(n) over (partition by day) m from s.t", "a partition"),
        ("select max(day) as day, count(*) as v from s.t group by k", "a partition or key that is"),
        ("with f as (select k, max(day) as j from s.t group by k) select j as day from f", "a p"),
        ("select j.d as day from (select c.d from s.t left join s.c on c.k = t.k) j", "an outer"),
        ("select t.day from s.t anti join s.c on c.k = t.k", "ANTI JOIN"),
        ("select distinct on (k) day from s.t order by k, n", "DISTINCT ON"),
        ("select day, count(*) as v from s.t group by rollup (day)", "grouping sets"),
        ("select day from s.t order by n fetch first 2 rows only", "FETCH"),
        ("select t.day from s.t positional join s.c", "POSITIONAL JOIN"),
        ("select day from s.t except select day from s.u", "EXCEPT"),
        ("select day from s.t limit 5", "LIMIT"),
        ("select day from s.t where k in (select k from s.u)", "a subquery in a condition"),
        ("select day, (select max(n) from s.u) as m from s.t", "a subquery in a condition"),
        ("select day from s.t where exists (select 1 from s.u)", "EXISTS"),
        ("select day, lag(n) over (partition by k order by day) as p from s.t", "a window"),
        ("select day, current_date as today from s.t", "the current date"),
        ("select d.day, t.n from s.t left join s.d on t.k = d.k", "an outer join"),
        ("select coalesce(d.day, t.day) as day from s.t left join s.d on t.k = d.k", "an outer"),
        ("select t.day from s.t join (select k, max(v) as m from s.d group by k) x on t.v = x.m",
         "a join on an aggregated column"),
    ],
)  # fmt: skip
def test_fitness_for_substitution(sql: str, reason: str | None) -> None:
    found = delta.unfit_for_substitution(parse_query(sql), ["day"])
    if reason is None:
        assert found is None
    else:
        assert found is not None
        assert found.reason.startswith(reason)


def test_substitution_keeps_only_rows_that_a_change_takes_part_in() -> None:
    query = parse_query(
        "with o as (select day, k, n from s.t where n > 0) "
        "select o.day, d.a, sum(o.n) as n from o left join s.d on o.k = d.k "
        "where d.a is null group by 1, 2 having sum(o.n) > 3"
    )
    [(widened, occurrence)] = delta.substitutions(query, "s.d")
    text = widened.sql("duckdb")
    assert "LEFT JOIN" not in text
    assert "HAVING" not in text
    assert "d.a IS NULL" not in text  # it would hide a row that just found its partner
    assert "n > 0" in text  # a filter on the stored table itself stays
    assert occurrence.name == "d"


def test_each_occurrence_is_substituted_once() -> None:
    query = parse_query("select a.day from s.t a join s.t b on a.k = b.k")
    found = [occurrence.alias for _, occurrence in delta.substitutions(query, "s.t")]
    assert found == ["a", "b"]


def test_columns_read() -> None:
    query = parse_query("select t.a, b + 1 as x, s.inner from l.t where c is null")
    assert delta.columns_read(query, ["a", "b", "c", "s", "z"]) == ["a", "b", "c", "s"]
    assert delta.columns_read(parse_query("select * from l.t"), ["a", "z"]) == ["a", "z"]
    assert delta.columns_read(
        parse_query("select count(*) as n, a from l.t group by a"), ["a", "z"]
    ) == ["a"]


def test_branches_of_a_union_that_no_change_reaches_are_dropped() -> None:
    query = parse_query(
        "with a as (select day, k from s.t), b as (select day, k from a) "
        "select day, 1 as n from a union all select b.day as d, 2 as m from b "
        "left join s.d on b.k = d.k union all select day, 3 as n from s.u"
    )
    [(widened, _)] = delta.substitutions(query, "s.d")
    assert widened.sql("duckdb").endswith(
        "SELECT b.day AS day, 2 AS n FROM b JOIN s.d ON b.k = d.k"
    )
    [(widened, _)] = delta.substitutions(query, "s.t")
    text = widened.sql("duckdb")
    assert "1 AS n" in text
    assert "2 AS m" in text
    assert "3 AS n" not in text
    [(widened, _)] = delta.substitutions(query, "s.u")
    assert widened.sql("duckdb").endswith("SELECT day, 3 AS n FROM s.u")


@pytest.mark.parametrize(
    ("sql", "fits"),
    [
        ("select at, row_number() over (partition by cast(at as date), k order by at) n from s.t",
         True),
        ("select at from (select *, row_number() over (partition by cast(at as date), k order by n)"
         " as r from s.t) as x where r = 1", True),
        ("select at, row_number() over (partition by at) as n from s.t", True),
        ("select at, row_number() over (partition by k) as n from s.t", False),
        ("select at, row_number() over (partition by date_trunc('month', at)) n from s.t", False),
        ("select v as at, row_number() over (partition by cast(at as date)) as n from s.t", False),
    ],
)  # fmt: skip
def test_windows_of_a_part_that_is_a_day(sql: str, fits: bool) -> None:
    found = delta.unfit_for_substitution(parse_query(sql), ["at"], ["at"])
    assert (found is None) is fits
