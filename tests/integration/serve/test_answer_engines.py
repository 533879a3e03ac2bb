"""A query that is answered in this process gives the same rows on DuckDB and on Spark."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from tests.conftest import SETTINGS
from tests.integration.serve import same_answer

from thermocline.api.query import execute_query
from thermocline.errors import BadInput
from thermocline.lake import Lake


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return same_answer.build(tmp_path_factory.mktemp("answers") / "lake", SETTINGS)


def test_random_queries_have_one_answer(lake: Lake) -> None:
    answered = 0
    for sql in itertools.islice(same_answer.endless(11), 120):
        try:
            there = execute_query(lake, sql, engine="spark")
            here = execute_query(lake, sql, engine="duckdb")
        except BadInput:  # Spark has no equal for it
            continue
        ordered = same_answer.ORDERED.search(sql) is not None
        rows = [[[_cell(value) for value in row] for row in each.rows] for each in (here, there)]
        assert len(here.columns) == len(there.columns), sql
        assert same_answer.rows_differ(*rows, ordered) is None, sql
        answered += 1
    assert answered >= 60


def _cell(value: Any) -> Any:
    """A value that equals itself."""
    return "NaN" if isinstance(value, float) and math.isnan(value) else value


def test_what_spark_would_read_otherwise_is_refused_with_a_next_step(lake: Lake) -> None:
    sql = "SELECT strftime(DATE '2026-03-01', '%a') AS day"
    assert execute_query(lake, sql).rows == [("Sun",)]
    with pytest.raises(BadInput) as refused:
        execute_query(lake, sql, engine="spark")
    assert "--engine duckdb" in refused.value.next_step


@pytest.mark.parametrize("text", ["'${env:HOME}'", "java_method('java.lang.System', 'exit', 1)"])
def test_nothing_of_spark_itself_is_reached(lake: Lake, text: str) -> None:
    with pytest.raises(BadInput):
        execute_query(lake, f"SELECT {text} AS v", engine="spark")


def test_a_rounding_is_that_of_the_dialect(lake: Lake) -> None:
    sql = "SELECT CAST(x AS INTEGER) AS v FROM (SELECT 10.5 AS x) q"
    assert execute_query(lake, sql, engine="spark").rows == execute_query(lake, sql).rows
