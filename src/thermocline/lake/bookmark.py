"""Bookmarks: what a table has consumed, kept in the same commit as the data.

A bookmark is a JSON object in a snapshot's summary: for a model, each source table's snapshot id;
for an ingested table, the files (or offsets) of that batch. GroupCommit of maintenance carry none, so
the newest one on a ref's ancestry counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from thermocline.lake.metadata import MAIN, Snapshot, TableState

if TYPE_CHECKING:
    from thermocline.lake.lake import Lake

PREFIX = "thermocline."
BOOKMARK = PREFIX + "bookmark"
RUN = PREFIX + "run"
COMMIT = PREFIX + "commit"
UNIT = PREFIX + "unit"
"""Marks the commits that a draft made to a table and to its companions; see lake.companions."""
OPERATION = PREFIX + "operation"
ROWS = PREFIX + "rows"
KEYS = PREFIX + "keys"
MORE_KEYS = PREFIX + "more-keys"

_MAX_KEYS_LENGTH = 4000

FEEDS = "feeds"

Bookmark = Mapping[str, Any]
Batch = tuple[str, str, int]
"""A batch of a feed: its source, its stream, and which of the stream's batches it is."""


def feed_batches(bookmark: Bookmark) -> frozenset[Batch]:
    """The last batch of each feed, as an ingested table's bookmark names them."""
    named = bookmark.get(FEEDS, {}).items()
    return frozenset((source, mark["stream"], mark["sequence"]) for source, mark in named)


def parse_bookmark(snapshot: Snapshot) -> dict[str, Any] | None:
    """The bookmark in one snapshot, if it has one."""
    text = snapshot.summary.get(BOOKMARK)
    return None if text is None else dict(json.loads(text))


def read(state: TableState, ref: str = MAIN) -> dict[str, Any]:
    """The newest bookmark on a ref's ancestry; empty when nothing was consumed yet."""
    return next((found for _, found in walk(state, state.head(ref))), {})


def walk(state: TableState, snapshot_id: int | None) -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    """Every bookmark from a snapshot back through its ancestry, newest first."""
    for snapshot in state.ancestry(snapshot_id):
        found = parse_bookmark(snapshot)
        if found is not None:
            yield snapshot, found


def is_history_complete(lake: Lake, state: TableState, snapshot_id: int | None) -> bool:
    """Whether nothing that was consumed can have been forgotten with a snapshot that expired.

    Either the ancestry reaches the table's first snapshot, or what was before its oldest one was
    carried on in rows beside the pointer. A first snapshot has the number one: other tools than
    ours take the parent away from a snapshot whose parent they expire.
    """
    chain = list(state.ancestry(snapshot_id))
    if not chain or (chain[-1].parent is None and chain[-1].sequence <= 1):
        return True
    return lake.beside is not None and chain[-1].id in lake.beside.carried(state.uuid)


def properties(
    run: str, commit: str, operation: str, bookmark: Bookmark | None, unit: str
) -> dict[str, str]:
    """The snapshot properties that a commit of ours carries."""
    carried = {RUN: run, COMMIT: commit, OPERATION: operation, UNIT: unit}
    if bookmark is not None:
        carried[BOOKMARK] = json.dumps(bookmark, sort_keys=True, separators=(",", ":"))
    return carried


def find_commit(state: TableState, commit: str) -> Snapshot | None:
    """The snapshot that a commit made, if it landed. The newest are looked at first."""
    newest_first = (state.snapshots[each] for each in reversed(state.snapshots))
    return next((s for s in newest_first if s.summary.get(COMMIT) == commit), None)


def keys_properties(keys: Iterable[str]) -> dict[str, str]:
    """The snapshot properties that name the group commit's entries, as far as there is room."""
    keys = list(keys)
    named: list[str] = []
    room = _MAX_KEYS_LENGTH
    for key in keys:
        room -= len(key) + 1
        if room < 0:
            break
        named.append(key)
    left_out = len(keys) - len(named)
    return {KEYS: ",".join(named)} | ({MORE_KEYS: str(left_out)} if left_out else {})


def keys_of(summary: Mapping[str, str]) -> list[str]:
    """The keys that a snapshot's summary names."""
    text = summary.get(KEYS)
    return text.split(",") if text else []
