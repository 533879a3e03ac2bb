"""A table and its companions are one unit for every operation on versions.

A companion holds what its table cannot: keys that were deleted (`<table>__tombstones`), records
that could not land (`quarantine.<name>`). It is only right beside the table's snapshot that it was
written with, so rollback, tags and branches move both in one commit, and a companion cannot be
moved alone.

Which snapshots belong together: the commits that one draft makes to a table and its companions
carry the same mark (UNIT), and whatever writes to a companion writes to its table too. So the
companion's state beside a snapshot is the last commit with the mark of the nearest ancestor that
has one.
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
    """Whether a table only serves another one, by its name."""
    return table.endswith(TOMBSTONES) or table.startswith(QUARANTINE + ".")


def tombstones_of(table: str) -> str:
    """The name of the table that keeps a table's deleted keys."""
    return table + TOMBSTONES


def quarantine_of(table: str) -> str:
    """The name of the table that keeps the records that could not land in a table."""
    return f"{QUARANTINE}.{table.partition('.')[2]}"


def unit_name(table: str) -> str:
    """The same for a table and all that can be its companions."""
    return table.partition(".")[2].removesuffix(TOMBSTONES)


@dataclass(frozen=True)
class Unit:
    """A table and its companions, as they are at one moment."""

    table: TableState
    companions: tuple[TableState, ...] = ()

    def at(self, snapshot: int) -> dict[str, int]:
        """The snapshot of each table of the unit that belongs to a snapshot of the table."""
        beside = {
            each.table: matching_snapshot(self.table, snapshot, each) for each in self.companions
        }
        return {self.table.table: snapshot, **beside}

    def moves(self, to: int) -> dict[str, tuple[int | None, int]]:
        """Where main is in each table, and where it is when the table is at a snapshot."""
        heads = {each.table: each.head() for each in (self.table, *self.companions)}
        return {table: (heads[table], at) for table, at in self.at(to).items()}

    def rollback(self, to: int, been: Collection[int] = ()) -> list[TableChange]:
        """Point main of all tables to where they were when the table was at a snapshot."""
        changes = [refs.rollback(self.table, to, been)]
        for each in self.companions:
            was, at = self.moves(to)[each.table]
            if was != at:
                changes.append(refs.set_ref(each.table, MAIN, at, was=was))
        return changes

    def new_ref(self, name: str, snapshot: int, *, tag: bool) -> list[TableChange]:
        """Make a branch or tag in all tables of the unit."""
        changes = [refs.new_ref(self.table, name, snapshot, tag=tag)]
        moves = self.at(snapshot)
        for each in self.companions:
            was = each.head(name)
            changes.append(refs.set_ref(each.table, name, moves[each.table], was=was, tag=tag))
        return changes

    def remove_ref(self, name: str) -> list[TableChange]:
        """Remove a branch or tag from all tables of the unit."""
        named = [each for each in (self.table, *self.companions) if name in each.refs]
        return [refs.remove_ref(each, name) for each in named or [self.table]]


def load_unit(lake: Lake, table: str) -> Unit:
    """A table with its companions. A companion itself is refused: it moves with its table."""
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
    """The table that a companion belongs to, if the lake still has it."""
    there = [name for name in lake.tables() if not is_companion(name)]
    same = [name for name in there if unit_name(name) == unit_name(companion.table)]
    states = lake.states(same)
    return next(
        (name for name, state in states.items() if _is_companion_of(companion, state)), None
    )


def _is_companion_of(companion: TableState, table: TableState) -> bool:
    """Whether a companion of a fitting name is this table's."""
    declared = companion.properties.get(PROPERTY)
    if declared is not None:
        return declared == table.table
    if companion.table.endswith(TOMBSTONES):
        return companion.table == tombstones_of(table.table)
    # Written before companions named their table: both have commits of the same run.
    runs = {snapshot.summary.get(bookmarks.RUN) for snapshot in table.snapshots.values()} - {None}
    return any(s.summary.get(bookmarks.RUN) in runs for s in companion.snapshots.values())


def matching_snapshot(table: TableState, snapshot: int, companion: TableState) -> int:
    """The companion's snapshot that belongs to a snapshot of its table."""
    commits = _CompanionCommits(companion)
    chain = list(table.ancestry(table.snapshot(snapshot).id))
    for each in chain:
        found = commits.beside(each, table)
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
        # The snapshots that would tell have expired: nothing was written to the companion since
        # the oldest one that is left, so what it was then is what it was at this snapshot.
        at = table.published_at(snapshot)
        try:
            return time_travel.snapshot_at(companion, at)
        except NotFound:
            if empty and empty[0].committed_at > at:
                return empty[0].id  # it came later
    raise BadInput(
        f"{table.table}: the state of {companion.table} beside snapshot {snapshot} has expired.",
        f"Choose a later snapshot: thermo history {table.table}.",
    )


class _CompanionCommits:
    """A companion's commits by what they were made with."""

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

    def beside(self, of: Snapshot, table: TableState) -> int | None:
        """The companion's last commit that was made with a commit of the table, if there is one."""
        unit = of.summary.get(bookmarks.UNIT)
        if unit is not None:
            found = self._by_unit.get(unit)
            return None if found is None else found.id
        run = of.summary.get(bookmarks.RUN)
        if run is None:
            return None
        # Written before commits had the mark. A run of ingestion made several commits, one after
        # the other: those before the table's next one belong to this.
        later = [
            s.timestamp_ms for s in table.snapshots.values()
            if s.summary.get(bookmarks.RUN) == run and s.sequence > of.sequence
        ]  # fmt: skip
        end = min(later, default=None)
        made = [s for s in self._by_run.get(run, ()) if end is None or s.timestamp_ms < end]
        return max(made, key=lambda each: each.sequence).id if made else None


def _published_snapshots(state: TableState) -> Iterator[Snapshot]:
    """The snapshots that main has led to at some time."""
    seen: set[int] = set()
    logged = [entry["snapshot-id"] for entry in state.raw.get("snapshot-log") or ()]
    for start in (state.head(), *logged):
        for snapshot in state.ancestry(start):
            if snapshot.id in seen:
                break
            seen.add(snapshot.id)
            yield snapshot


def _newest_with_same_rows(companion: TableState, snapshot: int) -> int:
    """The newest snapshot on main that holds the same rows, only in other files."""
    newest = companion.head()
    for each in companion.ancestry(companion.head()):
        if each.id == snapshot:
            return snapshot if newest is None else newest
        if each.operation != "replace":
            newest = each.parent
    return snapshot
