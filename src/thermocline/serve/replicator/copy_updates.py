"""Update an existing copy of a table on a node, or build a new one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thermocline.serve.replicator import copy_delta
from thermocline.serve.replicator.copies import (
    TrackedCopy,
    can_follow,
    is_current,
    matches_window,
    next_since,
)
from thermocline.serve.replicator.node_client import NodeClient, NodeRefused
from thermocline.serve.wire.frame import ConnectionLost, MalformedFrame

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.serve.replicator.desired_state import DesiredCopy, DesiredState


class CopyFailed(Exception):
    """A copy cannot be made or updated: the table cannot be read, or does not fit."""

    def __init__(self, table: str) -> None:
        super().__init__(table)
        self.table = table


@dataclass(frozen=True)
class CopyUpdate:
    """The update of a copy to a poll. Call `record_applied` when the node has applied it."""

    before: TrackedCopy
    desired: DesiredCopy
    delta: copy_delta.CopyDelta
    after: TrackedCopy

    def record_applied(self) -> None:
        """Apply the delta to the file numbers."""
        assert self.after.files is not None
        self.after.files.apply(self.delta)


@dataclass(frozen=True)
class CopyBuild:
    """A new copy that is being built beside the served ones."""

    desired: DesiredCopy
    after: TrackedCopy
    change: str
    batches: Iterator[pa.RecordBatch]


def plan_update(copy: TrackedCopy, desired: DesiredCopy) -> CopyUpdate | None:
    """Return the update of a copy; None when it is current, or cannot follow."""
    head, since = desired.polled.head, next_since(copy, desired)
    if is_current(copy, desired) or not can_follow(copy, desired.polled):
        return None
    assert copy.files is not None
    with attribute_errors_to(head.table):
        found = copy_delta.compute_delta(desired.polled, copy.snapshot, since, copy.files)
    after = replace(
        copy,
        snapshot=head.snapshot,
        since=since,
        is_stale=copy.is_stale or not matches_window(copy, desired),
    )
    return CopyUpdate(copy, replace(desired, since=since), found, after)


def stage_update(client: NodeClient, change: str, update: CopyUpdate) -> None:
    """Stage an update."""
    head = update.desired.polled.head
    with attribute_errors_to(head.table):
        client.advance(change, update.before.snapshot, update.desired, update.delta)
        for batch in update.delta.rows():
            client.add_rows(change, head.table, batch)


def begin_build(client: NodeClient, desired: DesiredCopy) -> CopyBuild:
    """Begin a new copy, without its rows."""
    head = desired.polled.head
    with attribute_errors_to(head.table):
        files = copy_delta.FileNumbers()
        found = copy_delta.compute_delta(desired.polled, None, desired.since, files)
        files.apply(found)
        change = client.begin()
        try:
            client.begin_copy(change, desired)
        except NodeRefused:
            client.abandon(change)
            raise
    after = TrackedCopy(head.snapshot, desired.since, head.uuid, desired.polled.copy_schema, files)
    return CopyBuild(desired, after, change, found.rows())


def is_wanted(build: CopyBuild, desired_state: DesiredState) -> bool:
    """Return whether a copy that is being built is still needed."""
    desired = desired_state.copies.get(build.desired.polled.head.table)
    return desired is not None and can_follow(build.after, desired.polled)


def find_largest(of: Sequence[CopyUpdate]) -> str | None:
    """Return the table with the largest update: the one to leave out when all do not fit."""
    found = max(of, key=lambda each: each.delta.bytes, default=None)
    return found.desired.polled.head.table if found else None


@contextmanager
def attribute_errors_to(table: str | None) -> Iterator[None]:
    """Turn errors into CopyFailed of this table, except for a lost connection."""
    try:
        yield
    except (ConnectionLost, MalformedFrame, CopyFailed):
        raise
    except Exception as error:
        if table is None:
            raise
        raise CopyFailed(table) from error
