"""Encoded rows: lossless in every format."""

from __future__ import annotations

import base64
import csv
import io
import json
import time
from datetime import UTC, date, datetime, timedelta
from datetime import time as clock
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.engine.arrow import normalize, to_json_rows
from thermocline.serve.rows.encode import encode

DAYS = st.dates(date(1, 1, 1), date(9999, 12, 31))
LOCAL = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999))
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "flag": (pa.bool_(), st.booleans()),
    "small": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "large": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "real": (pa.float32(), st.floats(width=32)),
    "double": (pa.float64(), st.floats()),
    "text": (pa.large_string(), st.text()),
    "bytes": (pa.binary(), st.binary()),
    "day": (pa.date32(), DAYS),
    "local": (pa.timestamp("us"), LOCAL),
    "moment": (pa.timestamp("us", "UTC"), LOCAL.map(lambda at: at.replace(tzinfo=UTC))),
    "clock": (pa.time64("us"), st.times()),
    "price": (pa.decimal128(20, 4), st.decimals(-(10**15), 10**15, places=4)),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(0, 9))),
    "row": (pa.struct({"a": pa.int32(), "b": pa.string()}),
            st.fixed_dictionaries({"a": st.none() | st.integers(0, 9), "b": st.text()})),
    "map": (pa.map_(pa.string(), pa.date32()),
            st.dictionaries(st.text(), st.none() | DAYS).map(lambda held: list(held.items()))),
    "pairs": (pa.map_(pa.int32(), pa.float64()),
              st.dictionaries(st.integers(0, 99), st.floats()).map(lambda m: list(m.items()))),
}  # fmt: skip


@st.composite
def tables(draw: st.DrawFn) -> pa.Table:
    count = draw(st.integers(0, 6))
    columns = {}
    for name in draw(st.lists(st.sampled_from(sorted(KINDS)), min_size=1, max_size=5, unique=True)):
        kind, values = KINDS[name]
        held = draw(st.lists(st.none() | values, min_size=count, max_size=count))
        columns[name] = pa.array(held, kind)
    return pa.table(columns)


def lines(body: bytes) -> list[Any]:
    return [json.loads(line) for line in body.decode().split("\n")[:-1]]


@given(tables())
def test_json_has_the_values_that_every_engine_gives(table: pa.Table) -> None:
    columns, body = encode(table, "json")
    assert [name for name, _, _ in columns] == table.column_names
    expected = [list(row.values()) for row in to_json_rows(normalize(table))]
    assert lines(body) == json.loads(json.dumps(expected))


@given(tables())
def test_arrow_gives_the_canonical_rows_back(table: pa.Table) -> None:
    _, body = encode(table, "arrow")
    found = pa.ipc.open_stream(body).read_all()
    assert found.schema.equals(normalize(table).schema)
    # Text, because a NaN is not equal to itself.
    assert str(found.to_pylist()) == str(normalize(table).to_pylist())


@given(tables())
def test_csv_reads_back_as_the_same_cells(table: pa.Table) -> None:
    _, body = encode(table, "csv")
    names, *rows = csv.reader(io.StringIO(body.decode(), newline=""), strict=True)
    assert names == table.column_names
    assert len(rows) == table.num_rows
    for name, position in zip(names, range(len(names)), strict=True):
        if name != "text":
            continue
        for cell, value in zip((row[position] for row in rows), table[name].to_pylist(),
                               strict=True):  # fmt: skip
            risky = value and value[0] in "=+-@\t\r\n"
            assert cell == ("'" if risky else "") + (value or "")


def run(sql: str) -> pa.Table:
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    return connection.execute(sql).to_arrow_table()


TRINO = [
    ("true", "boolean", True),
    ("1::tinyint", "tinyint", 1),
    ("1", "integer", 1),
    ("9223372036854775807", "bigint", 9223372036854775807),
    ("18446744073709551615::ubigint", "decimal(20,0)", "18446744073709551615"),
    ("170141183460469231731687303715884105727::hugeint // 10", "decimal(38,0)",
     "17014118346046923173168730371588410572"),
    ("0.1::float", "real", 0.1),
    ("'nan'::double", "double", "NaN"),
    ("'-inf'::float", "real", "-Infinity"),
    ("'inf'::double", "double", "Infinity"),
    ("12.50::decimal(12,2)", "decimal(12,2)", "12.50"),
    ("0::decimal(20,10)", "decimal(20,10)", "0.0000000000"),
    ("'é\n'", "varchar", "é\n"),
    ("'ab'::blob", "varbinary", "YWI="),
    ("date '2026-11-14'", "date", "2026-11-14"),
    ("time '10:00:00.5'", "time(6)", "10:00:00.500000"),
    ("timestamp '2026-11-14 10:00:00.123456'", "timestamp(6)", "2026-11-14 10:00:00.123456"),
    ("timestamp '0001-01-01'", "timestamp(6)", "0001-01-01 00:00:00.000000"),
    ("timestamptz '2026-11-14 10:00:00+02'", "timestamp(6) with time zone",
     "2026-11-14 08:00:00.000000 UTC"),
    ("timestamp_ns '2026-11-14 10:00:00.123456789'", "timestamp(9)",
     "2026-11-14 10:00:00.123456789"),
    ("[1, null]::bigint[]", "array(bigint)", [1, None]),
    ("{'a': 1, 'b \"x\"': [timestamp '0999-01-01']}",
     'row("a" integer, "b ""x""" array(timestamp(6)))', [1, ["0999-01-01 00:00:00.000000"]]),
    ("map {'k': 1.5}", "map(varchar, decimal(2,1))", {"k": "1.5"}),
    ("map {true: null::int}", "map(boolean, integer)", {"true": None}),
    ("map {timestamptz '2026-01-01': 1}", "map(timestamp(6) with time zone, integer)",
     {"2026-01-01 00:00:00.000000 UTC": 1}),
    ("uuid '6b2f5b0e-0f5c-4f0c-9a33-6f9f0a3c1d2e'", "varchar",
     "6b2f5b0e-0f5c-4f0c-9a33-6f9f0a3c1d2e"),
    ("interval '1 month -3 days 4.5 seconds'", "varchar", "P1M-3DT4.5S"),
    ("null::decimal(3,1)", "decimal(3,1)", None),
]  # fmt: skip


@pytest.mark.parametrize(("sql", "kind", "value"), TRINO)
def test_trino_values_and_types(sql: str, kind: str, value: Any) -> None:
    columns, body = encode(run(f"SELECT {sql} AS v"), "trino")
    assert columns[0][2] == kind
    assert lines(body) == [[value]]


@pytest.mark.parametrize("format_", ["json", "trino"])
@pytest.mark.parametrize(
    "sql",
    ["SELECT timestamp '290000-01-01' AS a", "SELECT date '200000-01-01' AS a",
     "SELECT timestamp_ns '2026-01-01 00:00:00.123456789' AS a", "SELECT interval 3 day AS a",
     "SELECT timestamptz '-infinity' AS a"],
)  # fmt: skip
def test_what_python_has_no_value_for_is_written_all_the_same(sql: str, format_: Any) -> None:
    ((found,),) = lines(encode(run(sql), format_)[1])
    assert isinstance(found, str) and len(found) >= 3


def test_columns_of_one_name_all_stay() -> None:
    table = run("SELECT 1 AS a, 2 AS b").rename_columns(["a", "a"])
    assert lines(encode(table, "json")[1]) == [[1, 2]]
    assert encode(table, "csv")[1] == b"a,a\r\n1,2\r\n"
    assert [name for name, _, _ in encode(table, "trino")[0]] == ["a", "a"]


def test_no_rows_are_no_lines() -> None:
    table = run("SELECT 1 AS a, 'x' AS b WHERE false")
    assert encode(table, "json")[1] == encode(table, "trino")[1] == b""
    assert encode(table, "csv")[1] == b"a,b\r\n"
    assert pa.ipc.open_stream(encode(table, "arrow")[1]).read_all().num_rows == 0


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n"])
def test_a_csv_cell_is_never_a_formula_and_numbers_stay_numbers(start: str) -> None:
    formula = start + 'cmd|"/c calc"!A1'
    table = pa.table({
        start + "name": [formula], "number": [-5], "money": [Decimal("-1.50")],
        "double": [-1e-7], "bytes": [base64.b64decode("+w==")], "list": [[formula]],
    })  # fmt: skip
    names, cells = csv.reader(io.StringIO(encode(table, "csv")[1].decode(), newline=""))
    assert names[0] == f"'{start}name"
    assert cells[:4] == [f"'{formula}", "-5", "-1.50", "-1e-07"]
    assert cells[4] == "'+w=="
    assert cells[5].startswith("[")


def test_csv_tells_a_null_from_an_empty_text() -> None:
    assert encode(pa.table({"a": [None, ""], "b": [1, None]}), "csv")[1] == b'a,b\r\n,1\r\n"",\r\n'
    assert encode(pa.table({"a": [None, 1]}), "csv")[1] == b'a\r\n""\r\n1\r\n', "no row is lost"


def test_text_cannot_break_a_line() -> None:
    awkward = 'a\nb\r\u2028\u2029\x00\x7f"\\'
    table = pa.table({"a": [awkward, "b"]})
    assert lines(encode(table, "json")[1]) == [[awkward], ["b"]]
    assert encode(table, "json")[1].count(b"\n") == 2


def test_a_small_result_takes_a_fraction_of_a_millisecond() -> None:
    at = datetime(2026, 11, 14, 10, tzinfo=UTC)
    table = pa.table({
        "id": list(range(30)), "name": [f"name {n}" for n in range(30)],
        "at": [at + timedelta(seconds=n) for n in range(30)],
        "score": [n / 7 for n in range(30)], "price": [Decimal(n) / 4 for n in range(30)],
    })  # fmt: skip

    def once() -> float:
        began = time.perf_counter()
        encode(table, "json")
        return time.perf_counter() - began

    assert min(once() for _ in range(300)) < 0.0006


def test_a_time_of_day_keeps_its_microseconds() -> None:
    table = pa.table({"a": [clock(1, 2, 3, 4)]})
    assert lines(encode(table, "json")[1]) == [["01:02:03.000004"]]
    assert lines(encode(table, "trino")[1]) == [["01:02:03.000004"]]
