"""SQL that cannot be read is told in words of whoever wrote it, not of the parser."""

from __future__ import annotations

import pytest
import sqlglot
from sqlglot import errors

from thermocline.engine.sql_errors import describe_parse_error, locate_parse_error


@pytest.mark.parametrize(
    ("sql", "line", "what"),
    [
        ("select * from where a", 1, "Expected table name at `where`, column 15"),
        ("select (1", 1, "Expecting ) at `1`, column 9"),
        ("select a\nfrom t u v", 2, "unexpected `v`, column 10"),
        ("select 1 +", 1, "something is missing at `+`, column 10"),
        ("select 'abc", None, "a quote or comment is not closed, or a character is not allowed"),
    ],
)
def test_what_is_wrong_and_where(sql: str, line: int | None, what: str) -> None:
    with pytest.raises(errors.SqlglotError) as raised:
        sqlglot.parse(sql, read="duckdb", error_level=sqlglot.ErrorLevel.IMMEDIATE)
    assert locate_parse_error(raised.value) == (line, what)
    assert describe_parse_error(raised.value) == (
        what if line is None else f"{what} in line {line}"
    )


def test_a_long_word_does_not_hide_where_it_is() -> None:
    with pytest.raises(errors.ParseError) as raised:
        sqlglot.parse("select a b " + "c" * 500, read="duckdb")
    assert describe_parse_error(raised.value) == f"unexpected `{'c' * 40}…`, column 12 in line 1"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (RecursionError("maximum recursion depth"), "it is nested too deeply"),
        (AttributeError("'NoneType' has no attribute 'this'"), "it is not valid SQL"),
    ],
)
def test_errors_that_tell_of_the_parser_are_not_shown(error: Exception, said: str) -> None:
    assert describe_parse_error(error) == said
