"""What DuckDB gets wrong is said otherwise on the way to it, and nothing else is changed."""

from __future__ import annotations

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from thermocline.engine import duck_sql

ROWS = """
    CREATE TABLE t AS
        SELECT id, x::DOUBLE AS x, f::FLOAT AS f, d::DECIMAL(5,2) AS d, w::TIMESTAMP AS w
        FROM (VALUES
            (1, '-0.0', '-0.0', 2, NULL),
            (2, '0.0', '0.0', 0, '2026-03-01'),
            (3, '-4.0', '0.5', -1, '2026-03-04 05:06:07')
        ) AS v(id, x, f, d, w)
"""


@pytest.fixture
def database() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute(ROWS)
    return connection


def mended(sql: str) -> str:
    tree = sqlglot.parse_one(sql, dialect="duckdb")
    duck_sql.work_around_bugs(tree)
    return tree.sql(dialect="duckdb")


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("1 / x", [float("inf"), float("inf"), -0.25]),
        ("1 / -x", [float("inf"), float("inf"), 0.25]),
        ("1 / (x * 2 - 0)", [float("inf"), float("inf"), -0.125]),
        ("-1 / f", [float("-inf"), float("-inf"), -2.0]),
        ("pow(x, -1)", [float("inf"), float("inf"), -0.25]),
        ("x ** -3", [float("inf"), float("inf"), -0.015625]),
        ("1 / (1 / (x / 1e300))", [0.0, 0.0, -4e-300]),
        ("atan2(x, x)", [0.0, 0.0, -2.356194490192345]),
        ("1 / d", [0.5, float("inf"), -1.0]),
    ],
)
def test_nobody_sees_the_sign_of_a_zero(
    database: duckdb.DuckDBPyConnection, value: str, found: list[object]
) -> None:
    rows = database.execute(mended(f"select {value} from t order by id")).fetchall()
    assert [row[0] for row in rows] == found


def test_a_sorted_zero_divides_as_a_stored_one(database: duckdb.DuckDBPyConnection) -> None:
    rows = "select x, row_number() over (order by x, id) as n from t"
    sorted_, stored = (f"select 1 / x as q from ({of}) s where x = 0" for of in (rows, "from t"))
    assert database.execute(sorted_).fetchall() != database.execute(stored).fetchall(), (
        "DuckDB keeps the sign of a zero in a sort now: is the mend still needed?"
    )
    for sql in (sorted_, stored):
        assert database.execute(mended(sql)).fetchall() == [(float("inf"),)] * 2


@pytest.mark.parametrize(
    "column", ["double", "float", "decimal(38,10)", "decimal(4,1)", "tinyint", "ubigint", "hugeint"]
)
def test_types_and_other_numbers_stay_as_they_are(column: str) -> None:
    connection = duckdb.connect()
    connection.execute(f"create table n as select 3::{column} as y union all select null")
    for sql in ("select 7 / y as q, y / y as r, interval 1 day / y as i from n",
                "select y ** 2 as p from n"):  # fmt: skip
        plain, other = connection.sql(sql), connection.sql(mended(sql))
        assert "+ 0" in mended(sql)
        assert other.types == plain.types
        assert other.fetchall() == plain.fetchall()


@pytest.mark.parametrize("sql", ["select x / 100 from t", "select x / 0.5, pow(2, x) from t"])
def test_a_constant_is_left_alone(sql: str) -> None:
    assert "+ 0" not in mended(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "select x / f, pow(x, 2), id from t",
        "select count_if(x > 0), count(*) / sum(x), round(sum(x) / (count(id) + 2), 2) from t",
        "select date_trunc('month', w) = timestamp '2026-03-04 00:00:00' from t",
        "select id from t union all select x / f from t",
        "select (x / f) as q, x / f as r, * from t",
        "select columns('x|f') / x from t",
        "select t.* from t where x / f > 1",
    ],
)
def test_results_keep_their_names(database: duckdb.DuckDBPyConnection, sql: str) -> None:
    written = sqlglot.parse_one(sql, dialect="duckdb").sql(dialect="duckdb")
    assert database.sql(mended(sql)).columns == database.sql(written).columns


def test_groups_of_a_mended_value_are_its_groups(database: duckdb.DuckDBPyConnection) -> None:
    sql = "select 1 / x as q, count(*) from t group by 1 / x order by q"
    assert database.execute(mended(sql)).fetchall() == [(-0.25, 1), (float("inf"), 2)]


def test_a_missing_time_is_unequal_to_nothing(database: duckdb.DuckDBPyConnection) -> None:
    sql = "select id from t where date_trunc('month', w) <> timestamp '2026-03-04' order by id"
    assert database.execute(sql).fetchall() == [(1,), (2,), (3,)], (
        "DuckDB has mended its comparison of truncated times: is the other wording still needed?"
    )
    assert database.execute(mended(sql)).fetchall() == [(2,), (3,)]


def test_what_has_nothing_to_mend_is_not_touched() -> None:
    tree = sqlglot.parse_one("select sum(x), id // 2 from t group by id", dialect="duckdb")
    before = tree.copy()
    duck_sql.work_around_bugs(tree)
    assert tree == before


def test_a_condition_alone_can_be_mended() -> None:
    condition = sqlglot.parse_one("x / f > 1", dialect="duckdb")
    assert isinstance(condition, exp.GT)
    duck_sql.work_around_bugs(condition)
    assert condition.sql(dialect="duckdb") == "x / (f + 0) > 1"
