"""The ref guard: a commit that expires snapshots fails if a ref was made meanwhile.

A REST catalog checks requirements on refs by name, and removes with a snapshot every ref at it,
without an error. So a tag that was made after an expiry was planned would be lost. Therefore a
commit that points a ref to an existing snapshot also points one more tag, the guard, to such a
snapshot; and a commit that expires snapshots keeps the guard's snapshot, requires that the guard
has not moved, and removes it. So either the expiry was planned with the new ref, or one of the two
commits fails. A commit that adds the snapshot of its ref needs no guard, nor one that moves main:
what expires snapshots requires main as well.

Other tools do not move the guard. A tag that one of them makes in the milliseconds between plan and
commit, at a snapshot that expires, is lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline.lake.metadata import MAIN, REF_GUARD, TableState

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from thermocline.lake.atomic_commit import TableChange


def referenced_snapshots(change: TableChange) -> dict[str, int]:
    """Return the refs that a change points to snapshots that it does not add."""
    added = {u.snapshot.snapshot_id for u in change.updates if u.action == "add-snapshot"}
    return {
        update.ref_name: update.snapshot_id
        for update in change.updates
        if update.action == "set-snapshot-ref" and update.snapshot_id not in added
    }


def guard_refs(change: TableChange, current: TableMetadata) -> TableChange:
    """Return a change that also moves the guard, if it points a ref to an existing snapshot.

    The change then requires that the guard is where it is now.
    """
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

    targets = {at for name, at in referenced_snapshots(change).items() if name != MAIN}
    if not targets or any(update.action == "remove-snapshots" for update in change.updates):
        return change
    found = current.refs.get(REF_GUARD)
    was = None if found is None else found.snapshot_id
    # An expiry keeps the guard's snapshot, so the guard need not move if it is the only target.
    target = min(targets - {was}, default=was)
    assert target is not None
    move = SetSnapshotRefUpdate(
        ref_name=REF_GUARD,
        type=SnapshotRefType.TAG,
        snapshot_id=target,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    unmoved = AssertRefSnapshotId(ref=REF_GUARD, snapshot_id=was)
    return replace(
        change,
        requirements=(*change.requirements, unmoved),
        updates=(*change.updates, move),
    )


def guard_snapshot(state: TableState) -> int | None:
    """Return the snapshot of the guard, which an expiry keeps; None if there is no guard."""
    found = (state.raw.get("refs") or {}).get(REF_GUARD)
    return None if found is None else int(found["snapshot-id"])


def require_guard(state: TableState) -> TableChange:
    """Return the change by which an expiry that was planned on a state requires the guard."""
    from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

    from thermocline.lake.atomic_commit import TableChange

    was = guard_snapshot(state)
    removal = () if was is None else (RemoveSnapshotRefUpdate(ref_name=REF_GUARD),)
    required = AssertRefSnapshotId(ref=REF_GUARD, snapshot_id=was)
    return TableChange(state.table, (required,), removal)
