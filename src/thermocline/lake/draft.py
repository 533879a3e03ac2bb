"""A draft: a run's private branch in the tables that it writes, published all at once.

A run writes to its draft only. Readers of main see none of it until `publish` moves main in all
tables in one catalog transaction. If the run fails or dies, main does not change.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from thermocline.engine.spark import CATALOG
from thermocline.errors import BadInput, CatalogUnavailable, CommitConflict, Permanent
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import carried_state, companions, metadata_cleanup, refs, run_branches
from thermocline.lake.atomic_commit import SessionWriter, TableChange
from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.consumers import list_consumers
from thermocline.lake.consumption import Consumption, ConsumptionRows
from thermocline.lake.crash_points import crash_point
from thermocline.lake.draft_writes import DraftWrites
from thermocline.lake.metadata import MAIN
from thermocline.lake.metadata_updates import SequenceNumberTaken
from thermocline.lake.naming import RUN_PREFIX
from thermocline.lake.retries import retry_on
from thermocline.lake.run_locks import RunLock

if TYPE_CHECKING:
    from thermocline.lake.data_file_writer import DataFileWriter
    from thermocline.lake.file_commit import PendingCommit
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import TableState
    from thermocline.lake.retention import Expiry
    from thermocline.lake.snapshot_producer import WrittenSnapshot


@dataclass(frozen=True)
class PublishResult:
    """The result of a publish: each table's snapshot before and after."""

    run: str
    into: str
    tables: dict[str, tuple[int | None, int]]


class Draft(DraftWrites):
    """The branches of one run. `into` is the branch that publish moves: main, or an environment.

    With `late_branches` a table gets its branch only when something must read the draft before it
    is published: Spark, or a caller of `head`. Until then, writes of this process are files only,
    and the commit that moves `into` also adds their snapshot.
    """

    def __init__(
        self, lake: Lake, run: str, into: str = MAIN, *, late_branches: bool = False
    ) -> None:
        self.lake = lake
        self.run = run
        self.into = into
        self.branch = RUN_PREFIX + run
        self._late_branches = late_branches
        self._bases: dict[str, int] = {}
        self._branched: set[str] = set()
        self._pending: dict[str, PendingCommit] = {}
        self._files: list[DataFileWriter] = []
        """Files of pending commits: removed once it is certain that they will not be committed."""
        self._unit_ids: dict[str, str] = {}
        self._consumed: list[tuple[str, int, Consumption]] = []
        self._held: list[str] = []
        """Sources with a branch of this run, so that what it reads does not expire."""
        self._lock: RunLock | None = None
        """Held while the run writes: its branches are not those of a dead run, nor its files."""

    @property
    def tables(self) -> list[str]:
        """The tables of the draft."""
        return list(self._bases)

    def begin(self, *tables: str) -> None:
        """Branch tables from their current head, in one transaction. Skip tables of the draft."""
        new = [table for table in dict.fromkeys(tables) if table not in self._bases]
        self._bases |= {table: self.resolve_base(self.lake.state(table)) for table in new}
        if new:
            self._acquire_lock()
        if not self._late_branches:
            self._create_branches(*new)

    def _create_branches(self, *tables: str) -> None:
        """Create the missing branches of tables, with their pending commits."""
        new = [table for table in tables if table not in self._branched]
        if not new:
            return
        self._branched.update(new)
        pending = {table: self._pending.pop(table) for table in new if table in self._pending}
        without = [table for table in new if table not in pending]
        changes = [refs.set_ref(t, self.branch, self._bases[t], was=None) for t in without]
        if changes:
            self.lake.commit(changes)
            crash_point("draft.begun")
        for table, each in pending.items():
            self._create_branch_with(table, each)

    def _create_branch_with(self, table: str, pending: PendingCommit) -> None:
        from thermocline.lake.file_commit import snapshot_changes

        for attempt in retry_on(SequenceNumberTaken):
            with attempt:
                written = pending.write_snapshot(self.lake.iceberg(table), self._bases[table])
                self.lake.commit(snapshot_changes(written.table, written, self.branch, None))

    def resolve_base(self, state: TableState) -> int:
        """Return the head of `into`, or the snapshot that it will begin at.

        A companion begins at the snapshot that matches the `into` of its table.
        """
        if self.into not in state.refs and companions.is_companion(state.table):
            owner = companions.owner_of(self.lake, state)
            table = self.lake.state(owner) if owner is not None else None
            head = table.head(self.into) if table is not None else None
            if table is not None and head is not None:
                return companions.matching_snapshot(table, head, state)
        return source_head(state, self.into)

    def unit_id(self, table: str) -> str:
        """Return the id that links this draft's commits to a table and its companions."""
        return self._unit_ids.setdefault(companions.unit_name(table), uuid4().hex)

    def resume(self, table: str, base: int) -> None:
        """Continue a table's branch that an earlier process created from a snapshot."""
        self._acquire_lock()
        self._bases[table] = base
        self._branched.add(table)

    def _acquire_lock(self) -> None:
        if self._lock is None:
            self._lock = RunLock(self.lake.settings.project, self.run)

    def release(self, *, done: bool = False) -> None:
        """Mark the run as ended. Without `done` its branches stay."""
        if self._lock is not None:
            self._lock.release(done=done)
            self._lock = None

    def hold(self, sources: Mapping[str, int]) -> None:
        """Keep snapshots of other tables until the draft is published or dropped."""
        for source, snapshot in sources.items():
            if source in self._bases:
                continue
            self._acquire_lock()
            if self.lake.state(source).head(self.branch) is None:
                self.lake.commit([refs.set_ref(source, self.branch, snapshot, was=None)])
            self._held.append(source)

    def _release_held(self) -> None:
        """Remove the branches from sources. Those that stay go with the branches of dead runs."""
        held, self._held = self._held, []
        for source in held:
            with suppress(CatalogUnavailable, CommitConflict):
                run_branches.drop_branch(self.lake, self.branch, [source])

    def base(self, table: str) -> int:
        """Return the snapshot that the draft's branch was created from."""
        return self._bases[table]

    def target(self, table: str) -> str:
        """Return the identifier by which Spark reads and writes the draft's branch."""
        return f"{CATALOG}.{table}.`branch_{self.branch}`"

    def head(self, table: str) -> int:
        """Return the newest snapshot on the draft's branch."""
        self._create_branches(table)
        return self._head(self.lake.state(table))

    def _head(self, state: TableState) -> int:
        head = state.head(self.branch)
        if head is None:
            raise Permanent(
                f"The branch {self.branch} of {state.table} is gone.",
                "It was dropped during the run. Run again.",
            )
        return head

    def rebase(self, table: str) -> None:
        """Discard the draft's commits to a table, and reset its branch to the current `into`."""
        self._create_branches(table)
        state = self.lake.state(table)
        base = self.resolve_base(state)
        change = refs.set_ref(table, self.branch, base, was=state.head(self.branch))
        self.lake.commit([change])
        self._bases[table] = base
        if companions.is_companion(table):
            self._unit_ids.pop(companions.unit_name(table), None)  # its commits were discarded

    def _record_consumption(self, table: str, snapshot: int, consumed: Consumption) -> None:
        if self.lake.consumption_store is not None:
            self._consumed.append((table, snapshot, consumed))

    def _carry_consumption(self, table: str, consumed: Consumption) -> dict[str, str]:
        if self.lake.consumption_store is not None:
            return {}
        if table in self._pending:
            self._create_branches(table)  # the state continues that of the earlier commit
        state = self.lake.state(table)
        head = self._head(state) if table in self._branched else self._bases[table]
        runs, before = carried_state.open_runs(self.lake, state), carried_state.read_state
        after = carried_state.extend_state(runs, before(state, head), consumed)
        return carried_state.summary_properties(after)

    def publish(self) -> PublishResult:
        """Make the whole draft visible at once, or raise MainMoved and change nothing."""
        crash_point("publish.before")
        for attempt in retry_on(SequenceNumberTaken):
            with attempt:
                published = self._publish()
        crash_point("publish.after")
        self._release_held()
        self.release(done=True)
        run_branches.expire_dead_runs_when_due(self.lake)
        return published

    def _publish(self) -> PublishResult:
        from thermocline.lake.file_commit import snapshot_changes

        # One read for each table: the commit requires the state that is compared with the base.
        states = {table: self.lake.state(table) for table in self._bases}
        moved = [t for t, base in self._bases.items() if self.resolve_base(states[t]) != base]
        if moved:
            raise MainMoved(moved, self.into)
        changes, published, pending = [], {}, []
        for table, base in self._bases.items():
            before = states[table].head(self.into)
            if table in self._pending:
                written = self._write_pending(table)
                pending.append(written)
                head = written.id
                changes += snapshot_changes(written.table, written, self.into, before)
            elif table in self._branched:
                head = self._head(states[table])
                if head != before:
                    # In an environment also tables without writes: main may move independently.
                    changes.append(refs.set_ref(table, self.into, head, was=before))
                changes.append(refs.drop_ref(table, self.branch, was=head))
            else:
                continue
            if head != base:
                published[table] = (before, head)
        if changes:
            rows = ConsumptionRows(
                tuple((states[t].uuid, snapshot, each) for t, snapshot, each in self._consumed)
            )
            heads = {table: head for table, (_, head) in published.items()}
            rows = rows.extend(consumers=self._list_consumers(states, heads))
            expiries = self._plan_expiries(states, heads)
            changes += [change for each in expiries for change in each.changes]
            moves = [each.moves for each in expiries if each.moves is not None]
            gaps = [gap for each in expiries for gap in each.gaps]
            self._commit_publish(changes, pending, rows.extend(consumed=gaps, moves=moves))
            if self.lake.consumption_store is None:
                metadata_cleanup.delete_after_expiry(self.lake, changes, states)
        return PublishResult(self.run, self.into, published)

    def _bookmark(self, state: TableState) -> Mapping[str, Any]:
        """Return the newest bookmark of the table in the draft."""
        if (pending := self._pending.get(state.table)) is not None:
            return dict(json.loads(pending.properties.get(bookmarks.BOOKMARK, "{}")))
        return bookmarks.read(state, self.branch)

    def _carries_state(self, table: str) -> bool:
        """Whether the pending commit to a table has a carried state."""
        pending = self._pending.get(table)
        return pending is not None and carried_state.CONSUMED in pending.properties

    def _list_consumers(
        self, states: Mapping[str, TableState], heads: Mapping[str, int]
    ) -> list[tuple[str, str, int]]:
        return [
            each
            for table in heads
            for each in list_consumers(table, self.into, self._bookmark(states[table]))
        ]

    def _plan_expiries(
        self, states: Mapping[str, TableState], heads: Mapping[str, int]
    ) -> list[Expiry]:
        """Plan which snapshots expire. A companion keeps the snapshots that its table needs."""
        from thermocline.lake import retention

        if self.into != MAIN:
            return []
        found: dict[str, Expiry] = {}
        for table in sorted(heads, key=companions.is_companion):
            state, held, tagged, unit = states[table], [], [], None
            if companions.is_companion(table):
                owner = _find_owner(table, heads)
                oldest = owner and _oldest_kept(states[owner], found.get(owner))
                if not owner or not oldest:
                    continue
                try:
                    held = [companions.matching_snapshot(states[owner], oldest, state)]
                except BadInput:
                    continue  # it is not known which snapshots are needed
                if owner in found:
                    tagged = list(found[owner].companions.get(table, {}).values())
            else:
                unit = partial(self._load_companions, table, states)
            each = retention.plan_expiry(
                self.lake, state, heads[table], held=held, tagged=tagged, ours=[self.branch],
                bookmark=self._bookmark(state), carries_state=self._carries_state(table), unit=unit,
            )  # fmt: skip
            if each is not None:
                found[table] = each
        return list(found.values())

    def _load_companions(self, table: str, states: Mapping[str, TableState]) -> list[TableState]:
        """Return the companions of a table, in the states that this publish has read."""
        unit = companions.load_unit(self.lake, table)
        return [states.get(each.table, each) for each in unit.companions]

    def _write_pending(self, table: str) -> WrittenSnapshot:
        """Write the snapshot of a pending commit."""
        from thermocline.lake.file_commit import TableLayoutChanged

        try:
            return self._pending[table].write_snapshot(self.lake.iceberg(table), self._bases[table])
        except TableLayoutChanged as error:
            raise MainMoved([table], self.into) from error

    def _commit_publish(
        self,
        changes: Sequence[TableChange],
        pending: Sequence[WrittenSnapshot],
        rows: ConsumptionRows,
    ) -> None:
        files, self._files = self._files, []  # from here on they may be committed
        try:
            self.lake.commit(refs.merge_changes(*changes), self._row_writer(rows))
        except CommitConflict as error:
            self._files = files
            for each in pending:
                each.discard()
            if isinstance(error, SequenceNumberTaken):
                raise
            raise MainMoved([str(error.details.get("table", ""))], self.into) from error

    def _row_writer(self, rows: ConsumptionRows) -> SessionWriter | None:
        store = self.lake.consumption_store
        if store is None or rows == ConsumptionRows():
            return None
        store.create_tables()
        return lambda session: store.write(session, rows)

    def drop(self) -> None:
        """Remove the draft's branches. Their snapshots are removed when snapshots expire."""
        changes = []
        for table in self._branched:
            head = self.lake.state(table).head(self.branch)
            if head is not None:
                changes.append(refs.drop_ref(table, self.branch, was=head))
        if changes:
            self.lake.commit(changes)
        self._release_held()
        for files in self._files if self._pending else ():
            files.abandon()
        for each in (self._bases, self._branched, self._pending, self._files, self._unit_ids,
                     self._consumed):  # fmt: skip
            each.clear()
        self.release(done=True)


def _find_owner(companion: str, tables: Iterable[str]) -> str | None:
    """Return the table of a companion, if it is in the same publish."""
    unit = companions.unit_name(companion)
    same = (each for each in tables if companions.unit_name(each) == unit)
    return next((each for each in same if not companions.is_companion(each)), None)


def _oldest_kept(state: TableState, expiry: Expiry | None) -> int | None:
    """Return the oldest snapshot of main that a table keeps; None if it does not exist yet."""
    if expiry is not None:
        return expiry.oldest if expiry.oldest in state.snapshots else None
    return next((s.id for s in reversed(list(state.ancestry(state.head())))), None)


def source_head(state: TableState, branch: str) -> int:
    """Return the head of a branch, or of main if the table does not have that branch."""
    head = state.head(branch)
    if head is None:
        head = state.head()
    if head is None:
        raise Permanent(
            f"{state.table} has no snapshot, so it cannot be branched.",
            f"Create it from its contract: thermo run --select {state.table}.",
        )
    return head
