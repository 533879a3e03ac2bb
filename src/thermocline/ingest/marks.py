"""How far a feed has been read: its mark in the bookmark of the table's own commits.

A mark is written by the commit that holds the rows, so what it says and what the table holds
cannot differ. Every later commit of ingestion carries it on, whatever source it is of; those of
maintenance carry none, and the newest one on main's ancestry counts. On a SQL catalog the mark
only names its batch; the position itself, which may be large, is a row beside the pointer.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import consumption as values
from thermocline.lake.bookmark import FEEDS
from thermocline.lake.metadata import TableState

if TYPE_CHECKING:
    from thermocline.lake import Lake

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


def read(lake: Lake, state: TableState, source: str, *, accept_loss: bool = False) -> Mark | None:
    """A source's mark on main; None when nothing of it has landed yet.

    With `lost`, a mark that has expired counts as none.
    """
    head = state.head()
    named = read_all(state, head).get(FEEDS, {}).get(source)
    if named is not None:
        found = _load_position(lake, state, source, named)
        if found is not None or accept_loss:
            return found
    if not accept_loss and (
        named is not None or not bookmarks.is_history_complete(lake, state, head)
    ):
        raise Permanent(
            f"{state.table} no longer says how far {source} was read: "
            + ("its row in the catalog is gone." if named else "its old snapshots expired."),
            f"Tell it with `thermo stream {source} --accept-loss`, which begins where the source "
            "does, or land in a new table.",
        )
    return None


def _load_position(
    lake: Lake, state: TableState, source: str, named: Mapping[str, Any]
) -> Mark | None:
    """The mark with its position, wherever that is kept."""
    if "position" in named:
        return Mark(**named)
    stream, sequence = named["stream"], named["sequence"]
    rows = lake.beside
    text = rows.position(state.uuid, source, stream, sequence) if rows else None
    return None if text is None else Mark(stream, sequence, json.loads(text))


def to_bookmark(source: str, mark: Mark, *, beside: bool) -> dict[str, Any]:
    """The part of a bookmark that says a source's mark; without the position where a row has it."""
    said = asdict(mark)
    if beside:
        del said["position"]
    return {FEEDS: {source: said}}


def to_consumed(source: str, mark: Mark) -> values.Consumption:
    """The row that a commit lands with a mark."""
    text = json.dumps(mark.position, separators=(",", ":"))
    return values.Consumption(
        (), (values.SourcePosition(source, mark.stream, mark.sequence, text),)
    )


def read_all(state: TableState, snapshot: int | None) -> dict[str, Any]:
    """The part of a bookmark that says all sources' marks, from the newest commit that has it."""
    for _, found in bookmarks.walk(state, snapshot):
        if FEEDS in found:
            return {FEEDS: found[FEEDS]}
    return {}


def merge(before: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A bookmark with the marks of the commits before it, and its own in front."""
    feeds = {**before.get(FEEDS, {}), **own.get(FEEDS, {})}
    return {**own, FEEDS: feeds} if feeds else dict(own)
