"""Values that a query may have made in one step."""

from __future__ import annotations

import pytest

from thermocline.errors import BadInput
from thermocline.sql.guard import guard
from thermocline.sql.value_limits import ValueTooLarge

SMALL = [
    "repeat('x', 10)", "repeat(name, 3)", "rpad(name, 20, ' ')", "lpad(name, 20, '0')",
    "format('{:9.2f}', x)", "format('{} of {}', x, y)", "range(100)", "generate_series(1, 100, 2)",
    "range(-5, 5)", "repeat('ab', least(n, 100))", "rpad(name, least(length(name) + 4, 50), '.')",
    "generate_series(date '2020-01-01', day, interval 1 day)", "repeat('x', n % 10)",
    "generate_series(timestamp '2026-01-01', timestamp '2026-01-02', interval 1 minute)",
    "repeat(repeat('x', 100), 100)", "repeat(upper(name), 5)", "range(0, least(n, 50))",
    "bar(x, 0, 10, 80)", "repeat('x', 2 * 5 + 1)", "repeat('', -1)",
]  # fmt: skip
LARGE = [
    "repeat('x', 2000000000)", "rpad('x', 2000000000, 'y')", "lpad('x', 2000000000, 'y')",
    "format('{:999999999}', 1)", "format('{:>999999999}', 'a')", "format('{:{}}', 1, 999999999)",
    "format('{:0.999999999f}', 1.5)", "format(name, 1)", "repeat(repeat('x', 100000), 100000)",
    "repeat('x', n)", "rpad(name, n, 'y')", "rpad('x', n * 1000000, 'y')",
    "repeat('x', (select 2000000000))", "range(1000000000)", "generate_series(1, 1000000000)",
    "unnest(range(1000000000))", "range(n)", "range(1, n)", "range(-1000000000, 5)",
    "generate_series(1, 1000000, 0.0001)", "repeat('x' || repeat('y', 500000), 500000)",
    "generate_series(timestamp '0001-01-01', timestamp '9999-01-01', interval 1 second)",
    "generate_series(start, stop, interval 1 second)", "bar(x, 0, 1, 2000000000)",
    "repeat(rpad('x', 1000000, 'y'), 1000)", "repeat(string_agg(name, ''), 100)",
    "repeat('x', cast('2000000000' as int))", "repeat('x', 1e12)", "repeat('x', least(n, 2e9))",
    "list_transform(range(2000000000), x -> x)", "len(range(0, 3000000000))",
    "rpad('x', case when true then 2000000000 else 1 end, 'y')", "repeat('x', -(-2000000000))",
]  # fmt: skip
IN_TRINO = [
    "rpad('x', 2000000000, 'y')", "format('%999999999d', 1)", "sequence(1, 1000000000)",
    "repeat('x', 2000000000)", "format('%*d', 999999999, 1)", "sequence(n, 1)",
]  # fmt: skip
IN_SPARK = [
    "rpad('x', 2000000000, 'y')", "repeat('x', 2000000000)", "sequence(1, 1000000000)",
    "format_string('%999999999d', 1)", "space(2000000000)", "array_repeat('x', 2000000000)",
    "format_number(1.5, 2000000000)", "printf('%999999999d', 1)",
]  # fmt: skip
AS_TABLES = [
    "select count(*) from range(1000000000)",
    "select count(*) from generate_series(1, 1000000000) t(i)",
]


@pytest.mark.parametrize("value", SMALL)
def test_small_values_may_be_made(value: str) -> None:
    guard(f"select {value} from a.b")


@pytest.mark.parametrize("sql", AS_TABLES)
def test_a_series_of_rows_is_made_row_by_row(sql: str) -> None:
    guard(sql)


@pytest.mark.parametrize(("dialect", "value"), [
    *(("duckdb", each) for each in LARGE), *(("trino", each) for each in IN_TRINO),
    *(("spark", each) for each in IN_SPARK),
])  # fmt: skip
def test_large_ones_are_refused_and_what_may_be_large(dialect: str, value: str) -> None:
    for sql in (f"select {value} from a.b", f"select 1 from a.b where length({value}) > 1"):
        with pytest.raises(BadInput) as refused:
            guard(sql, dialect)
        assert isinstance(refused.value, ValueTooLarge) or "is not allowed" in refused.value.cause
