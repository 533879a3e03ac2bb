"""Describe SQL syntax errors in terms of the query.

The parser's own messages name its internal tokens and classes.
"""

from __future__ import annotations

import re
from typing import Any

_MAX_QUOTED_CHARACTERS = 40
_MISSING = "Required keyword"
_UNEXPECTED = "Unexpected token"


def describe_parse_error(error: Exception) -> str:
    """Return a parse error in one line, with its position."""
    line, what = locate_parse_error(error)
    return what if line is None else f"{what} in line {line}"


def locate_parse_error(error: Exception) -> tuple[int | None, str]:
    """Return the line of a parse error, if known, and its description."""
    from sqlglot import errors

    if isinstance(error, RecursionError):
        return None, "it is nested too deeply"
    if isinstance(error, errors.ParseError) and error.errors:
        return _format_parse_error(error.errors[0])
    if isinstance(error, errors.TokenError):
        return None, "a quote or comment is not closed, or a character is not allowed"
    lines = str(error).splitlines() if isinstance(error, errors.SqlglotError) else ()
    # Other errors are about the parser, not about the query.
    return None, next((line for line in lines if line.strip()), "it is not valid SQL")


def _format_parse_error(found: dict[str, Any]) -> tuple[int | None, str]:
    text = re.sub(r"\s+", " ", str(found.get("description") or ""))
    token = re.sub(r"\s+", " ", str(found.get("highlight") or ""))
    at = (
        f"`{token[:_MAX_QUOTED_CHARACTERS]}{'…' if len(token) > _MAX_QUOTED_CHARACTERS else ''}`"
        if token
        else "the end"
    )
    if _UNEXPECTED in text:
        what = f"unexpected {at}"
    elif text.startswith(_MISSING):
        what = f"something is missing at {at}"
    else:
        what = f"{text.partition(' but got ')[0]} at {at}"
    line, last = found.get("line"), found.get("col")
    # The parser's column is the end of the word.
    if isinstance(last, int) and last >= len(token) > 0:
        what += f", column {last - len(token) + 1}"
    return line if isinstance(line, int) else None, what
