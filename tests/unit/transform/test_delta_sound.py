"""No changed part is missed: random tables, random changes, the query run before and after.

The parts of the output that really differ must be among those that the substitutions name.
DuckDB runs both, so that thousands of small cases take seconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlglot import exp

from thermocline.transform import delta, narrow
from thermocline.transform.models import parse_query, table_references
from thermocline.transform.parts import OLD

COLUMNS = {"s.o": ("id", "day", "k", "n"), "s.c": ("k", "seg", "since", "until")}
QUERIES = (
    "select o.day, sum(o.n) as n from s.o as o group by o.day",
    "select o.day, c.seg, sum(o.n) as n from s.o as o join s.c as c on c.k = o.k "
    "group by o.day, c.seg",
    "select o.day, coalesce(c.seg, 9) as seg, count(*) as n from s.o as o "
    "left join s.c as c on c.k = o.k and o.day >= c.since and (c.until is null or o.day < c.until) "
    "group by o.day, coalesce(c.seg, 9)",
    "with kept as (select id, day, k, n from s.o where n > 0) "
    "select k.day, c.seg, max(k.n) as n from kept as k left join s.c as c on c.k = k.k "
    "where k.n < 3 group by k.day, c.seg having count(*) > 1",
    "select o.day, o.n, c.seg from s.c as c join s.o as o on c.k = o.k where c.seg <> 1",
    "select o.day, c.seg, count(distinct d.seg) as n from s.o as o join s.c as c on c.k = o.k "
    "left join s.c as d on d.k = c.seg group by o.day, c.seg",
    "select o.day, sum(o.n) as n from s.o as o group by o.day union all "
    "select o.day, c.seg as n from s.o as o left join s.c as c on c.k = o.k",
)

NARROWED = (
    *QUERIES,
    "with a as (select day as d, k from s.o), b as (select d, count(*) as n from a group by d) "
    "select b.d as day, b.n from b",
    # The CTE also gives the day before, which must not be left out.
    "with a as (select day, n from s.o) "
    "select x.day, count(y.n) as n from a as x left join a as y on y.day = x.day - 1 "
    "group by x.day",
    "select x.day, x.n from (select o.day, c.seg as n from s.o as o join s.c as c on c.k = o.k) x",
    "select o.day, p.n from s.o as o join s.o as p on p.k = o.k",
    "select o.day + 1 as day, o.n from s.o as o",
)

small = st.integers(0, 3)
maybe = st.one_of(st.none(), small)
orders = st.lists(st.tuples(small, small, maybe, maybe), max_size=6)
customers = st.lists(st.tuples(maybe, maybe, small, maybe), max_size=5)


@pytest.fixture(scope="module")
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as opened:
        yield opened


@pytest.mark.parametrize("sql", QUERIES)
def test_every_part_that_differs_is_named(connection: duckdb.DuckDBPyConnection, sql: str) -> None:
    @settings(max_examples=30, deadline=None)
    @given(before=st.tuples(orders, customers), after=st.tuples(orders, customers))
    # A version that is closed beside the one that takes its place.
    @example(
        before=([(1, 1, 1, 1), (2, 3, 1, 1)], [(1, 0, 0, None)]),
        after=([(1, 1, 1, 1), (2, 3, 1, 1)], [(1, 0, 0, 2), (1, 1, 2, None)]),
    )
    def holds(before: tuple[list[Any], list[Any]], after: tuple[list[Any], list[Any]]) -> None:
        old = dict(zip(COLUMNS, before, strict=True))
        new = dict(zip(COLUMNS, after, strict=True))
        differ = Counter(_answer(connection, parse_query(sql), old))
        differ.subtract(_answer(connection, parse_query(sql), new))
        really = {row[0] for row, count in differ.items() if count}
        assert really <= _named(connection, sql, old, new)

    holds()


@pytest.mark.parametrize("sql", NARROWED)
def test_rows_that_are_left_out_reach_none_of_the_asked_parts(
    connection: duckdb.DuckDBPyConnection, sql: str
) -> None:
    @settings(max_examples=30, deadline=None)
    @given(tables=st.tuples(orders, customers), asked=st.sets(small, min_size=1, max_size=3))
    def holds(tables: tuple[list[Any], list[Any]], asked: set[int]) -> None:
        held = dict(zip(COLUMNS, tables, strict=True))
        whole = Counter(r for r in _answer(connection, parse_query(sql), held) if r[0] in asked)
        query = parse_query(sql)
        for number, reach in enumerate(narrow.reaches(query, "day")):
            table = f"{reach.reference.db}.{reach.reference.name}"
            at = COLUMNS[table].index(reach.column)
            rows = [row for row in held[table] if row[at] in asked]
            view = _values(connection, rows, COLUMNS[table], reach.reference, f"_{number}")
            reach.reference.replace(view)
        narrowed = Counter(r for r in _answer(connection, query, held) if r[0] in asked)
        assert narrowed == whole

    holds()


def test_what_can_be_narrowed() -> None:
    found = [
        [(reach.reference.sql(), reach.column) for reach in narrow.reaches(parse_query(q), "day")]
        for q in NARROWED
    ]
    orders_day = [("s.o AS o", "day")]
    assert found[:2] == [orders_day, orders_day]
    assert found[3] == [("s.o", "day")]
    assert found[6] == orders_day * 2  # one for each branch
    assert found[7] == [("s.o", "day")]
    assert found[8] == []
    assert found[10] == orders_day  # the one that gives the day, not the one joined to it
    assert found[11] == []


def test_closing_a_version_touches_nothing_that_happened_before(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    rows = [(n, n % 4, 1, 1) for n in range(8)]
    old = {"s.o": rows, "s.c": [(1, 0, 0, None)]}
    new = {"s.o": rows, "s.c": [(1, 0, 0, 3), (1, 1, 3, None)]}
    assert _named(connection, QUERIES[2], old, new) == {3}


def _named(
    connection: duckdb.DuckDBPyConnection, sql: str, old: dict[str, Any], new: dict[str, Any]
) -> set[Any]:
    """What the substitutions name, each table's changed rows in the place of each occurrence."""
    changed = {table: _changes(old[table], new[table]) for table in COLUMNS}
    others = {
        table: [*new[table], *(row[:-1] for row in changed[table] if row[-1])] for table in COLUMNS
    }
    named: set[Any] = set()
    for table in COLUMNS:
        for widened, occurrence in delta.substitutions(parse_query(sql), table):
            reach = narrow.reach_of(widened, occurrence, "day")
            if reach is not None:
                at = COLUMNS[table].index(reach.column)
                named |= {row[at] for row in changed[table]}
                continue
            sharper = delta.differing(widened, occurrence, ["day"])
            query = widened if sharper is None else sharper
            occurrence.replace(
                _values(connection, changed[table], (*COLUMNS[table], OLD), occurrence)
            )
            named |= {row[0] for row in _answer(connection, query, others)}
    return named


def _changes(old: list[Any], new: list[Any]) -> list[Any]:
    gone, come = Counter(old) - Counter(new), Counter(new) - Counter(old)
    return [(*r, True) for r in gone.elements()] + [(*r, False) for r in come.elements()]


def _answer(
    connection: duckdb.DuckDBPyConnection, query: exp.Query, tables: dict[str, Any]
) -> list[Any]:
    for reference in table_references(query):
        if reference.db:
            name = f"{reference.db}.{reference.name}"
            reference.replace(_values(connection, tables[name], COLUMNS[name], reference))
    return connection.execute(query.sql("duckdb")).fetchall()


def _values(
    connection: duckdb.DuckDBPyConnection,
    rows: list[Any],
    columns: tuple[str, ...],
    reference: exp.Table,
    suffix: str = "",
) -> exp.Table:
    """The rows as a table that the query calls by the name it had for the other one."""
    kinds = [pa.bool_() if name == OLD else pa.int32() for name in columns]
    arrays = [
        pa.array([row[position] for row in rows], kind) for position, kind in enumerate(kinds)
    ]
    view = f"v_{reference.alias_or_name}_{len(columns)}{suffix}"
    connection.register(view, pa.table(arrays, names=list(columns)))
    return exp.to_table(view, alias=reference.alias_or_name)
