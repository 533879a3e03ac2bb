"""Render rows as a table for people: text for `print`, HTML for notebooks."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from thermocline.telemetry import one_line

MAX_ROWS = 20
"""How many rows are rendered; the remaining rows are only counted."""


def html_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], total: int) -> str:
    """Return rows as an HTML table with every value escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    more = f"<p>{_format_row_count(rows, total)}</p>" if total > len(rows) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[Any]], total: int) -> str:
    """Return rows as aligned columns; no value can break a line or move a cursor."""
    cells = [[one_line(name) for name in columns]]
    cells += [["null" if each is None else one_line(str(each)) for each in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["─" * width for width in widths])
    lines = [
        "  ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    return "\n".join([*lines, _format_row_count(rows, total)])


def _format_row_count(rows: Sequence[Sequence[Any]], total: int) -> str:
    shown = f", the first {len(rows):,} shown" if total > len(rows) else ""
    return f"{total:,} row{'' if total == 1 else 's'}{shown}"
