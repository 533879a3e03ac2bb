"""How far a feed has been read: its mark in the bookmark of the table's own commits.

A mark is written by the commit that holds the rows, so what it says and what the table holds
cannot differ. Every later commit of ingestion carries it on, whatever source it is of; those of
maintenance carry none, and the newest one on main's ancestry counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from thermocline.errors import Permanent
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.metadata import TableState

FEEDS = "feeds"

Position = Mapping[str, Any]
"""Where a feed is to be read from next. JSON, in words of the feed's own."""


@dataclass(frozen=True)
class Mark:
    """A feed's position, and which stream left it there as its n-th batch.

    A stream is one process's reading of a source: two that were started by mistake have two ids.
    """

    stream: str
    sequence: int
    position: Position


def read(state: TableState, source: str, *, lost: bool = False) -> Mark | None:
    """A source's mark on main; None when nothing of it has landed yet.

    With `lost`, a mark that has expired counts as none.
    """
    head = state.head()
    found = carried(state, head).get(FEEDS, {}).get(source)
    if found is not None:
        return Mark(**found)
    if not lost and not bookmarks.chain_is_whole(state, head):
        raise Permanent(
            f"{state.table} no longer says how far {source} was read: its old snapshots expired.",
            f"Tell it with `thermo stream {source} --accept-loss`, which begins where the source "
            "does, or land in a new table.",
        )
    return None


def written(source: str, mark: Mark) -> dict[str, Any]:
    """The part of a bookmark that says a source's mark."""
    return {FEEDS: {source: asdict(mark)}}


def carried(state: TableState, snapshot: int | None) -> dict[str, Any]:
    """The part of a bookmark that says all sources' marks, from the newest commit that has it."""
    for _, found in bookmarks.walk(state, snapshot):
        if FEEDS in found:
            return {FEEDS: found[FEEDS]}
    return {}


def merged(before: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A bookmark with the marks of the commits before it, and its own in front."""
    feeds = {**before.get(FEEDS, {}), **own.get(FEEDS, {})}
    return {**own, FEEDS: feeds} if feeds else dict(own)
