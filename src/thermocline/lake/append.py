"""Commits of files that this process has written, by PyIceberg.

Its own append would write the files anew for every attempt to commit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from thermocline.errors import CommitConflict
from thermocline.lake import writing
from thermocline.lake.atomic import retrying
from thermocline.lake.bookmark import COMMIT

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from thermocline.lake.filechange import FileChange


class _Overtaken(CommitConflict):
    """Somebody committed to the table meanwhile; nothing of ours landed."""


class TableChanged(CommitConflict):
    """Schema, partitioning or order changed after files were written for the table."""


def append(
    load: Callable[[], Table], rows: writing.Rows, branch: str, properties: Mapping[str, str]
) -> None:
    """Add rows to a branch in one commit that carries the properties, our commit id among them."""
    from thermocline.lake.filechange import FileChange

    def added(table: Table) -> FileChange:
        return FileChange(writing.write_files(table, rows), appends=True)

    commit(load, added, branch, properties)


def add(
    load: Callable[[], Table], files: writing.Files, branch: str, properties: Mapping[str, str]
) -> None:
    """Add files that are written. TableChanged is raised when they no longer fit the table."""
    from thermocline.lake.filechange import FileChange

    def added(table: Table) -> FileChange:
        if writing.shape(table) != files.shape:
            raise TableChanged(
                f"{'.'.join(table.name())} was changed while rows were written for it.",
                "Nothing of them landed. Run again.",
            )
        return FileChange(files.done, appends=True)

    commit(load, added, branch, properties)


def commit(
    load: Callable[[], Table],
    make: Callable[[Table], FileChange],
    branch: str,
    properties: Mapping[str, str],
) -> None:
    """Change a branch's files in one commit that carries the properties.

    `make` writes the files and says what to do with them. Others who commit to the table
    meanwhile, to whatever other branch, are waited out; the files are written once all the same,
    unless the table's schema or layout changed.
    """
    shape: object = None
    change: FileChange | None = None
    for again in retrying(_Overtaken):
        with again:
            table = load()
            if change is None or shape != writing.shape(table):
                shape, change = writing.shape(table), make(table)
            _commit(load, table, change, branch, properties)


def _commit(
    load: Callable[[], Table],
    table: Table,
    change: FileChange,
    branch: str,
    properties: Mapping[str, str],
) -> None:
    from pyiceberg.exceptions import CommitFailedException

    from thermocline.lake import filechange

    seen = table.metadata_location
    try:
        with table.transaction() as transaction:
            filechange.apply(table, transaction, change, branch, properties)
    except (CommitFailedException, ValueError) as error:
        # PyIceberg tries again when it lost a race for the same branch. Who commits to another
        # one takes the number that our snapshot was to have, and that is a ValueError. But so is
        # an answer of the catalog that cannot be read, and then ours may have landed.
        now = load()
        if _landed(now, properties):
            return
        if now.metadata_location == seen:
            raise
        raise _Overtaken(
            f"{'.'.join(table.name())} was changed by somebody else: {error}", "Run again."
        ) from error


def _landed(table: Table, properties: Mapping[str, str]) -> bool:
    wanted = properties[COMMIT]
    found = (each.summary for each in table.metadata.snapshots)
    return any(summary is not None and summary[COMMIT] == wanted for summary in found)
