"""The copies on a node, and what a poll requires of each: an update, a rebuild or a drop."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thermocline.serve.replicator.catalog_poller import CopySchema, PolledTable
    from thermocline.serve.replicator.copy_delta import FileNumbers
    from thermocline.serve.replicator.desired_state import DesiredCopy

_NO_SCHEMA: CopySchema = (None, ())


@dataclass(frozen=True)
class TrackedCopy:
    """A copy on the node. One without files is of an earlier replicator, and can only be replaced.

    A stale copy will be replaced by a new one; until then it is updated if possible. A hidden copy
    is not reported to the router.
    """

    snapshot: int
    since: datetime | None
    uuid: str = ""
    copy_schema: CopySchema = _NO_SCHEMA
    files: FileNumbers | None = None
    rows: int = 0
    bytes: int = 0
    is_stale: bool = False
    is_hidden: bool = False


def can_follow(copy: TrackedCopy, polled: PolledTable) -> bool:
    """Return whether a copy can be updated to the polled snapshot by a difference.

    That snapshot need not descend from the copy's: any two can be compared.
    """
    return (
        copy.files is not None
        and copy.uuid == polled.head.uuid
        and copy.copy_schema == polled.copy_schema
        and polled.table.snapshot_by_id(copy.snapshot) is not None
    )


def next_since(copy: TrackedCopy, desired: DesiredCopy) -> datetime | None:
    """Return the start of a copy's window after its next update: it moves forward, never back."""
    if copy.since is None or desired.since is None:
        return copy.since
    return max(copy.since, desired.since)


def is_current(copy: TrackedCopy, desired: DesiredCopy) -> bool:
    """Return whether a copy needs no update."""
    return (copy.snapshot, copy.since) == (desired.polled.head.snapshot, next_since(copy, desired))


def matches_window(copy: TrackedCopy, desired: DesiredCopy) -> bool:
    """Return whether an update can give the copy exactly the desired window."""
    if copy.since is None or desired.since is None:
        return copy.since == desired.since
    return copy.since <= desired.since
