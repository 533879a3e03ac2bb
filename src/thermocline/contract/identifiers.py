"""Names that are safe everywhere: in SQL of every engine, in paths, in a terminal."""

from __future__ import annotations

import re

from thermocline.contract.problems import quote

MAX_TABLE_NAME = 128
MAX_COLUMN_NAME = 255

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# Iceberg's own metadata columns. Spark refuses to read a table that has a column so named.
RESERVED = frozenset(
    {
        "_change_ordinal", "_change_type", "_commit_snapshot_id", "_deleted", "_file",
        "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id",
    }
)  # fmt: skip


def check_name(name: str, longest: int = MAX_COLUMN_NAME) -> tuple[str, str] | None:
    """What is wrong with a name and how to mend it, or nothing when it can be used."""
    if len(name) > longest:
        return f"name of {len(name):,} characters", f"use at most {longest}"
    if not _IDENTIFIER.fullmatch(name):
        return (
            f"{quote(name)} cannot be a name",
            "use letters a-z, digits and underscores, not beginning with a digit",
        )
    return None


def check_column_name(name: str) -> tuple[str, str] | None:
    """The same for a column, which must also leave Iceberg's own names alone."""
    if name.lower() in RESERVED:
        return "Iceberg reserves this name for itself", "use another"
    return check_name(name)
