"""Branches, tags and rollback: moving names between snapshots, never data."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from thermocline.errors import BadInput, NotFound
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.metadata import MAIN, TableState
from thermocline.lake.naming import validate_ref_name

if TYPE_CHECKING:
    from pyiceberg.table.update import TableRequirement, TableUpdate


def set_ref(
    table: str, name: str, snapshot: int, *, was: int | None, tag: bool = False
) -> TableChange:
    """Point a branch or tag to a snapshot, provided that it still points where it `was`."""
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.update import AssertRefSnapshotId, SetSnapshotRefUpdate

    kind = SnapshotRefType.TAG if tag else SnapshotRefType.BRANCH
    return TableChange(
        table,
        (AssertRefSnapshotId(ref=name, snapshot_id=was),),
        (
            SetSnapshotRefUpdate(
                ref_name=name,
                type=kind,
                snapshot_id=snapshot,
                max_ref_age_ms=None,
                max_snapshot_age_ms=None,
                min_snapshots_to_keep=None,
            ),
        ),
    )


def drop_ref(table: str, name: str, *, was: int) -> TableChange:
    """Remove a branch or tag, provided that it still points where it `was`."""
    from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

    return TableChange(
        table,
        (AssertRefSnapshotId(ref=name, snapshot_id=was),),
        (RemoveSnapshotRefUpdate(ref_name=name),),
    )


def merge_changes(*changes: TableChange) -> list[TableChange]:
    """Join the changes of one table into one, so that a table is committed once."""
    joined: dict[str, tuple[list[TableRequirement], list[TableUpdate]]] = {}
    for change in changes:
        requirements, updates = joined.setdefault(change.table, ([], []))
        requirements.extend(change.requirements)
        updates.extend(change.updates)
    return [TableChange(table, tuple(r), tuple(u)) for table, (r, u) in joined.items()]


def new_ref(state: TableState, name: str, snapshot: int | None, *, tag: bool) -> TableChange:
    """Make a branch or tag that is not there yet, at a snapshot (main's newest by default)."""
    kind = "tag" if tag else "branch"
    if validate_ref_name(name) in state.refs:
        raise BadInput(
            f"{state.table} has a {state.refs[name].type} {name} already.",
            f"Choose another name, or drop it first: thermo {kind} {state.table} {name} --drop.",
        )
    target = snapshot if snapshot is not None else state.head()
    if target is None:
        raise NotFound(f"{state.table} has no snapshot yet.", "Write to it first.")
    return set_ref(state.table, name, state.snapshot(target).id, was=None, tag=tag)


def remove_ref(state: TableState, name: str) -> TableChange:
    """Remove a branch or tag that is there. Main stays."""
    if name == MAIN:
        raise BadInput("main cannot be dropped.", "Drop another branch, or roll main back.")
    ref = state.refs.get(name)
    if ref is None:
        raise NotFound(
            f"{state.table} has no branch or tag {name}.",
            f"It has: {', '.join(sorted(state.refs)) or 'none'}.",
        )
    return drop_ref(state.table, name, was=ref.snapshot)


def rollback(state: TableState, to: int, been: Collection[int] = ()) -> TableChange:
    """Point main to a snapshot that it pointed to before.

    `been` are snapshots that were on main and do not lead to it any more, since those between
    have expired. What came after stays until it expires, so that a rollback can be taken back.
    """
    head = state.head()
    target = state.snapshot(to).id
    known = target in been or state.was_published(target)
    if head is None or not (known or state.is_ancestor(target, of=head)):
        raise BadInput(
            f"{state.table}: snapshot {to} was never on main.",
            f"`thermo history {state.table}` lists what main can go back to.",
        )
    return set_ref(state.table, MAIN, to, was=head)
