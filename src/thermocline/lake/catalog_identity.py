"""The identity of a SQLite catalog: detect a copy, which names the same tables.

Table locations do not distinguish the copy if both catalogs use one warehouse, on S3 for instance.
So a catalog records its own path. A catalog at another path was moved if no file is at the recorded
path any more, otherwise it was copied.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

from thermocline.engine.duck import quote_literal
from thermocline.errors import TablesElsewhere
from thermocline.lake.locations import is_same_file

RECORDED_PATHS = "SELECT path FROM thermocline_home"
"""The query for the path that a catalog has recorded."""


def record_path(path: Path, timeout: float) -> None:
    """Record a catalog's own path in it."""
    # A read-only catalog gets no commits either.
    with suppress(sqlite3.OperationalError), closing(sqlite3.connect(path, timeout=timeout)) as db:
        exists = db.execute(
            "SELECT 1 FROM sqlite_master WHERE name = 'thermocline_home'"
        ).fetchone()
        if exists is None or db.execute(RECORDED_PATHS).fetchall() != [(_resolve_path(path),)]:
            with db:
                for statement in record_statements(path):
                    db.execute(statement)


def record_statements(path: Path) -> tuple[str, ...]:
    """Return the SQL statements that record a catalog's own path."""
    return (
        "CREATE TABLE IF NOT EXISTS thermocline_home (path TEXT NOT NULL)",
        "DELETE FROM thermocline_home",
        f"INSERT INTO thermocline_home VALUES ({quote_literal(_resolve_path(path))})",
    )


def require_no_copy(path: Path, recorded: list[str], warehouse: str) -> None:
    """Raise TablesElsewhere for a copy of a catalog whose original still exists."""
    for original in recorded:
        if Path(original).is_file() and not is_same_file(original, str(path)):
            raise TablesElsewhere(
                f"This catalog is a copy of {original}, and both would write to {warehouse}.",
                "Set lake.warehouse to a folder of its own, then run `thermo relocate`; or remove "
                "the other catalog, if it is no longer used.",
            )


def _resolve_path(path: Path) -> str:
    return str(path.resolve())
