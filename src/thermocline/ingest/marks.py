"""A feed's mark: how far it has been read, stored in the bookmark of the table's commits.

The commit that holds the rows also writes the mark, so the two cannot disagree. Every later
ingestion commit repeats the marks of all sources; maintenance commits have none, and the newest
mark in main's ancestry counts. The mark only names its batch. The position itself, which may be
large, is a row next to the table's pointer, or on a REST catalog in the snapshot's carried state.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import Permanent
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import carried_state
from thermocline.lake import consumption as values
from thermocline.lake.bookmark import FEEDS
from thermocline.lake.metadata import TableState

if TYPE_CHECKING:
    from thermocline.lake import Lake

Position = Mapping[str, Any]
"""Where to continue reading a feed: JSON in a form that the feed defines."""


@dataclass(frozen=True)
class Mark:
    """A feed's position, and the stream and sequence number of the batch that wrote it.

    A stream is one process that reads a source. Two streams started by mistake have different ids.
    """

    stream: str
    sequence: int
    position: Position


def read(lake: Lake, state: TableState, source: str, *, accept_loss: bool = False) -> Mark | None:
    """Return a source's mark on main; None if nothing of it has landed.

    With `accept_loss`, an expired mark counts as none.
    """
    head = state.head()
    stored = read_all(state, head).get(FEEDS, {}).get(source)
    if stored is not None:
        found = _load_position(lake, state, source, stored)
        if found is not None or accept_loss:
            return found
    if not accept_loss and (
        stored is not None or not bookmarks.is_history_complete(lake, state, head)
    ):
        raise Permanent(
            f"{state.table} no longer records how far {source} was read: "
            + ("its record is gone." if stored else "its old snapshots expired."),
            f"Run `thermo stream {source} --accept-loss`, which starts where the source does, "
            "or land in a new table.",
        )
    return None


def _load_position(
    lake: Lake, state: TableState, source: str, stored: Mapping[str, Any]
) -> Mark | None:
    """Return the mark with its position, from where the commit recorded it."""
    if "position" in stored:  # an older version wrote it into the bookmark
        return Mark(**stored)
    stream, sequence = stored["stream"], stored["sequence"]
    if (rows := lake.consumption_store) is not None:
        text = rows.position(state.uuid, source, stream, sequence)
        return None if text is None else Mark(stream, sequence, json.loads(text))
    carried = carried_state.read_state(state, state.head()).feeds.get(source, {})
    if (carried.get("stream"), carried.get("sequence")) != (stream, sequence):
        return None
    runs = carried_state.open_runs(lake, state)
    return Mark(stream, sequence, carried_state.load_position(runs, carried))


def to_bookmark(source: str, mark: Mark) -> dict[str, Any]:
    """Return the bookmark entry of a mark: the batch that it names, without its position."""
    return {FEEDS: {source: {"stream": mark.stream, "sequence": mark.sequence}}}


def to_consumed(source: str, mark: Mark) -> values.Consumption:
    """Return what a commit records of a mark: its position."""
    text = json.dumps(mark.position, separators=(",", ":"))
    return values.Consumption(
        (), (values.SourcePosition(source, mark.stream, mark.sequence, text),)
    )


def read_all(state: TableState, snapshot: int | None) -> dict[str, Any]:
    """Return the bookmark entry with all sources' marks, from the newest commit that has one."""
    found = carried_state.find_feeds(state, snapshot)
    return {FEEDS: found} if found else {}


def merge(before: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Merge earlier marks into a bookmark; its own marks take precedence."""
    feeds = {**before.get(FEEDS, {}), **own.get(FEEDS, {})}
    return {**own, FEEDS: feeds} if feeds else dict(own)
