"""Companion tables: a table and its companions are one unit for rollback, tags and branches.

A companion stores what its table cannot: deleted keys (`<table>__tombstones`) or records that
failed validation (`quarantine.<name>`). It is only consistent with the table's snapshot that it was
written with, so rollback, tags and branches move both in one commit, and a companion cannot move
alone.

Matching snapshots: the commits of one draft to a table and its companions have the same unit id
(UNIT), and a draft that writes to a companion also writes to its table. So the companion's state at
a snapshot of its table is the last commit with the unit id of the nearest ancestor that has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.errors import BadInput, NotFound
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import refs, time_travel
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.metadata import MAIN, Snapshot, TableState

if TYPE_CHECKING:
    from thermocline.lake.lake import Lake

TOMBSTONES = "__tombstones"
QUARANTINE = "quarantine"
PROPERTY = bookmarks.PREFIX + "companion-of"
"""The table property by which a companion names its table."""


def is_companion(table: str) -> bool:
    """Whether a table is a companion, by its name."""
    return table.endswith(TOMBSTONES) or table.startswith(QUARANTINE + ".")


def tombstones_of(table: str) -> str:
    """Return the name of the companion with a table's deleted keys."""
    return table + TOMBSTONES


def quarantine_of(table: str) -> str:
    """Return the name of the companion with the records that failed a table's validation."""
    return f"{QUARANTINE}.{table.partition('.')[2]}"


def unit_name(table: str) -> str:
    """Return the name that a table shares with its possible companions."""
    return table.partition(".")[2].removesuffix(TOMBSTONES)


@dataclass(frozen=True)
class Unit:
    """A table and its companions, at one moment."""

    table: TableState
    companions: tuple[TableState, ...] = ()

    def snapshots_at(self, snapshot: int) -> dict[str, int]:
        """Return the snapshot of each table of the unit that matches a snapshot of the table."""
        matching = {
            each.table: matching_snapshot(self.table, snapshot, each) for each in self.companions
        }
        return {self.table.table: snapshot, **matching}

    def plan_moves(self, to: int) -> dict[str, tuple[int | None, int]]:
        """Return each table's main, and its snapshot that matches a snapshot of the table."""
        heads = {each.table: each.head() for each in (self.table, *self.companions)}
        return {table: (heads[table], at) for table, at in self.snapshots_at(to).items()}

    def rollback(self, to: int, past_main: Collection[int] = ()) -> list[TableChange]:
        """Return the changes that point main of all tables to the state of a snapshot."""
        changes = [refs.rollback(self.table, to, past_main)]
        for each in self.companions:
            was, at = self.plan_moves(to)[each.table]
            if was != at:
                changes.append(refs.set_ref(each.table, MAIN, at, was=was))
        return changes

    def new_ref(self, name: str, snapshot: int, *, tag: bool) -> list[TableChange]:
        """Return the changes that create a branch or tag in all tables of the unit."""
        changes = [refs.new_ref(self.table, name, snapshot, tag=tag)]
        snapshots = self.snapshots_at(snapshot)
        for each in self.companions:
            was = each.head(name)
            changes.append(refs.set_ref(each.table, name, snapshots[each.table], was=was, tag=tag))
        return changes

    def remove_ref(self, name: str) -> list[TableChange]:
        """Return the changes that remove a branch or tag from all tables of the unit."""
        named = [each for each in (self.table, *self.companions) if name in each.refs]
        return [refs.remove_ref(each, name) for each in named or [self.table]]


def load_unit(lake: Lake, table: str) -> Unit:
    """Load a table and its companions. Raise BadInput for a companion: it moves with its table."""
    state = lake.state(table)
    if is_companion(table) and (owner := owner_of(lake, state)) is not None:
        raise BadInput(
            f"{table} is a part of {owner} and always moves with it.",
            f"Name {owner} instead.",
        )
    names = {tombstones_of(table), quarantine_of(table)} - {table}
    found = lake.states(names)
    return Unit(state, tuple(found[n] for n in sorted(found) if _is_companion_of(found[n], state)))


def owner_of(lake: Lake, companion: TableState) -> str | None:
    """Return the table of a companion, if the lake still has it."""
    candidates = [name for name in lake.tables() if not is_companion(name)]
    same = [name for name in candidates if unit_name(name) == unit_name(companion.table)]
    states = lake.states(same)
    return next(
        (name for name, state in states.items() if _is_companion_of(companion, state)), None
    )


def _is_companion_of(companion: TableState, table: TableState) -> bool:
    """Whether a companion with a matching name belongs to this table."""
    declared = companion.properties.get(PROPERTY)
    if declared is not None:
        return declared == table.table
    if companion.table.endswith(TOMBSTONES):
        return companion.table == tombstones_of(table.table)
    # An old companion does not name its table, but both have commits of the same run.
    runs = {snapshot.summary.get(bookmarks.RUN) for snapshot in table.snapshots.values()} - {None}
    return any(s.summary.get(bookmarks.RUN) in runs for s in companion.snapshots.values())


def matching_snapshot(table: TableState, snapshot: int, companion: TableState) -> int:
    """Return the companion's snapshot that matches a snapshot of its table."""
    commits = _CompanionCommits(companion)
    chain = list(table.ancestry(table.snapshot(snapshot).id))
    for each in chain:
        found = commits.find_matching(each, table)
        if found is not None:
            return _newest_with_same_rows(companion, found)
    named = table.names.get(snapshot, ())
    tagged = [ref for ref in (companion.refs.get(n) for n in named) if ref and ref.type == "tag"]
    if tagged:  # all tables of a unit are tagged together
        return tagged[0].snapshot
    first = [s for s in companion.snapshots.values() if s.parent is None]
    empty = [s for s in first if s.summary.get("total-records", "0") == "0"]
    if chain[-1].parent is None:
        if empty:
            return empty[0].id
    else:
        # The matching commits have expired. The companion has not changed since the oldest commit
        # that is left, so its state then is its state at this snapshot.
        at = table.published_at(snapshot)
        try:
            return time_travel.snapshot_at(companion, at)
        except NotFound:
            if empty and empty[0].committed_at > at:
                return empty[0].id  # the companion was created later
    raise BadInput(
        f"{table.table}: the state of {companion.table} at snapshot {snapshot} has expired.",
        f"Choose a later snapshot: thermo history {table.table}.",
    )


class _CompanionCommits:
    """A companion's commits, by unit id and by run."""

    def __init__(self, companion: TableState) -> None:
        self._by_unit: dict[str, Snapshot] = {}
        self._by_run: dict[str, list[Snapshot]] = {}
        for snapshot in sorted(companion.snapshots.values(), key=lambda each: each.sequence):
            unit = snapshot.summary.get(bookmarks.UNIT)
            if unit is not None:
                self._by_unit[unit] = snapshot
        for snapshot in _published_snapshots(companion):
            if bookmarks.UNIT not in snapshot.summary and bookmarks.RUN in snapshot.summary:
                self._by_run.setdefault(snapshot.summary[bookmarks.RUN], []).append(snapshot)

    def find_matching(self, of: Snapshot, table: TableState) -> int | None:
        """Return the companion's last commit with the unit id of a commit of the table."""
        unit = of.summary.get(bookmarks.UNIT)
        if unit is not None:
            found = self._by_unit.get(unit)
            return None if found is None else found.id
        run = of.summary.get(bookmarks.RUN)
        if run is None:
            return None
        # An old commit without a unit id. A run of ingestion made several commits in sequence:
        # those before the table's next commit match this one.
        later = [
            s.timestamp_ms for s in table.snapshots.values()
            if s.summary.get(bookmarks.RUN) == run and s.sequence > of.sequence
        ]  # fmt: skip
        end = min(later, default=None)
        matching = [s for s in self._by_run.get(run, ()) if end is None or s.timestamp_ms < end]
        return max(matching, key=lambda each: each.sequence).id if matching else None


def _published_snapshots(state: TableState) -> Iterator[Snapshot]:
    """Yield the snapshots that were in main's history at any time."""
    seen: set[int] = set()
    logged = [entry["snapshot-id"] for entry in state.raw.get("snapshot-log") or ()]
    for start in (state.head(), *logged):
        for snapshot in state.ancestry(start):
            if snapshot.id in seen:
                break
            seen.add(snapshot.id)
            yield snapshot


def _newest_with_same_rows(companion: TableState, snapshot: int) -> int:
    """Return the newest snapshot on main with the same rows, possibly in other files."""
    newest = companion.head()
    for each in companion.ancestry(companion.head()):
        if each.id == snapshot:
            return snapshot if newest is None else newest
        if each.operation != "replace":
            newest = each.parent
    return snapshot
