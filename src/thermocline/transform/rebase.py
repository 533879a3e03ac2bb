"""Rebase a draft's changes of a table onto a main that moved meanwhile.

The draft's net row changes are applied on top of the new main if no other commit touched the same
keys or consumed the same input. Otherwise the caller recomputes the table from the new state. No
other commit is overwritten in either case.
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

MAX_ROWS = 200_000
"""Larger changes are recomputed instead."""


def commit_bookmark(draft: Draft, table: str, bookmark: Mapping[str, Any]) -> int:
    """Commit only a bookmark: the sources changed, but no row of the table does."""
    return draft.append(table, (), bookmark=bookmark, operation="mark")


def rebase_onto_main(draft: Draft, contract: Contract, executor: Executor[Any]) -> bool:
    """Apply the draft's changes of one table to the current main; False if they conflict."""
    table = contract.table
    state = draft.lake.state(table)
    base, head, main = draft.base(table), draft.head(table), source_head(state, draft.into)
    if _read_bookmark(draft, table, base) != _read_bookmark(draft, table, main):
        return False  # another commit consumed the same input
    if contract.write is WriteMode.APPEND:
        return _rebase_append(draft, table, base, head)
    if contract.write is WriteMode.PARTITIONS:
        return _rebase_partitions(draft, table, base, head, main)
    if contract.write not in {WriteMode.MERGE, WriteMode.SCD2} or _has_companion_moved(
        draft, contract
    ):
        return False
    iceberg = draft.lake.iceberg(table)
    ours = diff_snapshots(iceberg, base, head, key=contract.shape.key)
    theirs = diff_snapshots(iceberg, base, main, key=contract.shape.key)
    collide = _collect_keys(ours, contract) & _collect_keys(theirs, contract)
    if collide or sum(ours.counts.values()) > MAX_ROWS:
        return False
    bookmark = bookmarks.parse_bookmark(state.snapshot(head))
    draft.rebase(table)
    executor.apply_changes(ours, contract, draft, bookmark)
    return True


def _rebase_partitions(draft: Draft, table: str, base: int, head: int, main: int) -> bool:
    """Put the draft's partitions, as written, on the new main if no other commit changed them."""
    from thermocline.lake.overwrite import replay_partitions

    change, clashing = replay_partitions(draft.lake.iceberg(table), base, head, main)
    if clashing:
        return False
    state = draft.lake.state(table)
    bookmark = next((found for _, found in bookmarks.walk(state, head)), None)
    draft.rebase(table)
    draft.change_files(table, change, bookmark=bookmark, operation="partitions")
    return True


def _has_companion_moved(draft: Draft, contract: Contract) -> bool:
    companion = tombstones.derive_companion(contract)
    if companion is None:
        return False
    state = draft.lake.state(companion.table)
    return draft.resolve_base(state) != draft.base(companion.table)


def _rebase_append(draft: Draft, table: str, base: int, head: int) -> bool:
    """Add the draft's files to the new main. They are the same files, so no row is duplicated."""
    from thermocline.lake.file_commit import commit_files
    from thermocline.lake.filediff import added_files
    from thermocline.lake.snapshot_producer import FileChange

    state = draft.lake.state(table)
    made = state.between(base, head)
    if made is None or any(snapshot.operation != "append" for snapshot in made):
        return False
    files = added_files(draft.lake.iceberg(table), [snapshot.id for snapshot in made])
    bookmark = bookmarks.parse_bookmark(state.snapshot(head))
    unit = draft.unit_id(table)
    properties = bookmarks.properties(draft.run, uuid4().hex, "append", bookmark, unit)
    draft.rebase(table)
    again = FileChange(files, appends=True)
    commit_files(lambda: draft.lake.iceberg(table), lambda _: again, draft.branch, properties)
    return True


def _read_bookmark(draft: Draft, table: str, snapshot: int) -> dict[str, Any]:
    state = draft.lake.state(table)
    return next((found for _, found in bookmarks.walk(state, snapshot)), {})


def _collect_keys(found: ChangeSet, contract: Contract) -> set[tuple[Any, ...]]:
    parts = (found.inserts, found.deletes, found.after)
    key = list(contract.key)
    return {tuple(row.values()) for part in parts for row in part.select(key).to_pylist()}
