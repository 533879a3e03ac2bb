"""Copies on a node, and what a look asks of each: nothing, a step, a new copy, or to go."""

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
    """A copy on the node. One without files was made by another keeper, and can only be replaced.

    `stale` says that a new one is to take its place; until then it goes on if it can. `hidden`
    says that nobody is to be told of it.
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
    """Whether a copy can be brought to what is in sight by a difference.

    Also to a snapshot that is no child of the copy's: any two can be compared.
    """
    return (
        copy.files is not None
        and copy.uuid == polled.head.uuid
        and copy.copy_schema == polled.copy_schema
        and polled.table.snapshot_by_id(copy.snapshot) is not None
    )


def next_since(copy: TrackedCopy, desired: DesiredCopy) -> datetime | None:
    """From when on a copy is whole after its next step: it is cut, but it never grows back."""
    if copy.since is None or desired.since is None:
        return copy.since
    return max(copy.since, desired.since)


def is_current(copy: TrackedCopy, desired: DesiredCopy) -> bool:
    """Whether a copy is at the look already."""
    return (copy.snapshot, copy.since) == (desired.polled.head.snapshot, next_since(copy, desired))


def matches_window(copy: TrackedCopy, desired: DesiredCopy) -> bool:
    """Whether a step can give the copy all that is wanted of the table, and no more."""
    if copy.since is None or desired.since is None:
        return copy.since == desired.since
    return copy.since <= desired.since
