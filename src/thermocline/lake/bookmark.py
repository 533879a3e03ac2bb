"""Bookmarks: what a table has consumed, stored in the same commit as the data.

A bookmark is a JSON object in a snapshot's summary: for a model, each source table's snapshot id;
for an ingested table, the files (or offsets) of that batch. Maintenance commits carry none, so the
newest bookmark on a ref's ancestry counts.
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
"""A batch of a feed: its source, its stream, and its sequence number in the stream."""


def feed_batches(bookmark: Bookmark) -> frozenset[Batch]:
    """Return the last batch of each feed, by an ingested table's bookmark."""
    named = bookmark.get(FEEDS, {}).items()
    return frozenset((source, mark["stream"], mark["sequence"]) for source, mark in named)


def parse_bookmark(snapshot: Snapshot) -> dict[str, Any] | None:
    """Return the bookmark of one snapshot, if it has one."""
    text = snapshot.summary.get(BOOKMARK)
    return None if text is None else dict(json.loads(text))


def read(state: TableState, ref: str = MAIN) -> dict[str, Any]:
    """Return the newest bookmark on a ref's ancestry; empty if nothing was consumed yet."""
    return next((found for _, found in walk(state, state.head(ref))), {})


def walk(state: TableState, snapshot_id: int | None) -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    """Yield the bookmarks of a snapshot and its ancestors, newest first."""
    for snapshot in state.ancestry(snapshot_id):
        found = parse_bookmark(snapshot)
        if found is not None:
            yield snapshot, found


def is_first(snapshot: Snapshot) -> bool:
    """Whether a snapshot is the first one of its table.

    It has sequence number one: other tools remove the parent id of a snapshot when they expire its
    parent.
    """
    return snapshot.parent is None and snapshot.sequence <= 1


def is_history_complete(lake: Lake, state: TableState, snapshot_id: int | None) -> bool:
    """Whether the record of consumed inputs is complete despite expired snapshots."""
    return find_gap(lake, state, snapshot_id) is None


def find_gap(lake: Lake, state: TableState, snapshot_id: int | None) -> int | None:
    """Return until when (ns) it is not known what a snapshot's ancestry consumed; None if it is.

    It is known if the ancestry reaches the table's first snapshot, or if the record of expired
    ancestors was carried over: in the consumption store, or from snapshot to snapshot.
    """
    from thermocline.lake import carried_state

    store = lake.consumption_store
    if store is None:
        return carried_state.read_state(state, snapshot_id).gap_ns
    chain = list(state.ancestry(snapshot_id))
    recorded = store.find_gap(state.uuid, (each.id for each in chain))
    if not chain or is_first(chain[-1]) or chain[-1].id in store.bound_snapshots(state.uuid):
        return recorded
    return max(chain[-1].timestamp_ms * 1_000_000, recorded or 0)


def properties(
    run: str, commit: str, operation: str, bookmark: Bookmark | None, unit: str
) -> dict[str, str]:
    """Return the snapshot properties of a commit of ours."""
    found = {RUN: run, COMMIT: commit, OPERATION: operation, UNIT: unit}
    if bookmark is not None:
        found[BOOKMARK] = json.dumps(bookmark, sort_keys=True, separators=(",", ":"))
    return found


def find_commit(state: TableState, commit: str) -> Snapshot | None:
    """Return the snapshot that a commit made, if it landed. Newest snapshots are checked first."""
    newest_first = (state.snapshots[each] for each in reversed(state.snapshots))
    return next((s for s in newest_first if s.summary.get(COMMIT) == commit), None)


def entry_key_properties(keys: Iterable[str]) -> dict[str, str]:
    """Return the snapshot properties with the keys of group-commit entries, up to a length."""
    keys = list(keys)
    listed: list[str] = []
    room = _MAX_KEYS_LENGTH
    for key in keys:
        room -= len(key) + 1
        if room < 0:
            break
        listed.append(key)
    left_out = len(keys) - len(listed)
    return {KEYS: ",".join(listed)} | ({MORE_KEYS: str(left_out)} if left_out else {})


def read_entry_keys(summary: Mapping[str, str]) -> list[str]:
    """Return the keys of group-commit entries in a snapshot's summary."""
    text = summary.get(KEYS)
    return text.split(",") if text else []
