"""Text as a cell of a CSV file."""

from __future__ import annotations

_RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r", "\n")


def escape_cell(text: str) -> str:
    """Return a text as a cell: quoted where it must be, and never a formula in a spreadsheet."""
    if text.startswith(_RUN_BY_SPREADSHEETS):
        text = f"'{text}"
    if not text or any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text
