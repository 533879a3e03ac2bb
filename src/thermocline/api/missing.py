"""What to do about files of the lake that are not there, and errors that say so.

Whatever an engine or a library raises because a file is gone becomes one error, which names the
file, its table and the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from thermocline.errors import BadInput, FileMissing
from thermocline.lake.companions import load_unit, owner_of
from thermocline.lake.metadata import FileGone
from thermocline.lake.missing import Files, Missing, may_be_missing, missing_files

if TYPE_CHECKING:
    from thermocline.lake import Lake

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def missing_named(lake: Lake) -> Iterator[None]:
    """Raise FileMissing where this block fails because a file of a table is not there."""
    try:
        yield
    except (FileMissing, FileGone):
        raise
    except Exception as error:
        found = next(_all_missing(lake), None) if may_be_missing(error) else None
        if found is None:
            raise
        raise FileMissing(
            f"{found}.", way_back(lake, found), table=found.table, kind=found.kind, file=found.path
        ) from error


def names_missing(method: Callable[P, R]) -> Callable[P, R]:
    """Have a method of Lakehouse or Table raise FileMissing where a file is not there."""

    @wraps(method)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        owner = args[0]
        lake: Lake = getattr(owner, "lake", None) or owner._lake  # type: ignore[attr-defined]
        with missing_named(lake):
            return method(*args, **kwargs)

    return wrapped


def way_back(lake: Lake, missing: Missing) -> str:
    """Say how a table becomes whole again."""
    restored = "Restore the file from a backup"
    if missing.kind == "metadata file":
        return f"{restored}."
    owner = owner_of(lake, lake.state(missing.table)) or missing.table
    target = newest_whole(lake, owner)
    if target is None:
        return f"{restored}; no older snapshot of {owner} is whole."
    again = "`thermo ingest`" if owner.startswith("bronze.") else f"`thermo run --select {owner}`"
    return f"{restored}; or `thermo rollback {owner} --to {target}`, then {again} brings the rest."


def newest_whole(lake: Lake, table: str) -> int | None:
    """The newest snapshot of main at which nothing of a table and its companions is missing."""
    unit = load_unit(lake, table)
    files = {each.table: Files(lake, each.table) for each in (unit.table, *unit.companions)}
    for snapshot in unit.table.ancestry(unit.table.head()):
        try:
            places = unit.at(snapshot.id)
        except BadInput:
            return None  # what the companions were then has expired
        if not any(files[each].missing(at) for each, at in places.items()):
            return snapshot.id
    return None


def _all_missing(lake: Lake) -> Iterator[Missing]:
    for table in lake.tables():
        yield from missing_files(lake, table)
