"""Changes between two snapshots of a table, without an engine.

The files of both snapshots are compared first; only rows of files that differ are read. Rows that
are the same on both sides cancel each other, so a compaction, which moves rows between files, is
no change. Position deletes (merge-on-read) are followed row by row.
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

MAX_GROUP_ROWS = 2_000_000
"""Rows held at once before equal ones are cancelled; one partition alone may exceed it."""

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
    """The net row changes from snapshot `start` to snapshot `end`.

    Any two snapshots of the table can be compared, on any branch and in either direction; `start`
    None is the empty table. Columns, names and order are those of `schema`, which is the one `end`
    was written with unless given, found in older files by field id: a renamed column keeps its
    values, one added later is null before.
    With a `key` a delete and an insert of the same key are one update (null matches null; of
    several rows with one key the first goes with the first). With `columns` only these and the
    key are read and compared, so rows that differ in other columns alone are no change.
    """
    import pyarrow as pa

    from thermocline.lake import filediff, read_schema, rowdiff
    from thermocline.lake.changeset import ChangeSet
    from thermocline.lake.data_file_reader import DataFileReader

    after = schema or read_schema.schema_at(table, end)
    before = None if start is None else read_schema.schema_at(table, start)
    shown = read_schema.select_columns(read_schema.comparison_schema(after, before), columns, key)
    reader = DataFileReader(table, shown)
    gone, came = [reader.empty], [reader.empty]
    for group in filediff.compare(table, start, end).groups(MAX_GROUP_ROWS):
        left, right = rowdiff.cancel(*reader.difference(group))
        gone.append(left)
        came.append(right)
    # Once more over all groups: with a projection, equal rows may come from two partitions.
    deletes, inserts = rowdiff.cancel(pa.concat_tables(gone), pa.concat_tables(came))
    old, new = reader.empty, reader.empty
    if key:
        old_rows, new_rows = rowdiff.match(deletes, inserts, key)
        old, new = deletes.take(pa.array(old_rows)), inserts.take(pa.array(new_rows))
        deletes = rowdiff.drop_rows(deletes, old_rows)
        inserts = rowdiff.drop_rows(inserts, new_rows)
    name = ".".join(table.name())
    return ChangeSet(name, start, end, tuple(key), inserts, deletes, before=old, after=new)


def read_rows(table: Table, snapshot: int, columns: Sequence[str] | None = None) -> pa.Table:
    """All rows of a snapshot in the canonical Arrow form, without an engine."""
    return diff_snapshots(table, None, snapshot, columns=columns).inserts


def estimate_read_bytes(table: Table, start: int | None, end: int) -> int:
    """At most how many bytes `changes` reads, from manifests alone: no data file is opened."""
    from thermocline.lake import filediff

    return filediff.compare(table, start, end).bytes


def has_only_appends(source: TableState | Table, start: int | None, end: int) -> bool:
    """Whether every snapshot after `start` up to `end` added rows or kept them as they were.

    False when `start` does not lead to `end`, and when expired snapshots hide what happened.
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
    """Each snapshot's parent and operation."""
    if isinstance(source, TableState):
        return {s.id: (s.parent, s.operation) for s in source.snapshots.values()}
    return {
        s.snapshot_id: (s.parent_snapshot_id, s.summary.operation.value if s.summary else None)
        for s in source.metadata.snapshots
    }
