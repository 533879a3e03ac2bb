"""Names that engines take for functions without parentheses, unless there is such a column."""

from __future__ import annotations

from datetime import UTC, datetime

import duckdb
import pytest

from thermocline.serve.analysis.bare_functions import NAMES, refuse_bare_functions
from thermocline.serve.query_preparation import QueryPreparer
from thermocline.serve.values import QueryRequest
from thermocline.sql.guard import QueryRefused, guard

COLUMNS = {"a.b": {"user": "string", "id": "long"}, "a.c": {"id": "long"}}
COLUMN_OF_A_TABLE = [
    "select user from a.b",
    'select "user" from a.b',
    "select USER from a.b",
    "select x.user, user from a.b x",
    "(select id as user from a.c) union all (select 1) order by user",
    "select user from (select * from a.b) t",
    "select user from (select id as user from a.c) t",
    "with t as (select * from a.b) select user from t",
    "with t(user) as (select id from a.c) select user from t",
    "select id from a.c where 1 in (select id from a.b where user is null)",
    "select (select max(c.id) from a.c c where c.id = b.id and user <> '') from a.b b",
]
FUNCTION = [
    "select user",
    "select user from a.c",
    "select 1 as user, user",
    "select user, (select 1 as user)",
    "select user from (select 1 as x) t where x in (select 1 as user)",
    "select id from a.b union all select user from a.c",
    "with t as (select 1 as user) select user from a.c",
    "select id from a.c order by session_user",
    "select user from (select id, user from a.c) t",
    "select current_role from a.b",
    "select id from a.c where exists (select 1 from a.c c where user = 'x')",
    "select max(user) from a.c group by id having max(current_schema) is null",
    "select id from a.c where user = 'root'",
    "select list_transform([1], x -> user) from a.c",
    "select user from a.c join (select 1 as other) o on true",
    "select user from range(3)",
    "select id from a.c union all select 1 order by user",
]


@pytest.mark.parametrize("sql", COLUMN_OF_A_TABLE)
def test_a_column_is_read(sql: str) -> None:
    refuse_bare_functions(guard(sql), COLUMNS)


@pytest.mark.parametrize("sql", FUNCTION)
def test_a_function_is_refused(sql: str) -> None:
    with pytest.raises(QueryRefused, match=r"no column here|is not allowed"):
        refuse_bare_functions(guard(sql), COLUMNS)


@pytest.mark.parametrize("dialect", ["duckdb", "trino", "spark"])
@pytest.mark.parametrize("name", sorted(NAMES))
def test_none_gets_through_in_any_dialect(name: str, dialect: str) -> None:
    """Unless it is one that the clock answers."""
    try:
        prepared = QueryPreparer()(QueryRequest(f"select {name}", dialect), {}, datetime.now(UTC))
        prepared.check_names({})
    except QueryRefused:
        return
    assert name in {"current_date", "current_time", "current_timestamp", "localtime",
                    "localtimestamp"}  # fmt: skip
    assert name not in prepared.text.lower()


def test_duckdb_has_no_other() -> None:
    with duckdb.connect() as connection:
        words = {word for (word,) in connection.execute(
            "select keyword_name from duckdb_keywords() union "
            "select function_name from duckdb_functions()"
        ).fetchall()}  # fmt: skip
        found = set()
        for word in words:
            try:
                connection.execute(f'select "{word}"').fetchall()
            except duckdb.Error:
                continue
            found.add(word)
    assert found <= NAMES
    assert "user" in found
