"""Which file a SQLite catalog is. A copy of it names the same tables, and is another catalog.

Where the tables lie does not tell the two apart when both have one warehouse, on S3 for instance.
So a catalog keeps the path that it was written at. When it is found at another one, it was moved if
nothing is at the first any more, and else it was copied.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from thermocline.engine.duck import quote_literal
from thermocline.errors import TablesElsewhere
from thermocline.lake.locations import is_same_file

RECORDED_PATHS = "SELECT path FROM thermocline_home"
"""The query for the path that a catalog was written at."""


def record_path(path: Path, timeout: float) -> None:
    """Have a catalog keep its own path."""
    # Where it cannot be written, nobody commits to it either.
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=timeout)) as db:
        known = db.execute("SELECT 1 FROM sqlite_master WHERE name = 'thermocline_home'").fetchone()
        if known is None or db.execute(RECORDED_PATHS).fetchall() != [(_resolve_path(path),)]:
            with db:
                for statement in record_statements(path):
                    db.execute(statement)


def record_statements(path: Path) -> tuple[str, ...]:
    """Return the statements that have a catalog keep its own path."""
    return (
        "CREATE TABLE IF NOT EXISTS thermocline_home (path TEXT NOT NULL)",
        "DELETE FROM thermocline_home",
        f"INSERT INTO thermocline_home VALUES ({quote_literal(_resolve_path(path))})",
    )


def require_no_copy(path: Path, noted: list[str], warehouse: str) -> None:
    """Raise TablesElsewhere for the copy of a catalog that is still there, of one warehouse."""
    for first in noted:
        if Path(first).is_file() and not is_same_file(first, str(path)):
            raise TablesElsewhere(
                f"This catalog is a copy of {first}, and both would write to {warehouse}.",
                "Set lake.warehouse to a place of its own, then run `thermo relocate`; or remove "
                "the other catalog, if it is no longer used.",
            )


def _resolve_path(path: Path) -> str:
    return str(path.resolve())
