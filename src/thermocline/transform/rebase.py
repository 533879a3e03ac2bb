"""Put a draft's changes to a table onto a main that moved meanwhile.

The draft's net row changes are applied again on top of the new main, when nobody else touched
the same keys and nobody else consumed the same input. Otherwise the caller computes again from
the new state. Either way nobody's commit is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.contract.definition import Contract, WriteMode
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.changes import diff_snapshots
from thermocline.lake.draft import Draft, source_head
from thermocline.transform import tombstones
from thermocline.transform.executor import Executor

if TYPE_CHECKING:
    from thermocline.lake.changeset import ChangeSet

MOST_ROWS = 200_000
"""Computing again is the better way for larger changes."""


def mark(draft: Draft, table: str, bookmark: Mapping[str, Any]) -> int:
    """Commit a bookmark alone: the sources moved, and no row of the table changes."""
    return draft.append(table, (), bookmark=bookmark, operation="mark")


def onto_moved(draft: Draft, contract: Contract, executor: Executor[Any]) -> bool:
    """Replay the draft's changes of one table onto where main is now; False if they collide."""
    table = contract.table
    state = draft.lake.state(table)
    base, head, main = draft.base(table), draft.head(table), source_head(state, draft.into)
    if _bookmark_at(draft, table, base) != _bookmark_at(draft, table, main):
        return False  # somebody consumed the same input meanwhile
    if contract.write is WriteMode.APPEND:
        return _append_again(draft, table, base, head)
    if contract.write is WriteMode.PARTITIONS:
        return _partitions_again(draft, table, base, head, main)
    if contract.write not in {WriteMode.MERGE, WriteMode.SCD2} or _companion_moved(draft, contract):
        return False
    iceberg = draft.lake.iceberg(table)
    ours = diff_snapshots(iceberg, base, head, key=contract.shape.key)
    theirs = diff_snapshots(iceberg, base, main, key=contract.shape.key)
    collide = _keys(ours, contract) & _keys(theirs, contract)
    if collide or sum(ours.counts.values()) > MOST_ROWS:
        return False
    mine = bookmarks.parse_bookmark(state.snapshot(head))
    draft.rebase(table)
    executor.replay(ours, contract, draft, bookmark=mine)
    return True


def _partitions_again(draft: Draft, table: str, base: int, head: int, main: int) -> bool:
    """Put the draft's partitions, as they are written, into the new main where nobody was."""
    from thermocline.lake.overwrite import partitions_again

    change, clashing = partitions_again(draft.lake.iceberg(table), base, head, main)
    if clashing:
        return False
    state = draft.lake.state(table)
    marked = next((found for _, found in bookmarks.walk(state, head)), None)
    draft.rebase(table)
    draft.change_files(table, change, bookmark=marked, operation="partitions")
    return True


def _companion_moved(draft: Draft, contract: Contract) -> bool:
    companion = tombstones.contract_for(contract)
    if companion is None:
        return False
    state = draft.lake.state(companion.table)
    return draft.start(state) != draft.base(companion.table)


def _append_again(draft: Draft, table: str, base: int, head: int) -> bool:
    """Add the draft's files to the new main: the same files, so no row is written twice."""
    from thermocline.lake.file_commit import commit_files
    from thermocline.lake.filediff import added_files
    from thermocline.lake.snapshot_producer import FileChange

    state = draft.lake.state(table)
    made = state.between(base, head)
    if made is None or any(snapshot.operation != "append" for snapshot in made):
        return False
    files = added_files(draft.lake.iceberg(table), [snapshot.id for snapshot in made])
    marked = bookmarks.parse_bookmark(state.snapshot(head))
    unit = draft.unit_mark(table)
    properties = bookmarks.properties(draft.run, uuid4().hex, "append", marked, unit)
    draft.rebase(table)
    again = FileChange(files, appends=True)
    commit_files(lambda: draft.lake.iceberg(table), lambda _: again, draft.branch, properties)
    return True


def _bookmark_at(draft: Draft, table: str, snapshot: int) -> dict[str, Any]:
    state = draft.lake.state(table)
    return next((found for _, found in bookmarks.walk(state, snapshot)), {})


def _keys(found: ChangeSet, contract: Contract) -> set[tuple[Any, ...]]:
    parts = (found.inserts, found.deletes, found.after)
    key = list(contract.key)
    return {tuple(row.values()) for part in parts for row in part.select(key).to_pylist()}
