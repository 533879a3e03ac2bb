"""A text as a cell of a CSV file."""

from __future__ import annotations

_RUN_BY_SPREADSHEETS = ("=", "+", "-", "@", "\t", "\r", "\n")


def cell(text: str) -> str:
    """A text as a cell: quoted where it must be, and never a formula."""
    if text.startswith(_RUN_BY_SPREADSHEETS):
        text = f"'{text}"
    if not text or any(mark in text for mark in ',"\r\n'):
        return '"' + text.replace('"', '""') + '"'
    return text
