"""DuckDB's types and a contract's, in both directions."""

from __future__ import annotations

import duckdb
import pytest

from thermocline.contract import parse_type
from thermocline.engine.duck_types import from_duckdb_type, to_ddl
from thermocline.errors import BadInput


@pytest.mark.parametrize(
    "text",
    [
        "boolean", "int", "long", "float", "double", "date", "time", "timestamp", "timestamptz",
        "string", "binary", "decimal(12,3)", "list<int>", "map<string, decimal(38,0)>",
        "struct<a: int, b: list<struct<c: timestamptz>>>",
    ],
)  # fmt: skip
def test_a_type_comes_back_from_duckdb_as_it_went(text: str) -> None:
    wanted = parse_type(text)
    assert from_duckdb_type(duckdb.sql(f"SELECT CAST(NULL AS {to_ddl(wanted)})").types[0]) == wanted


@pytest.mark.parametrize(
    ("duck", "text"),
    [
        ("UTINYINT", "int"), ("USMALLINT", "int"), ("UINTEGER", "long"),
        ("UBIGINT", "decimal(20,0)"), ("HUGEINT", "decimal(38,0)"), ("JSON", "string"),
        ("ENUM ('a')", "string"), ("INTEGER[3]", "list<int>"), ("TIMESTAMP_S", "timestamp"),
    ],
)  # fmt: skip
def test_a_type_that_iceberg_lacks_is_kept_in_a_wider_one(duck: str, text: str) -> None:
    assert from_duckdb_type(duckdb.sql(f"SELECT CAST(NULL AS {duck})").types[0]) == parse_type(text)


@pytest.mark.parametrize("duck", ["INTERVAL", "TIMESTAMP_NS", "BIT", "TIMETZ", "UNION(a INTEGER)"])
def test_a_type_that_would_lose_something_is_refused(duck: str) -> None:
    with pytest.raises(BadInput, match="Iceberg has no type for DuckDB's"):
        from_duckdb_type(duckdb.sql(f"SELECT CAST(NULL AS {duck})").types[0])
