"""Fields of times with a zone: DuckDB is asked otherwise, and says the same."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from thermocline.sql.guard import guard
from thermocline.sql.translate import translate

COLUMNS = {
    "silver.seen": {"id": "long", "ts": "timestamptz", "local": "timestamp", "day": "date"},
    "silver.kinds": {"id": "long", "name": "string"},
    "silver.others": {"id": "long", "ts": "timestamp"},
}
UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond")
FIELDS = (
    *(f"date_trunc('{unit}', ts)" for unit in (*UNITS, "decade", "century")),
    *(f"{unit}(ts)" for unit in ("year", "quarter", "month", "week", "weekofyear", "day")),
    *(f"{unit}(ts)" for unit in ("dayofmonth", "dayofyear", "dayofweek", "isodow", "hour")),
    "minute(ts)", "extract(hour from ts)", "extract(dow from ts)", "date_part('doy', ts)",
    "extract(epoch from ts)", "ts::date", "try_cast(ts as date)",
    "date(ts)",
)  # fmt: skip
UTC_TIME = "epoch_us"
"""What is in the text of a question that is asked otherwise."""


def said(sql: str) -> str:
    question = guard(sql, "duckdb")
    return translate(question, "duckdb", {table: table for table in question.tables}, COLUMNS)


@pytest.fixture(scope="module")
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("CREATE SCHEMA silver")
    for table, columns in COLUMNS.items():
        kinds = ", ".join(f"{name} {kind}" for name, kind in columns.items())
        connection.execute(f"CREATE TABLE {table} ({kinds})")
        connection.execute(f'CREATE VIEW "{table}" AS FROM {table}')
    connection.execute("INSERT INTO silver.kinds SELECT i, i FROM range(100) r(i)")
    return connection


@given(
    st.none() | st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31), timezones=st.just(UTC)),
    st.sampled_from(FIELDS),
)
@settings(max_examples=300, deadline=None)
@example(datetime(1582, 10, 10, 1, tzinfo=UTC), "date_trunc('month', ts)")
@example(datetime(1900, 3, 1, tzinfo=UTC), "date_trunc('week', ts)")
@example(datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC), "date_trunc('hour', ts)")
def test_a_field_is_the_same(
    database: duckdb.DuckDBPyConnection, at: datetime | None, field: str
) -> None:
    database.execute("DELETE FROM silver.seen")
    database.execute("INSERT INTO silver.seen (ts) VALUES (?)", [at])
    sql = f"select {field} as f, typeof({field}) as kind from silver.seen"
    assert database.execute(said(sql)).fetchall() == database.execute(sql).fetchall()


@pytest.mark.parametrize("field", [f for f in FIELDS if "epoch" not in f])
def test_it_is_asked_otherwise(field: str) -> None:
    assert UTC_TIME in said(f"select {field} from silver.seen").lower()


@pytest.mark.parametrize(
    "sql",
    [
        "select date_trunc('hour', local), year(day), local::date from silver.seen",
        "select ts::varchar, ts::time, extract(timezone from ts) from silver.seen",
        # DuckDB makes a range of it, and reads no more than that:
        "select id from silver.seen where date_trunc('day', ts) = date '2026-11-18'",
        # Whose column that is cannot be told, or it is another one's:
        "select date_trunc('hour', ts) from silver.seen join silver.others using (id)",
        "select date_trunc('hour', o.ts) from silver.seen s join silver.others o using (id)",
        "select date_trunc('hour', ts) from (select local as ts from silver.seen)",
        "with seen as (select local as ts from silver.seen) select hour(ts) from seen",
        "select hour(ts) from silver.seen, (select 1 as one)",
        "select hour(ts) from (silver.kinds join (select 1 as one) x on true)",
        "select local as ts from silver.seen order by date_trunc('day', ts)",
    ],
)
def test_it_stays_as_it_is(sql: str) -> None:
    assert UTC_TIME not in said(sql).lower()


@pytest.mark.parametrize(
    "sql",
    [
        "select date_trunc('hour', ts) as h, count(*) from silver.seen group by 1 order by 1",
        "select date_trunc('hour', ts), count(*) from silver.seen group by date_trunc('hour', ts)"
        " having date_trunc('hour', ts) > timestamptz '2026-01-01' order by date_trunc('hour', ts)",
        "select s.ts::date d, hour(ts), count(*) from silver.seen s group by all order by all",
        "select distinct year(ts), ts::date from silver.seen join silver.kinds k using (id)"
        " where ts::date >= date '2026-01-02' order by all",
        "with d as (select date_trunc('day', ts) as d, count(*) as n from silver.seen group by 1)"
        " select date_trunc('month', d), sum(n) from d group by 1 order by 1",
        "select id, row_number() over (partition by ts::date order by ts, id) from silver.seen"
        " qualify hour(ts) < 12 order by all",
        "select id from silver.kinds k where exists"
        " (select 1 from silver.seen where seen.id = k.id and hour(ts) = 3) order by 1",
        "select \"TS\"::date, count(*) filter (where date_trunc('day', ts) = date '2026-01-02')"
        " from silver.seen group by 1 order by 1",
    ],
)
def test_whole_questions_are_answered_the_same(
    database: duckdb.DuckDBPyConnection, sql: str
) -> None:
    database.execute("DELETE FROM silver.seen")
    database.execute(
        "INSERT INTO silver.seen SELECT i, CASE WHEN i % 7 > 0 THEN TIMESTAMPTZ '2026-01-01'"
        " + INTERVAL (i * 53) MINUTE END, NULL, NULL FROM range(100) r(i)"
    )
    expected = database.execute(sql).fetchall()
    assert expected
    assert UTC_TIME in said(sql).lower()
    assert database.execute(said(sql)).fetchall() == expected
