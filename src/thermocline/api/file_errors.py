"""Errors for missing files of the lake, and how to recover from them.

Whatever an engine or a library raises because a file is missing becomes one error, which names the
file, its table and the way to recover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from thermocline.errors import BadInput, FileMissing
from thermocline.lake.companions import load_unit, owner_of
from thermocline.lake.metadata import MetadataFileMissing
from thermocline.lake.missing_files import (
    MissingFile,
    MissingFileFinder,
    find_missing_files,
    may_be_missing_file,
)

if TYPE_CHECKING:
    from thermocline.lake import Lake

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def raise_missing_files(lake: Lake) -> Iterator[None]:
    """Raise FileMissing where this block fails because a file of a table is missing."""
    try:
        yield
    except (FileMissing, MetadataFileMissing):
        raise
    except Exception as error:
        found = next(_find_missing_files(lake), None) if may_be_missing_file(error) else None
        if found is None:
            raise
        raise FileMissing(
            f"{found}.",
            suggest_recovery(lake, found),
            table=found.table,
            kind=found.kind,
            file=found.path,
        ) from error


def reports_missing_files(method: Callable[P, R]) -> Callable[P, R]:
    """Decorate a method of Lakehouse or Table to raise FileMissing when a file is missing."""

    @wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = args[0]
        lake: Lake = getattr(owner, "lake", None) or owner._lake  # type: ignore[attr-defined]
        with raise_missing_files(lake):
            return method(*args, **kwargs)

    return wrapped


def suggest_recovery(lake: Lake, missing: MissingFile) -> str:
    """Return the next step that makes a table complete again."""
    restore = "Restore the file from a backup"
    if missing.kind == "metadata file":
        return f"{restore}."
    owner = owner_of(lake, lake.state(missing.table)) or missing.table
    target = newest_complete_snapshot(lake, owner)
    if target is None:
        return f"{restore}; no older snapshot of {owner} is complete."
    rerun = "`thermo ingest`" if owner.startswith("bronze.") else f"`thermo run --select {owner}`"
    return f"{restore}; or `thermo rollback {owner} --to {target}`, then {rerun}."


def newest_complete_snapshot(lake: Lake, table: str) -> int | None:
    """Return the newest snapshot of main at which a table and its companions lack no file."""
    unit = load_unit(lake, table)
    files = {
        each.table: MissingFileFinder(lake, each.table) for each in (unit.table, *unit.companions)
    }
    for snapshot in unit.table.ancestry(unit.table.head()):
        try:
            places = unit.snapshots_at(snapshot.id)
        except BadInput:
            return None  # the companions' snapshots of that time have expired
        if not any(
            files[each].find(at) or files[each].find_records(at) for each, at in places.items()
        ):
            return snapshot.id
    return None


def _find_missing_files(lake: Lake) -> Iterator[MissingFile]:
    for table in lake.tables():
        yield from find_missing_files(lake, table)
