"""Put a draft's changes to a table onto a main that moved meanwhile.

The draft's net row changes are applied again on top of the new main, when nobody else touched
the same keys and nobody else consumed the same input. Otherwise the caller computes again from
the new state. Either way nobody's commit is overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.contract.definition import Contract, Write
from thermocline.engine.spark import CATALOG
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.changes import changes
from thermocline.lake.draft import Draft, source_head
from thermocline.transform.strategies import tombstones

if TYPE_CHECKING:
    from thermocline.lake.changeset import ChangeSet

MOST_ROWS = 200_000
"""Computing again is the better way for larger changes."""


def mark(draft: Draft, table: str, bookmark: Mapping[str, Any]) -> int:
    """Commit a bookmark alone: the sources moved, and no row of the table changes."""
    commit = uuid4().hex
    properties = bookmarks.properties(draft.run, commit, "mark", bookmark)
    with draft.lake.iceberg(table).transaction() as transaction:
        snapshots = transaction.update_snapshot(properties, branch=draft.branch)
        with snapshots.fast_append():
            pass
    return draft.head(table)


def onto_moved(draft: Draft, contract: Contract) -> bool:
    """Replay the draft's changes of one table onto where main is now; False if they collide."""
    table = contract.table
    state = draft.lake.state(table)
    base, head, main = draft.base(table), draft.head(table), source_head(state, draft.into)
    if _bookmark_at(draft, table, base) != _bookmark_at(draft, table, main):
        return False  # somebody consumed the same input meanwhile
    if contract.write is Write.APPEND:
        return _append_again(draft, table, base, head)
    if contract.write not in {Write.MERGE, Write.SCD2} or _companion_moved(draft, contract):
        return False
    iceberg = draft.lake.iceberg(table)
    ours = changes(iceberg, base, head, key=contract.shape.key)
    theirs = changes(iceberg, base, main, key=contract.shape.key)
    collide = _keys(ours, contract) & _keys(theirs, contract)
    if collide or sum(ours.counts.values()) > MOST_ROWS:
        return False
    mine = bookmarks.of(state.snapshot(head))
    draft.rebase(table)
    draft.commit(
        table,
        lambda target: _apply(draft, contract, ours, target),
        bookmark=mine,
        operation=str(contract.write),
    )
    return True


def _companion_moved(draft: Draft, contract: Contract) -> bool:
    companion = tombstones.contract_for(contract)
    if companion is None:
        return False
    state = draft.lake.state(companion.table)
    return source_head(state, draft.into) != draft.base(companion.table)


def _append_again(draft: Draft, table: str, base: int, head: int) -> bool:
    """Add the draft's files to the new main: the same files, so no row is written twice."""
    from pyiceberg.manifest import ManifestEntryStatus

    state = draft.lake.state(table)
    made = state.between(base, head)
    if made is None or any(snapshot.operation != "append" for snapshot in made):
        return False
    iceberg = draft.lake.iceberg(table)
    ours = {snapshot.id for snapshot in made}
    files = [
        entry.data_file
        for snapshot_id in ours
        for manifest in iceberg.snapshot_by_id(snapshot_id).manifests(iceberg.io)  # type: ignore[union-attr]
        if manifest.added_snapshot_id == snapshot_id
        for entry in manifest.fetch_manifest_entry(iceberg.io, discard_deleted=True)
        if entry.status is ManifestEntryStatus.ADDED
    ]
    properties = bookmarks.properties(
        draft.run, uuid4().hex, "append", bookmarks.of(state.snapshot(head))
    )
    draft.rebase(table)
    with (
        draft.lake.iceberg(table).transaction() as transaction,
        transaction.update_snapshot(properties, branch=draft.branch).fast_append() as append,
    ):
        for file in files:
            append.append_data_file(file)
    return True


def _bookmark_at(draft: Draft, table: str, snapshot: int) -> dict[str, Any]:
    state = draft.lake.state(table)
    return next((found for _, found in bookmarks.walk(state, snapshot)), {})


def _keys(found: ChangeSet, contract: Contract) -> set[tuple[Any, ...]]:
    parts = (found.inserts, found.deletes, found.after)
    key = list(contract.key)
    return {tuple(row.values()) for part in parts for row in part.select(key).to_pylist()}


def _apply(draft: Draft, contract: Contract, ours: ChangeSet, target: str) -> None:
    """Write the changed rows and take out the deleted ones, in one commit."""
    import pyarrow as pa

    session = draft.lake.spark.session
    kept = pa.concat_tables([ours.inserts, ours.after])
    gone = ours.deletes
    flags = pa.array([False] * kept.num_rows + [True] * gone.num_rows)
    rows = pa.concat_tables([kept, gone]).append_column("_tc_gone", flags)
    schema = session.table(f"{CATALOG}.{contract.table}").schema.add("_tc_gone", "boolean")
    names = [field.name for field in schema.fields if field.name != "_tc_gone"]
    view = f"_tc_replay_{uuid4().hex}"
    frame = draft.lake.spark.frame(rows.select([*names, "_tc_gone"]), schema)
    frame.createTempView(view)
    on = " and ".join(f"t.`{name}` = s.`{name}`" for name in contract.shape.key)
    columns = ", ".join(f"`{name}`" for name in names)
    values = ", ".join(f"s.`{name}`" for name in names)
    updates = ", ".join(f"t.`{name}` = s.`{name}`" for name in names)
    try:
        session.sql(
            f"merge into {target} as t using {view} as s on {on} "
            f"when matched and s._tc_gone then delete "
            f"when matched then update set {updates} "
            f"when not matched and not s._tc_gone then insert ({columns}) values ({values})"
        )
    finally:
        session.catalog.dropTempView(view)
