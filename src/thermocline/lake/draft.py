"""A draft: a run's private branch over the tables it touches, published all at once.

Everything a run writes goes to its draft. Readers of main see nothing of it until `publish` moves
main in all tables by one catalog transaction, or never, when the run fails or dies.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.engine.spark import CATALOG
from thermocline.errors import BadInput, CommitConflict, Permanent
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import companions, refs, run_branches
from thermocline.lake.atomic_commit import SessionWriter, TableChange, retrying
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.consumption import Consumption, ConsumptionRows
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft_writes import DraftWrites
from thermocline.lake.metadata import MAIN
from thermocline.lake.metadata_updates import SequenceNumberTaken
from thermocline.lake.naming import RUN_PREFIX
from thermocline.lake.run_locks import RunLock

if TYPE_CHECKING:
    from thermocline.lake.data_file_writer import DataFileWriter
    from thermocline.lake.file_commit import PendingCommit
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import TableState
    from thermocline.lake.retention import Expiry
    from thermocline.lake.snapshot_producer import Made


@dataclass(frozen=True)
class PublishResult:
    """What a publish made visible: each table's snapshot before and after."""

    run: str
    into: str
    tables: dict[str, tuple[int | None, int]]


class Draft(DraftWrites):
    """One run's branches. `into` is the branch that publish moves: main, or an environment.

    With `late_branches` a table gets its branch only when something must see what was written
    before it is published: Spark, or who asks for the head. What this process writes itself is
    kept as files until then, and its snapshot is added by the very commit that moves `into`.
    """

    def __init__(
        self, lake: Lake, run: str, into: str = MAIN, *, late_branches: bool = False
    ) -> None:
        self.lake = lake
        self.run = run
        self.into = into
        self.branch = RUN_PREFIX + run
        self._late = late_branches
        self._bases: dict[str, int] = {}
        self._branched: set[str] = set()
        self._pending: dict[str, PendingCommit] = {}
        self._files: list[DataFileWriter] = []
        """Files of pending commits: removed when it is certain that nobody will ever need them."""
        self._marks: dict[str, str] = {}
        self._consumed: list[tuple[str, int, Consumption]] = []
        self._lock: RunLock | None = None
        """Held while there are branches, so that nobody takes them for what a dead run left."""

    @property
    def tables(self) -> list[str]:
        """The tables that have been begun."""
        return list(self._bases)

    def begin(self, *tables: str) -> None:
        """Branch tables from where they are now, in one transaction. Begun ones are left alone."""
        new = [table for table in dict.fromkeys(tables) if table not in self._bases]
        self._bases |= {table: self.start(self.lake.state(table)) for table in new}
        if not self._late:
            self._branch(*new)

    def _branch(self, *tables: str) -> None:
        """Make the branches of tables that have none yet, with what is pending for them."""
        new = [table for table in tables if table not in self._branched]
        if not new:
            return
        self._hold()
        self._branched.update(new)
        pending = {table: self._pending.pop(table) for table in new if table in self._pending}
        without = [table for table in new if table not in pending]
        changes = [refs.set_ref(t, self.branch, self._bases[t], was=None) for t in without]
        if changes:
            self.lake.commit(changes)
            crash_point("draft.begun")
        for table, each in pending.items():
            self._branch_with(table, each)

    def _branch_with(self, table: str, pending: PendingCommit) -> None:
        from thermocline.lake.file_commit import snapshot_changes

        for again in retrying(SequenceNumberTaken):
            with again:
                made = pending.on(self.lake.iceberg(table), self._bases[table])
                self.lake.commit(snapshot_changes(made.table, made, self.branch, None))

    def start(self, state: TableState) -> int:
        """Where `into` is, or begins: a companion begins beside the `into` of its table."""
        if self.into not in state.refs and companions.is_companion(state.table):
            owner = companions.owner_of(self.lake, state)
            table = self.lake.state(owner) if owner is not None else None
            head = table.head(self.into) if table is not None else None
            if table is not None and head is not None:
                return companions.matching_snapshot(table, head, state)
        return source_head(state, self.into)

    def unit_mark(self, table: str) -> str:
        """What marks this draft's commits to a table and its companions as made together."""
        return self._marks.setdefault(companions.unit_name(table), uuid4().hex)

    def resume(self, table: str, base: int) -> None:
        """Go on with a table's branch that an earlier process made from a snapshot."""
        self._hold()
        self._bases[table] = base
        self._branched.add(table)

    def _hold(self) -> None:
        if self._lock is None:
            self._lock = RunLock(self.lake.settings.project, self.run)

    def release(self, *, done: bool = False) -> None:
        """Have the run count as ended. Without `done` it leaves its branches behind."""
        if self._lock is not None:
            self._lock.release(done=done)
            self._lock = None

    def base(self, table: str) -> int:
        """The snapshot that the draft's branch was made from."""
        return self._bases[table]

    def target(self, table: str) -> str:
        """The identifier under which Spark reads and writes the draft's branch."""
        return f"{CATALOG}.{table}.`branch_{self.branch}`"

    def head(self, table: str) -> int:
        """The newest snapshot on the draft's branch."""
        self._branch(table)
        return self._head(self.lake.state(table))

    def _head(self, state: TableState) -> int:
        head = state.head(self.branch)
        if head is None:
            raise Permanent(
                f"The branch {self.branch} of {state.table} is gone.",
                "Somebody dropped it while the run was working. Run again.",
            )
        return head

    def rebase(self, table: str) -> None:
        """Forget what the draft wrote to a table and branch it anew from where `into` is now."""
        self._branch(table)
        state = self.lake.state(table)
        base = self.start(state)
        change = refs.set_ref(table, self.branch, base, was=state.head(self.branch))
        self.lake.commit([change])
        self._bases[table] = base
        if companions.is_companion(table):
            self._marks.pop(companions.unit_name(table), None)  # what it was given to is forgotten

    def land_with(self, table: str, snapshot: int, consumed: Consumption) -> None:
        """Have publish write what a commit consumed beside the table's pointer."""
        self._consumed.append((table, snapshot, consumed))

    def publish(self) -> PublishResult:
        """Make everything in the draft visible at once, or raise MainMoved and change nothing."""
        crash_point("publish.before")
        for again in retrying(SequenceNumberTaken):
            with again:
                published = self._publish()
        crash_point("publish.after")
        self.release(done=True)
        run_branches.expire_dead_runs_when_due(self.lake)
        return published

    def _publish(self) -> PublishResult:
        from thermocline.lake.file_commit import snapshot_changes

        # One look a table: what is compared with the base is also what the commit requires.
        states = {table: self.lake.state(table) for table in self._bases}
        moved = [t for t, base in self._bases.items() if self.start(states[t]) != base]
        if moved:
            raise MainMoved(moved, self.into)
        changes, published, made = [], {}, []
        for table, base in self._bases.items():
            before = states[table].head(self.into)
            if table in self._pending:
                made.append(self._made(table))
                head = made[-1].snapshot.snapshot_id
                changes += snapshot_changes(made[-1].table, made[-1], self.into, before)
            elif table in self._branched:
                head = self._head(states[table])
                if head != before:
                    # Of an environment also what nothing was written to: main may move without it.
                    changes.append(refs.set_ref(table, self.into, head, was=before))
                changes.append(refs.drop_ref(table, self.branch, was=head))
            else:
                continue
            if head != base:
                published[table] = (before, head)
        if changes:
            rows = ConsumptionRows(
                tuple((states[t].uuid, number, each) for t, number, each in self._consumed)
            )
            heads = {table: head for table, (_, head) in published.items()}
            rows = rows.plus(consumers=self._consumers(states, heads))
            expired = self._expired(states, heads)
            changes += [change for each in expired for change in each.changes]
            self._swap(changes, made, rows.plus(moves=[each.moves for each in expired]))
        return PublishResult(self.run, self.into, published)

    def _bookmark(self, state: TableState) -> Mapping[str, Any]:
        """What the table's newest commit of the draft that has a bookmark consumed."""
        if (pending := self._pending.get(state.table)) is not None:
            return dict(json.loads(pending.properties.get(bookmarks.BOOKMARK, "{}")))
        return bookmarks.read(state, self.branch)

    def _consumers(
        self, states: Mapping[str, TableState], heads: Mapping[str, int]
    ) -> list[tuple[str, str, int]]:
        from thermocline.lake.retention import list_consumers

        return [
            each
            for table in heads
            for each in list_consumers(table, self.into, self._bookmark(states[table]))
        ]

    def _expired(self, states: Mapping[str, TableState], heads: Mapping[str, int]) -> list[Expiry]:
        """What the tables let go. A companion goes no further than the snapshots of its table."""
        from thermocline.lake import retention

        if self.into != MAIN:
            return []
        found: dict[str, Expiry] = {}
        for table in sorted(heads, key=companions.is_companion):
            state, held, tagged, unit = states[table], [], [], None
            if companions.is_companion(table):
                owner = _owner_among(table, heads)
                oldest = owner and _oldest_kept(states[owner], found.get(owner))
                if not owner or not oldest:
                    continue
                try:
                    held = [companions.matching_snapshot(states[owner], oldest, state)]
                except BadInput:
                    continue  # it is not known how far back it is needed
                if owner in found:
                    tagged = list(found[owner].companions.get(table, {}).values())
            else:
                unit = partial(self._companions, table, states)
            each = retention.plan_expiry(
                self.lake, state, heads[table], held=held, tagged=tagged, ours=[self.branch],
                bookmark=self._bookmark(state), unit=unit,
            )  # fmt: skip
            if each is not None:
                found[table] = each
        return list(found.values())

    def _companions(self, table: str, states: Mapping[str, TableState]) -> list[TableState]:
        """The companions of a table, as this publish sees them where it has looked at them."""
        unit = companions.load_unit(self.lake, table)
        return [states.get(each.table, each) for each in unit.companions]

    def _made(self, table: str) -> Made:
        """The snapshot of a pending commit."""
        from thermocline.lake.file_commit import TableLayoutChanged

        try:
            return self._pending[table].on(self.lake.iceberg(table), self._bases[table])
        except TableLayoutChanged as error:
            raise MainMoved([table], self.into) from error

    def _swap(
        self, changes: Sequence[TableChange], made: Sequence[Made], rows: ConsumptionRows
    ) -> None:
        files, self._files = self._files, []  # from here on they may be needed
        try:
            self.lake.commit(refs.merge_changes(*changes), self._alongside(rows))
        except CommitConflict as error:
            self._files = files
            for each in made:
                each.discard()
            if isinstance(error, SequenceNumberTaken):
                raise
            raise MainMoved([str(error.details.get("table", ""))], self.into) from error

    def _alongside(self, rows: ConsumptionRows) -> SessionWriter | None:
        beside = self.lake.beside
        if beside is None or rows == ConsumptionRows():
            return None
        beside.make()
        return lambda session: beside.write(session, rows)

    def drop(self) -> None:
        """Remove the draft's branches. Their snapshots go when snapshots expire."""
        changes = []
        for table in self._branched:
            head = self.lake.state(table).head(self.branch)
            if head is not None:
                changes.append(refs.drop_ref(table, self.branch, was=head))
        if changes:
            self.lake.commit(changes)
        for files in self._files if self._pending else ():
            files.abandon()
        for each in (self._bases, self._branched, self._pending, self._files, self._marks,
                     self._consumed):  # fmt: skip
            each.clear()
        self.release(done=True)


def _owner_among(companion: str, tables: Iterable[str]) -> str | None:
    """The table of a companion, among those of the same publish."""
    unit = companions.unit_name(companion)
    same = (each for each in tables if companions.unit_name(each) == unit)
    return next((each for each in same if not companions.is_companion(each)), None)


def _oldest_kept(state: TableState, expiry: Expiry | None) -> int | None:
    """The oldest snapshot of main that a table keeps; None where it is not there yet."""
    if expiry is not None:
        return expiry.oldest if expiry.oldest in state.snapshots else None
    return next((s.id for s in reversed(list(state.ancestry(state.head())))), None)


def source_head(state: TableState, branch: str) -> int:
    """Where a branch is, or main where the table does not have that branch."""
    head = state.head(branch)
    if head is None:
        head = state.head()
    if head is None:
        raise Permanent(
            f"{state.table} has no snapshot, so it cannot be branched.",
            f"Create it from its contract: thermo run --select {state.table}.",
        )
    return head
