"""What is wrong with SQL that cannot be read, in words for whoever wrote it.

The parser describes what it met by its own tokens and classes.
"""

from __future__ import annotations

import re
from typing import Any

_MAX_QUOTED_CHARACTERS = 40
_MISSING = "Required keyword"
_UNEXPECTED = "Unexpected token"


def describe_parse_error(error: Exception) -> str:
    """What the parser says of a text that it cannot read, in one line, and where."""
    line, what = locate_parse_error(error)
    return what if line is None else f"{what} in line {line}"


def locate_parse_error(error: Exception) -> tuple[int | None, str]:
    """The line of a text that cannot be read, where that is known, and what is wrong there."""
    from sqlglot import errors

    if isinstance(error, RecursionError):
        return None, "it is too deep"
    if isinstance(error, errors.ParseError) and error.errors:
        return _format_parse_error(error.errors[0])
    if isinstance(error, errors.TokenError):
        return None, "a quote, a comment or a character is not as SQL should be"
    lines = str(error).splitlines() if isinstance(error, errors.SqlglotError) else ()
    # Its other errors tell of the parser, not of the query.
    return None, next((line for line in lines if line.strip()), "it is not as SQL should be")


def _format_parse_error(found: dict[str, Any]) -> tuple[int | None, str]:
    text = re.sub(r"\s+", " ", str(found.get("description") or ""))
    met = re.sub(r"\s+", " ", str(found.get("highlight") or ""))
    at = (
        f"`{met if len(met) <= _MAX_QUOTED_CHARACTERS else met[:_MAX_QUOTED_CHARACTERS] + '…'}`"
        if met
        else "the end"
    )
    if _UNEXPECTED in text:
        what = f"{at} was not expected"
    elif text.startswith(_MISSING):
        what = f"something is missing at {at}"
    else:
        what = f"{text.partition(' but got ')[0]} at {at}"
    line, last = found.get("line"), found.get("col")
    # The parser's column is the one where the word ends.
    if isinstance(last, int) and last >= len(met) > 0:
        what += f", column {last - len(met) + 1}"
    return line if isinstance(line, int) else None, what
