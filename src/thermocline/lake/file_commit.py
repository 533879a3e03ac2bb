"""Commit files that this process has written: one snapshot in one catalog transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.errors import CommitConflict
from thermocline.lake import atomic_commit, data_file_writer, refs
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.bookmark import COMMIT
from thermocline.lake.retries import retry_on

if TYPE_CHECKING:
    from pyiceberg.table import Table

    from thermocline.lake.snapshot_producer import FileChange, WrittenSnapshot


class _ConcurrentCommit(CommitConflict):
    """Another process committed to the table meanwhile; our commit did not land."""


class TableLayoutChanged(CommitConflict):
    """Schema, partition spec or sort order changed after files were written for the table."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"{table} was changed while rows were written for it.",
            "None of the rows landed. Run again.",
            table=table,
        )


@dataclass(frozen=True)
class PendingCommit:
    """A commit whose data files are written. Publish turns it into a snapshot."""

    change: FileChange
    properties: Mapping[str, str]
    layout: tuple[int, int, int]
    """The table layout that the files were written with; see `layout_ids`."""
    id: int
    """The snapshot's id, assigned in advance."""

    def write_snapshot(self, table: Table, parent: int) -> WrittenSnapshot:
        """Write the manifests of the snapshot, on top of a parent snapshot of the table."""
        from thermocline.lake.snapshot_producer import write_snapshot

        if data_file_writer.layout_ids(table) != self.layout:
            raise TableLayoutChanged(".".join(table.name()))
        return write_snapshot(table, self.change, parent, self.properties, self.id)


def add_written_files(files: data_file_writer.DataFileWriter) -> Callable[[Table], FileChange]:
    """Return the change that adds written files, or raises TableLayoutChanged."""

    def change(table: Table) -> FileChange:
        from thermocline.lake.snapshot_producer import FileChange

        if data_file_writer.layout_ids(table) != files.layout:
            raise TableLayoutChanged(".".join(table.name()))
        return FileChange(files.data_files, appends=True)

    return change


def append_rows(rows: data_file_writer.Rows) -> Callable[[Table], FileChange]:
    """Return the change that writes rows as files and adds them."""

    def change(table: Table) -> FileChange:
        from thermocline.lake.snapshot_producer import FileChange

        return FileChange(data_file_writer.write_files(table, rows), appends=True)

    return change


def prepare_commit(
    table: Table, make: Callable[[Table], FileChange], properties: Mapping[str, str]
) -> PendingCommit:
    """Write the files of a change, for a later commit."""
    number = table.metadata.new_snapshot_id()
    return PendingCommit(make(table), properties, data_file_writer.layout_ids(table), number)


def commit_files(
    load: Callable[[], Table],
    make: Callable[[Table], FileChange],
    branch: str,
    properties: Mapping[str, str],
) -> int:
    """Commit a change of a branch's files, with the properties; return the snapshot.

    `make` writes the files and returns the change. The commit is retried when another process
    commits to the table meanwhile; the files are written once, unless the table's layout changed.
    """
    pending: PendingCommit | None = None
    for attempt in retry_on(_ConcurrentCommit):
        with attempt:
            table = load()
            if pending is None or pending.layout != data_file_writer.layout_ids(table):
                pending = prepare_commit(table, make, properties)
            _try_commit(load, table, pending, branch)
            return pending.id
    raise AssertionError("the retry loop either returns or raises")


def _try_commit(
    load: Callable[[], Table], table: Table, pending: PendingCommit, branch: str
) -> None:
    name, ref = ".".join(table.name()), table.metadata.refs.get(branch)
    if ref is None:
        raise CommitConflict(f"The branch {branch} of {name} is gone.", "Run again.")
    written = pending.write_snapshot(table, ref.snapshot_id)
    try:
        atomic_commit.commit_all(
            table.catalog, snapshot_changes(table, written, branch, ref.snapshot_id)
        )
    except CommitConflict as error:
        # Another commit moved the branch or took our sequence number. Or an earlier attempt of
        # ours landed, and its response was lost.
        now = load()
        if _has_landed(now, pending.properties):
            return
        written.discard()
        if now.metadata_location == table.metadata_location:
            raise
        raise _ConcurrentCommit(
            f"{name} was changed by another process: {error}", "Run again."
        ) from error


def snapshot_changes(
    table: Table, written: WrittenSnapshot, branch: str, was: int | None
) -> list[TableChange]:
    """Return the changes that add a snapshot and move a branch to it.

    They require that the branch has not moved and that the table layout has not changed.
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
    add = TableChange(name, same, (AddSnapshotUpdate(snapshot=written.snapshot),))
    return refs.merge_changes(add, refs.set_ref(name, branch, written.id, was=was))


def _has_landed(table: Table, properties: Mapping[str, str]) -> bool:
    wanted = properties[COMMIT]
    found = (each.summary for each in table.metadata.snapshots)
    return any(summary is not None and summary[COMMIT] == wanted for summary in found)
