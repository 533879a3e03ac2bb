"""GroupCommit of files that this process has written: one snapshot, by one change of the catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.errors import CommitConflict
from thermocline.lake import atomic_commit, data_file_writer, refs
from thermocline.lake.atomic_commit import TableChange, retrying
from thermocline.lake.bookmark import COMMIT

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from thermocline.lake.snapshot_producer import FileChange, Made


class _ConcurrentCommit(CommitConflict):
    """Somebody committed to the table meanwhile; nothing of ours landed."""


class TableLayoutChanged(CommitConflict):
    """Schema, partitioning or order changed after files were written for the table."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} was changed while rows were written for it.",
            "Nothing of them landed. Run again.",
            table=table,
        )


@dataclass(frozen=True)
class PendingCommit:
    """A commit whose data files are written. It becomes a snapshot when it is published."""

    change: FileChange
    properties: Mapping[str, str]
    shape: tuple[int, int, int]
    """What the files were written by."""
    id: int
    """The snapshot's id, given in advance."""

    def on(self, table: Table, parent: int) -> Made:
        """Write the snapshot's manifests on top of another snapshot of the table."""
        from thermocline.lake.snapshot_producer import snapshot_of

        if data_file_writer.layout_ids(table) != self.shape:
            raise TableLayoutChanged(".".join(table.name()))
        return snapshot_of(table, self.change, parent, self.properties, self.id)


def add_written_files(files: data_file_writer.DataFileWriter) -> Callable[[Table], FileChange]:
    """The change that adds files that are written, where they still fit the table."""

    def change(table: Table) -> FileChange:
        from thermocline.lake.snapshot_producer import FileChange

        if data_file_writer.layout_ids(table) != files.shape:
            raise TableLayoutChanged(".".join(table.name()))
        return FileChange(files.done, appends=True)

    return change


def append_rows(rows: data_file_writer.Rows) -> Callable[[Table], FileChange]:
    """The change that adds rows, which are written when it is made."""

    def change(table: Table) -> FileChange:
        from thermocline.lake.snapshot_producer import FileChange

        return FileChange(data_file_writer.write_files(table, rows), appends=True)

    return change


def prepare_commit(
    table: Table, make: Callable[[Table], FileChange], properties: Mapping[str, str]
) -> PendingCommit:
    """Write what a change writes, for a commit that comes later."""
    number = table.metadata.new_snapshot_id()
    return PendingCommit(make(table), properties, data_file_writer.layout_ids(table), number)


def commit_files(
    load: Callable[[], Table],
    make: Callable[[Table], FileChange],
    branch: str,
    properties: Mapping[str, str],
) -> int:
    """Change a branch's files in one commit that carries the properties; says which snapshot.

    `make` writes the files and says what to do with them. Others who commit to the table
    meanwhile, to whatever other branch, are waited out; the files are written once all the same,
    unless the table's schema or layout changed.
    """
    pending: PendingCommit | None = None
    for again in retrying(_ConcurrentCommit):
        with again:
            table = load()
            if pending is None or pending.shape != data_file_writer.layout_ids(table):
                pending = prepare_commit(table, make, properties)
            _try_commit(load, table, pending, branch)
            return pending.id
    raise AssertionError("retrying either returns or raises")


def _try_commit(
    load: Callable[[], Table], table: Table, pending: PendingCommit, branch: str
) -> None:
    name, ref = ".".join(table.name()), table.metadata.refs.get(branch)
    if ref is None:
        raise CommitConflict(f"The branch {branch} of {name} is gone.", "Run again.")
    made = pending.on(table, ref.snapshot_id)
    try:
        atomic_commit.commit_all(
            table.catalog, snapshot_changes(table, made, branch, ref.snapshot_id)
        )
    except CommitConflict as error:
        # Somebody took the branch, or the number that our snapshot was to have. Or an earlier
        # attempt of ours did land, and its answer was lost.
        now = load()
        if _has_landed(now, pending.properties):
            return
        made.discard()
        if now.metadata_location == table.metadata_location:
            raise
        raise _ConcurrentCommit(
            f"{name} was changed by somebody else: {error}", "Run again."
        ) from error


def snapshot_changes(table: Table, made: Made, branch: str, was: int | None) -> list[TableChange]:
    """Add a snapshot and move a branch to it.

    The branch must be where it was, and the table the one that the files were written for.
    """
    from pyiceberg.table.update import (
        AddSnapshotUpdate,
        AssertCurrentSchemaId,
        AssertDefaultSortOrderId,
        AssertDefaultSpecId,
        AssertTableUUID,
    )

    schema, spec, order = data_file_writer.layout_ids(table)
    same = (
        AssertTableUUID(uuid=table.metadata.table_uuid),
        AssertCurrentSchemaId(current_schema_id=schema),
        AssertDefaultSpecId(default_spec_id=spec),
        AssertDefaultSortOrderId(default_sort_order_id=order),
    )
    name = ".".join(table.name())
    add = TableChange(name, same, (AddSnapshotUpdate(snapshot=made.snapshot),))
    return refs.merge_changes(add, refs.set_ref(name, branch, made.snapshot.snapshot_id, was=was))


def _has_landed(table: Table, properties: Mapping[str, str]) -> bool:
    wanted = properties[COMMIT]
    found = (each.summary for each in table.metadata.snapshots)
    return any(summary is not None and summary[COMMIT] == wanted for summary in found)
