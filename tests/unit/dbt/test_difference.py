"""The least that must be written so that a table's files become a bag of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.contract import Column, parse_type
from thermocline.dbt.difference import RowBatches, RowComparison, RowDifference

COLUMNS = (Column("n", parse_type("int")), Column("t", parse_type("list<string>")))
Row = tuple[int | None, tuple[str, ...] | None]
Rows = list[Row]


@pytest.fixture(scope="module")
def database() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


def table(database: duckdb.DuckDBPyConnection, name: str, rows: Rows, *files: str) -> None:
    """A table; with files, as a scan of Iceberg gives it."""
    file = ", filename VARCHAR" if files else ""
    database.execute(f"CREATE OR REPLACE TABLE {name} (n INTEGER, t VARCHAR[]{file})")
    for number, (n, t) in enumerate(rows):
        values = [n, list(t) if t is not None else None, *files[number : number + 1]]
        database.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(values))})", values)


def compared(
    database: duckdb.DuckDBPyConnection, new: Rows, files: dict[str, Rows]
) -> RowDifference:
    table(database, "made", new)
    held = [(row, file) for file, rows in files.items() for row in rows]
    table(database, "old", [row for row, _ in held], *([file for _, file in held] or [""]))
    return RowComparison(database, "made", COLUMNS, computed=False).compare_with_table("old")


def coming(database: duckdb.DuckDBPyConnection, found: RowDifference) -> Counter[Row]:
    rows = [row for piece in RowBatches(database, found.rows_to_write) for row in piece.to_pylist()]
    return Counter((row["n"], tuple(row["t"]) if row["t"] is not None else None) for row in rows)


ROW = st.tuples(
    st.one_of(st.none(), st.integers(0, 2)),
    st.one_of(st.none(), st.lists(st.sampled_from("ab"), max_size=1).map(tuple)),
)


@settings(max_examples=60, deadline=None)
@given(new=st.lists(ROW, max_size=8), one=st.lists(ROW, max_size=5), two=st.lists(ROW, max_size=5))
def test_what_stays_and_what_comes_are_the_new_rows(
    database: duckdb.DuckDBPyConnection, new: Rows, one: Rows, two: Rows
) -> None:
    files = {name: rows for name, rows in (("one", one), ("two", two)) if rows}
    found = compared(database, new, files)
    assert found.replaced_files is not None
    staying = Counter(row for name in set(files) - set(found.replaced_files) for row in files[name])
    assert staying + coming(database, found) == Counter(new)
    old = Counter(one + two)
    assert found.removed == (old - Counter(new)).total()
    assert found.added == (Counter(new) - old).total()
    for name in found.replaced_files:
        assert any(row in old - Counter(new) for row in files[name]), "it could have stayed"


def test_new_rows_alone_replace_no_file(database: duckdb.DuckDBPyConnection) -> None:
    found = compared(database, [(1, ("a",)), (2, None)], {"one": [(1, ("a",))]})
    assert (found.replaced_files, found.added, found.removed) == ((), 1, 0)
    assert coming(database, found) == Counter([(2, None)])


def test_the_same_rows_are_no_difference(database: duckdb.DuckDBPyConnection) -> None:
    assert compared(database, [(2, None), (1, ("a",))], {"f": [(1, ("a",)), (2, None)]}).is_empty


def test_a_column_called_filename_is_not_taken_for_the_file(
    database: duckdb.DuckDBPyConnection,
) -> None:
    columns = (Column("filename", parse_type("string")),)
    database.execute("CREATE OR REPLACE TABLE made AS SELECT 'b' AS filename")
    database.execute("CREATE OR REPLACE TABLE old AS SELECT 'a' AS filename")
    comparison = RowComparison(database, "made", columns, computed=False)
    assert comparison.compare_with_table("old") == RowDifference(1, 1, None, "_view")
    database.execute("UPDATE old SET filename = 'b'")
    assert comparison.compare_with_table("old").is_empty


def test_a_view_is_asked_once(database: duckdb.DuckDBPyConnection) -> None:
    database.execute("CREATE OR REPLACE SEQUENCE asked")
    database.execute("CREATE OR REPLACE VIEW counting AS SELECT nextval('asked')::INTEGER AS n")
    database.execute("CREATE OR REPLACE TABLE old AS SELECT 1 AS n, 'f' AS filename")
    comparison = RowComparison(database, "counting", COLUMNS[:1], computed=True)
    assert comparison.compare_with_table("old").is_empty
    database.execute("DROP VIEW counting")
