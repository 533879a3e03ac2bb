"""Copies on a node, and what a look asks of each: nothing, a step, a new copy, or to go."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from thermocline.serve.keeper.goals import Want
    from thermocline.serve.keeper.heads import Shape, Sight
    from thermocline.serve.keeper.reading import Numbers

_SHAPELESS: Shape = (None, ())


@dataclass(frozen=True)
class Copy:
    """A copy on the node. One without files was made by another keeper, and can only be replaced.

    `stale` says that a new one is to take its place; until then it goes on if it can. `hidden`
    says that nobody is to be told of it.
    """

    snapshot: int
    since: datetime | None
    uuid: str = ""
    shape: Shape = _SHAPELESS
    files: Numbers | None = None
    rows: int = 0
    bytes: int = 0
    stale: bool = False
    hidden: bool = False


def can_follow(copy: Copy, sight: Sight) -> bool:
    """Whether a copy can be brought to what is in sight by a difference.

    Also to a snapshot that is no child of the copy's: any two can be compared.
    """
    return (
        copy.files is not None
        and copy.uuid == sight.head.uuid
        and copy.shape == sight.shape
        and sight.table.snapshot_by_id(copy.snapshot) is not None
    )


def next_since(copy: Copy, want: Want) -> datetime | None:
    """From when on a copy is whole after its next step: it is cut, but it never grows back."""
    if copy.since is None or want.since is None:
        return copy.since
    return max(copy.since, want.since)


def is_there(copy: Copy, want: Want) -> bool:
    """Whether a copy is at the look already."""
    return (copy.snapshot, copy.since) == (want.sight.head.snapshot, next_since(copy, want))


def fits(copy: Copy, want: Want) -> bool:
    """Whether a step can give the copy all that is wanted of the table, and no more."""
    if copy.since is None or want.since is None:
        return copy.since == want.since
    return copy.since <= want.since
