"""Validate names: safe in the SQL of every engine, in paths and in terminals."""

from __future__ import annotations

import re

from thermocline.contract.problems import quote

MAX_TABLE_NAME = 128
MAX_COLUMN_NAME = 255

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)

# Iceberg's metadata columns. Spark cannot read a table that has a column with such a name.
RESERVED = frozenset(
    {
        "_change_ordinal", "_change_type", "_commit_snapshot_id", "_deleted", "_file",
        "_last_updated_sequence_number", "_partition", "_pos", "_row_id", "_spec_id",
    }
)  # fmt: skip


def check_name(name: str, max_length: int = MAX_COLUMN_NAME) -> tuple[str, str] | None:
    """Return what is wrong with a name and how to fix it, or None if it is valid."""
    if len(name) > max_length:
        return f"name of {len(name):,} characters", f"use at most {max_length}"
    if not _IDENTIFIER.fullmatch(name):
        return (
            f"{quote(name)} is not a valid name",
            "use letters a-z, digits and underscores, not beginning with a digit",
        )
    return None


def check_column_name(name: str) -> tuple[str, str] | None:
    """Do the same for a column name, which must also not be reserved by Iceberg."""
    if name.lower() in RESERVED:
        return "Iceberg reserves this name", "use another name"
    return check_name(name)
