"""Bookmarks: what a table has consumed, kept in the same commit as the data.

A bookmark is a JSON object in a snapshot's summary: for a model, each source table's snapshot id;
for an ingested table, the files (or offsets) of that batch. Commits of maintenance carry none, so
the newest one on a ref's ancestry counts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from thermocline.lake.metadata import MAIN, Snapshot, TableState

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

_KEYS_ROOM = 4000

Bookmark = Mapping[str, Any]


def of(snapshot: Snapshot) -> dict[str, Any] | None:
    """The bookmark in one snapshot, if it has one."""
    text = snapshot.summary.get(BOOKMARK)
    return None if text is None else dict(json.loads(text))


def read(state: TableState, ref: str = MAIN) -> dict[str, Any]:
    """The newest bookmark on a ref's ancestry; empty when nothing was consumed yet."""
    return next((found for _, found in walk(state, state.head(ref))), {})


def walk(state: TableState, snapshot_id: int | None) -> Iterator[tuple[Snapshot, dict[str, Any]]]:
    """Every bookmark from a snapshot back through its ancestry, newest first."""
    for snapshot in state.ancestry(snapshot_id):
        found = of(snapshot)
        if found is not None:
            yield snapshot, found


def chain_is_whole(state: TableState, snapshot_id: int | None) -> bool:
    """Whether the ancestry reaches the table's first snapshot, so that no bookmark has expired."""
    chain = list(state.ancestry(snapshot_id))
    return not chain or chain[-1].parent is None


def properties(
    run: str, commit: str, operation: str, bookmark: Bookmark | None, unit: str
) -> dict[str, str]:
    """The snapshot properties that a commit of ours carries."""
    carried = {RUN: run, COMMIT: commit, OPERATION: operation, UNIT: unit}
    if bookmark is not None:
        carried[BOOKMARK] = json.dumps(bookmark, sort_keys=True, separators=(",", ":"))
    return carried


def find_commit(state: TableState, commit: str) -> Snapshot | None:
    """The snapshot that a commit made, if it landed."""
    found = (s for s in state.snapshots.values() if s.summary.get(COMMIT) == commit)
    return next(found, None)


def keys_properties(keys: Iterable[str]) -> dict[str, str]:
    """The snapshot properties that name the group commit's entries, as far as there is room."""
    keys = list(keys)
    named: list[str] = []
    room = _KEYS_ROOM
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
