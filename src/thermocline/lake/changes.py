"""Compute the row changes between two snapshots of a table, without an engine.

The files of both snapshots are compared first; only rows of files that differ are read. Equal rows
on both sides cancel out, so a compaction, which moves rows between files, is no change; between
appends its files are not even read. Position deletes (merge-on-read) are applied row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from thermocline.lake.metadata import TableState

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.filediff import FileDiff

MAX_GROUP_ROWS = 2_000_000
"""Rows in memory at once before equal ones cancel out; a single partition may exceed it."""

_ROW_KEEPING = frozenset({"append", "replace"})


def diff_snapshots(
    table: Table,
    start: int | None,
    end: int,
    *,
    key: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    schema: Schema | None = None,
) -> ChangeSet:
    """Return the net row changes from snapshot `start` to snapshot `end`.

    Any two snapshots of the table can be compared, on any branch and in either direction; `start`
    None is the empty table. The columns are those of `schema`, by default the schema of `end`, and
    are matched by field id: a renamed column keeps its values, and a later column is null before.
    With a `key` a delete and an insert of the same key are one update (null matches null; of
    several rows with one key they are paired in order). With `columns` only these and the key are
    read and compared, so rows that differ in other columns only are no change.
    """
    import pyarrow as pa

    from thermocline.lake import read_schema, rowdiff
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.data_file_reader import DataFileReader

    after = schema or read_schema.schema_at(table, end)
    before = None if start is None else read_schema.schema_at(table, start)
    shown = read_schema.select_columns(read_schema.comparison_schema(after, before), columns, key)
    reader = DataFileReader(table, shown)
    removed, added = [reader.empty], [reader.empty]
    for group in _compare_files(table, start, end).groups(MAX_GROUP_ROWS):
        left, right = rowdiff.cancel(*reader.difference(group))
        removed.append(left)
        added.append(right)
    # Again over all groups: with a projection, equal rows may come from two partitions.
    deletes, inserts = rowdiff.cancel(pa.concat_tables(removed), pa.concat_tables(added))
    old, new = reader.empty, reader.empty
    if key:
        old_rows, new_rows = rowdiff.match(deletes, inserts, key)
        old, new = deletes.take(pa.array(old_rows)), inserts.take(pa.array(new_rows))
        deletes = rowdiff.drop_rows(deletes, old_rows)
        inserts = rowdiff.drop_rows(inserts, new_rows)
    name = ".".join(table.name())
    return ChangeSet(name, start, end, tuple(key), inserts, deletes, before=old, after=new)


def read_rows(table: Table, snapshot: int, columns: Sequence[str] | None = None) -> pa.Table:
    """Read all rows of a snapshot in the canonical Arrow form, without an engine."""
    return diff_snapshots(table, None, snapshot, columns=columns).inserts


def estimate_read_bytes(table: Table, start: int | None, end: int) -> int:
    """Return the maximum bytes that `diff_snapshots` reads, without opening a data file."""
    return _compare_files(table, start, end).bytes


def _compare_files(table: Table, start: int | None, end: int) -> FileDiff:
    """Return the files whose rows can differ between two snapshots.

    Between appends, files that a compaction joined are not read again: the rows are those of the
    files as they were appended, which the snapshots between keep.
    """
    from thermocline.lake import filediff

    appends = _find_appends(table, start, end)
    if appends is None:
        return filediff.compare(table, start, end)
    files = filediff.added_files(table, appends)
    changed = (filediff.ChangedFile(file, None, frozenset()) for file in files)
    return filediff.FileDiff(tuple(changed))


def _find_appends(table: Table, start: int | None, end: int) -> list[int] | None:
    """Return the appends after `start` up to `end` if there are compactions and nothing else."""
    if start is None or not has_only_appends(table, start, end):
        return None
    lineage, appends, current = _lineage(table), list[int](), end
    compacted = False
    while current != start:
        parent, operation = lineage[current]
        if operation == "append":
            appends.append(current)
        compacted |= operation == "replace"
        assert parent is not None
        current = parent
    return appends if compacted else None


def has_only_appends(source: TableState | Table, start: int | None, end: int) -> bool:
    """Whether every snapshot after `start` up to `end` only appended or rewrote rows.

    False if `start` is no ancestor of `end`, or if a snapshot between them has expired.
    """
    lineage = _lineage(source)
    current: int | None = end
    while current != start:
        if current not in lineage:
            return False
        current, operation = lineage[current]
        if operation not in _ROW_KEEPING:
            return False
    return True


def _lineage(source: TableState | Table) -> dict[int | None, tuple[int | None, str | None]]:
    """Return each snapshot's parent and operation."""
    if isinstance(source, TableState):
        return {s.id: (s.parent, s.operation) for s in source.snapshots.values()}
    return {
        s.snapshot_id: (s.parent_snapshot_id, s.summary.operation.value if s.summary else None)
        for s in source.metadata.snapshots
    }
