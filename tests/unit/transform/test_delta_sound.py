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

from thermocline.transform import delta
from thermocline.transform.models import parse_query, table_references

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
            sharper = delta.differing(widened, occurrence, ["day"])
            query = widened if sharper is None else sharper
            occurrence.replace(
                _values(connection, changed[table], (*COLUMNS[table], delta.OLD), occurrence)
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
) -> exp.Table:
    """The rows as a table that the query calls by the name it had for the other one."""
    kinds = [pa.bool_() if name == delta.OLD else pa.int32() for name in columns]
    arrays = [
        pa.array([row[position] for row in rows], kind) for position, kind in enumerate(kinds)
    ]
    view = f"v_{reference.alias_or_name}_{len(columns)}"
    connection.register(view, pa.table(arrays, names=list(columns)))
    return exp.to_table(view, alias=reference.alias_or_name)
