"""A split query has the same answer as the whole query."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thermocline.engine.arrow import normalize
from thermocline.serve.analysis.split import QuerySplit, split_query
from thermocline.serve.rows.encode import encode
from thermocline.serve.rows.fetch import downcast_integers
from thermocline.serve.values import EncodedRows, ResultColumn
from thermocline.sql.guard import guard
from thermocline.sql.translate import translate

TABLE = "silver.facts"
COLUMNS = {
    "id": "long", "k": "int", "amount": "decimal(12, 2)", "x": "double", "name": "string",
    "flag": "boolean", "day": "date", "local": "timestamp", "at": "timestamptz", "Odd": "string",
}  # fmt: skip
EDGE = datetime(2026, 3, 5)
NAMES = ["a", "", "it's", "é\n漢", "NULL", None, "5"]


def facts() -> pa.Table:
    """Rows around the boundary, to the microsecond; nulls in all columns but the time."""
    rows = []
    for n in range(120):
        at = EDGE + timedelta(hours=n * 7 % 61 - 30, microseconds=n % 3 - 1)
        rows.append({
            "id": n * 10**14, "k": None if n % 7 == 0 else n % 5 - 2,
            "amount": None if n % 5 == 0 else Decimal(n * 1337 % 5000 - 2000).scaleb(-2),
            "x": n / 7, "name": NAMES[n % len(NAMES)], "flag": (True, False, None)[n % 3],
            "day": at.date(), "local": at, "at": at.replace(tzinfo=UTC), "Odd": str(n % 2),
        })  # fmt: skip
    schema = pa.schema([
        ("id", pa.int64()), ("k", pa.int32()), ("amount", pa.decimal128(12, 2)),
        ("x", pa.float64()), ("name", pa.string()), ("flag", pa.bool_()), ("day", pa.date32()),
        ("local", pa.timestamp("us")), ("at", pa.timestamp("us", "UTC")), ("Odd", pa.string()),
    ])  # fmt: skip
    return pa.Table.from_pylist(rows, schema=schema)


class Database:
    """DuckDB with the facts, asked as a node asks it."""

    def __init__(self) -> None:
        self._connection = duckdb.connect()
        self._connection.execute("SET TimeZone = 'UTC'")
        self._connection.register("given", facts())
        self._connection.execute(f'CREATE TABLE "{TABLE}" AS FROM given')

    def ask(self, question: Any) -> pa.Table:
        ran = self._connection.execute(translate(question, "duckdb", {TABLE: TABLE}))
        described = ran.description or []
        return normalize(downcast_integers(ran.to_arrow_table(), described))

    def in_parts(self, found: QuerySplit) -> pa.Table:
        older = self.ask(found.older)
        columns, body = encode(older, "json")
        rows = EncodedRows(tuple(ResultColumn(*each) for each in columns), older.num_rows, body)
        together = found.combine(rows)
        assert together is not None
        return self.ask(together)


@pytest.fixture(scope="module")
def database() -> Database:
    return Database()


def compared(database: Database, sql: str, time: str, *, ordered: bool = False) -> None:
    question = guard(sql)
    found = split_query(question, time, EDGE, COLUMNS)
    assert found is not None, sql
    whole, parts = database.ask(question), database.in_parts(found)
    assert parts.schema == whole.schema, sql
    mine, theirs = (table.to_pylist() for table in (whole, parts))
    if not ordered:
        mine, theirs = sorted(mine, key=repr), sorted(theirs, key=repr)
    assert mine == theirs, sql


@pytest.mark.parametrize(
    "sql",
    [
        "select count(*) from silver.facts where at >= timestamptz '2026-03-04 00:00:00+00'",
        "select k, sum(amount) as total from silver.facts where at > '2026-03-01' group by 1",
        "select name, flag, min(name), max(at), min(day), count(k) from silver.facts"
        " where at > '2026-01-01' group by name, flag",
        "select date_trunc('hour', at) as h, sum(id) filter (where flag), max(amount) - min(amount)"
        " as spread from silver.facts where at > '2026-01-01' group by h",
        "select sum(amount) / count(*) as mean, coalesce(max(k), 0) + 1 from silver.facts f"
        " where f.at > '2026-01-01'",
        "select ODD, Name as N, count(*) as c from silver.facts where (k > 0 or flag) and at > "
        "'2026-01-01' group by all",
        "select k from silver.facts where at > '2026-01-01' group by k having count(*) > 20 and "
        "sum(amount) < 1000",
        "select count_if(flag) as n, case when count(*) > 10 then 'many' else 'few' end as w "
        "from silver.facts where k > 0 or at > '2026-03-03'",
        "select max(id) + 1, sum(k), min(flag) from silver.facts where at > '2030-01-01'",
        "select name, sum(amount) from silver.facts where at > '2026-03-05 02:00' group by name",
        "select upper(name) as u, sum(k * 2 + 1) from silver.facts group by u",
    ],
)
def test_chosen_questions(database: Database, sql: str) -> None:
    compared(database, sql, "at")


@pytest.mark.parametrize("time", ["day", "local", "at"])
def test_any_time_can_be_the_boundary(database: Database, time: str) -> None:
    compared(database, f"select k, count(*) as n, max({time}) from silver.facts group by k", time)


def test_order_and_limit_are_those_of_the_whole(database: Database) -> None:
    for end in ("order by 2 desc, 1 nulls first limit 3", "order by total, k desc offset 1",
                "order by sum(amount) - count(*), k nulls last limit 4", "order by k"):  # fmt: skip
        sql = f"select k, sum(amount) as total from silver.facts group by k {end}"
        compared(database, sql, "at", ordered=True)


KEYS = ("k", "name", "flag", "amount", "day", "date_trunc('day', local)", "k % 2", "name || 'x'",
        "cast(at as date)", "coalesce(k, 0)")  # fmt: skip
AGGREGATES = ("count(*)", "count(name)", "sum(amount)", "sum(k)", "sum(id)", "min(name)", "max(at)",
              "min(amount)", "max(flag)", "sum(amount * k)", "max(length(name))", "min(local)",
              "sum(case when flag then 1 else 0 end)", "max(day)", "count_if(k > 0)")  # fmt: skip
CONDITIONS = (
    "k > 0",
    "name like 'i%'",
    "flag or k is null",
    "amount between -5 and 9",
    "name in ('a', '5')",
    "at < timestamptz '2026-03-05 10:00:00+00'",
    "not flag",
)


@st.composite
def questions(draw: st.DrawFn) -> str:
    keys = draw(st.lists(st.sampled_from(KEYS), max_size=3, unique=True))
    aggregates = draw(st.lists(st.sampled_from(AGGREGATES), min_size=1, max_size=4))
    filtered = [
        f"{each} filter (where {draw(st.sampled_from(CONDITIONS))})"
        if draw(st.booleans()) and not each.startswith("count_if")
        else each
        for each in aggregates
    ]
    results = [*(f"{key} as k_{n}" for n, key in enumerate(keys)), *filtered]
    where = draw(st.lists(st.sampled_from(CONDITIONS), max_size=2, unique=True))
    sql = f"select {', '.join(draw(st.permutations(results)))} from silver.facts"
    word = draw(st.sampled_from([" and ", " or "]))
    sql += f" where {word.join(where)}" if where else ""
    sql += f" group by {', '.join(keys)}" if keys else ""
    return sql + draw(st.sampled_from(["", " having count(*) > 2", f" having {aggregates[0]} > "
                                       f"{aggregates[0]}"]))  # fmt: skip


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(questions())
def test_random_questions(database: Database, sql: str) -> None:
    compared(database, sql, "at")


@pytest.mark.parametrize(
    "sql",
    [
        "select avg(amount) from silver.facts",  # neither parts nor their order give its last digit
        "select sum(x) from silver.facts",
        "select x, count(*) from silver.facts group by x",
        "select max(x) from silver.facts",
        "select count(distinct k) from silver.facts",
        "select sum(distinct k) from silver.facts",
        "select median(k), count(*) from silver.facts",
        "select string_agg(name), count(*) from silver.facts",
        "select max(name, 2) from silver.facts",
        "select sum(1e0), count(*) from silver.facts",
        "select k, row_number() over (order by count(*)) from silver.facts group by k",
        "select distinct k, count(*) from silver.facts group by k",
        "select k, count(*) from silver.facts group by rollup (k)",
        "select k, count(*) from silver.facts group by cube (k)",
        "select id, amount from silver.facts",
        "select k from silver.facts group by k",
        "select count(*) from silver.facts a join silver.facts b using (id)",
        "select count(*) from silver.facts where k in (select max(k) from silver.facts)",
        "select (select max(k) from silver.facts), count(*) from silver.facts",
        "select count(*) from (select * from silver.facts limit 3)",
        "with f as (select * from silver.facts) select count(*) from f",
        "select count(*) from silver.facts union all select 1",
        "select count(*) + product(k) from silver.facts",
        "select count(*) from silver.facts tablesample 10%",
        "select count(*), hash(max(k)) from silver.facts",
        "select count(*) from silver.facts order by random_name",
    ],
)
def test_what_is_not_split(sql: str) -> None:
    assert split_query(guard(sql), "at", EDGE, COLUMNS) is None


def test_a_day_is_no_boundary_between_hours() -> None:
    question = guard("select count(*) from silver.facts")
    noon = EDGE + timedelta(hours=12)
    assert split_query(question, "day", noon, COLUMNS) is None
    assert split_query(question, "local", noon, COLUMNS) is not None


def test_values_that_are_no_constants_are_not_sent_along() -> None:
    found = split_query(guard("select count(*) from silver.facts"), "at", EDGE, COLUMNS)
    assert found is not None
    rows = EncodedRows((ResultColumn("a0", "list<item: int64>", "array(bigint)"),), 1, b"[[1]]\n")
    assert found.combine(rows) is None
