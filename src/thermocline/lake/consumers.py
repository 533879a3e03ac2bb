"""The consumers of a table: which of its snapshots other tables continue from.

On a SQL catalog they are rows in the consumption store. On a REST catalog they are found in the
bookmarks of all tables, which is done seldom: when so many snapshots could expire that it is worth
it. A table that is computed for the first time has no bookmark yet; until it is published, a branch
of the run holds the snapshots of its sources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from thermocline.lake import bookmark as bookmarks
from thermocline.lake.naming import RUN_PREFIX

if TYPE_CHECKING:
    from thermocline.lake.draft import Draft
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import TableState


def list_consumers(
    table: str, into: str, bookmark: Mapping[str, object]
) -> Iterator[tuple[str, str, int]]:
    """Yield the snapshots that a table continues from: source, consumer, snapshot."""
    for source, snapshot in bookmark.items():
        if isinstance(snapshot, int) and "." in source:
            yield source, f"{table}@{into}", snapshot


def find_consumers(lake: Lake) -> list[tuple[str, str, int]]:
    """Find all consumers in the bookmarks of all tables."""
    return [
        each
        for state in lake.states(lake.tables()).values()
        for name, ref in state.refs.items()
        if ref.type == "branch" and not name.startswith(RUN_PREFIX)
        for each in list_consumers(state.table, name, bookmarks.read(state, name))
    ]


def protect_sources(draft: Draft, pins: Mapping[str, Mapping[str, int]]) -> None:
    """Protect the snapshots of sources that a draft reads, by table that it writes, from expiry.

    On a REST catalog only a table without a bookmark needs it: the bookmark of an earlier run
    holds older snapshots.
    """
    lake = draft.lake
    if (store := lake.consumption_store) is not None:
        read = (list_consumers(table, draft.into, sources) for table, sources in pins.items())
        store.register(each for found in read for each in found)
        return
    for table, sources in pins.items():
        known = bookmarks.read(lake.state(table), draft.into)
        draft.hold({source: at for source, at in sources.items() if source not in known})


class BookmarkedConsumers:
    """The consumers in the bookmarks of all tables, which are read seldom."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._due_at: dict[str, int] = {}
        """By table whose snapshots are in use: the number of snapshots at the next search."""

    def is_due(self, state: TableState) -> bool:
        """Whether it is worth searching for the consumers of a table."""
        return len(state.snapshots) >= self._due_at.get(state.table, 0)

    def postpone(self, state: TableState, more: int) -> None:
        """Search again when the table has this many more snapshots."""
        self._due_at[state.table] = len(state.snapshots) + more

    def snapshots(self, source: str) -> list[int]:
        """Return the snapshots that the consumers of a table continue from."""
        found = find_consumers(self._lake)
        return [snapshot for name, _, snapshot in found if name == source]
