"""DuckDB with the table of the cases, as an engine for the gate."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import duckdb
import pyarrow as pa
import pytest


class DuckDB:
    """The engine that a check needs, over Arrow tables in memory."""

    dialect = "duckdb"

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET TimeZone = 'UTC'")
        self.statements: list[str] = []

    def put(self, name: str, table: pa.Table) -> None:
        """Make a table of that name."""
        self.connection.register("_given", table)
        self.connection.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM _given')
        self.connection.unregister("_given")

    def query(self, sql: str, /) -> pa.Table:
        """Run one statement."""
        self.statements.append(sql)
        return self.connection.execute(sql).to_arrow_table()


def load_cases() -> SimpleNamespace:
    """The cases, which the integration tests share."""
    return SimpleNamespace(**runpy.run_path(str(Path(__file__).with_name("cases.py"))))


@pytest.fixture(scope="session")
def cases() -> SimpleNamespace:
    """Rules with what they must find."""
    return load_cases()


@pytest.fixture
def engine(cases: SimpleNamespace) -> Iterator[DuckDB]:
    """DuckDB that holds the table `things` and the table `customers`."""
    made = DuckDB()
    made.put("things", cases.TABLE)
    made.put("customers", cases.CUSTOMERS)
    yield made
    made.connection.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case."""
    if "case_name" in metafunc.fixturenames:
        metafunc.parametrize("case_name", sorted(load_cases().CASES))
