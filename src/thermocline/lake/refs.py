"""Branches, tags and rollback: changes of refs, never of data."""

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
    """Return the change that points a ref to a snapshot, if it still points to `was`."""
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
    """Return the change that removes a ref, if it still points to `was`."""
    from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate

    return TableChange(
        table,
        (AssertRefSnapshotId(ref=name, snapshot_id=was),),
        (RemoveSnapshotRefUpdate(ref_name=name),),
    )


def merge_changes(*changes: TableChange) -> list[TableChange]:
    """Merge the changes of each table into one, so that a table is committed once."""
    merged: dict[str, tuple[list[TableRequirement], list[TableUpdate]]] = {}
    for change in changes:
        requirements, updates = merged.setdefault(change.table, ([], []))
        requirements.extend(change.requirements)
        updates.extend(change.updates)
    return [TableChange(table, tuple(r), tuple(u)) for table, (r, u) in merged.items()]


def new_ref(state: TableState, name: str, snapshot: int | None, *, tag: bool) -> TableChange:
    """Return the change that creates a ref at a snapshot (main's head by default)."""
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
    """Return the change that removes an existing ref other than main."""
    if name == MAIN:
        raise BadInput("main cannot be dropped.", "Drop another branch, or roll main back.")
    ref = state.refs.get(name)
    if ref is None:
        raise NotFound(
            f"{state.table} has no branch or tag {name}.",
            f"It has: {', '.join(sorted(state.refs)) or 'none'}.",
        )
    return drop_ref(state.table, name, was=ref.snapshot)


def rollback(state: TableState, to: int, past_main: Collection[int] = ()) -> TableChange:
    """Return the change that points main to a snapshot of its history.

    `past_main` are former snapshots of main that are no ancestors any more, because snapshots in
    between have expired. Later snapshots stay until they expire, so a rollback can be undone.
    """
    head = state.head()
    target = state.snapshot(to).id
    known = target in past_main or state.was_published(target)
    if head is None or not (known or state.is_ancestor(target, of=head)):
        raise BadInput(
            f"{state.table}: snapshot {to} was never on main.",
            f"`thermo history {state.table}` lists what main can go back to.",
        )
    return set_ref(state.table, MAIN, to, was=head)
