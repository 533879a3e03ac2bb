"""Expire snapshots of tables that get no commits; other tables expire theirs with each commit.

What expires is planned by the same rules (`lake.retention`), for a table and its companions
together. It is committed only if no table of them changed since, not even by a new tag: a table
that did expires its own snapshots, or is planned again by the next pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, CommitConflict, NotFound
from thermocline.lake import atomic_commit, companions, refs, retention
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.consumption import ConsumptionRows
from thermocline.lake.crash_points import crash_point
from thermocline.maintain.task import Discarded, TaskEffect, TaskKind

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.companions import Unit
    from thermocline.lake.metadata import TableState
    from thermocline.lake.retention import Expiry

_BYTES_PER_SNAPSHOT = 1024
"""About what a snapshot adds to each later metadata file."""


@dataclass(frozen=True)
class ExpireTask:
    """The snapshots of a table and its companions that expire in one commit."""

    table: str
    pointers: Mapping[str, str]
    """By table, the metadata file that was planned from."""
    changes: tuple[TableChange, ...]
    rows: ConsumptionRows
    kind = TaskKind.EXPIRE
    partition = ""

    @property
    def snapshots(self) -> int:
        """Return how many snapshots expire."""
        updates = [update for change in self.changes for update in change.updates]
        return sum(len(u.snapshot_ids) for u in updates if u.action == "remove-snapshots")

    @property
    def dropped_refs(self) -> int:
        """Return how many branches of dead runs and surplus restore points are dropped."""
        updates = [update for change in self.changes for update in change.updates]
        return sum(update.action == "remove-snapshot-ref" for update in updates)

    @property
    def why(self) -> str:
        """Return what expires."""
        found = f"{self.snapshots:,} snapshots beyond what is kept"
        return f"{found}, {self.dropped_refs:,} old refs" if self.dropped_refs else found

    @property
    def saved_bytes(self) -> int:
        """Return about what each later metadata file is smaller by."""
        return self.snapshots * _BYTES_PER_SNAPSHOT

    @property
    def cpu_seconds(self) -> float:
        """Return the expected cost: one commit, and two small files for each snapshot."""
        return 0.02 + 0.001 * self.snapshots

    @property
    def counts(self) -> Mapping[str, int]:
        """Return nothing: nothing is counted before it is done."""
        return {}

    @property
    def details(self) -> Mapping[str, Any]:
        """Return how many snapshots expire, and how many refs are dropped."""
        return {"snapshots": self.snapshots, "refs": self.dropped_refs}

    def apply(self, lake: Lake) -> TaskEffect:
        """Commit it, unless one of the tables was committed to meanwhile."""
        from pyiceberg.catalog.sql import SqlCatalog

        store = lake.consumption_store
        assert store is not None
        assert isinstance(lake.catalog, SqlCatalog)
        store.create_tables()
        crash_point("expiry.before-commit")
        try:
            atomic_commit.commit_unchanged_sql(
                lake.catalog, self.changes, self.pointers,
                lambda session: store.write(session, self.rows),
            )  # fmt: skip
        except (CommitConflict, NotFound) as error:
            raise Discarded(f"it was committed to meanwhile: {error.cause}") from error
        crash_point("expiry.committed")
        return TaskEffect({"snapshots_expired": self.snapshots, "refs_dropped": self.dropped_refs})


def plan_table_expiry(lake: Lake, state: TableState) -> ExpireTask | None:
    """Return the expiry of a table and its companions; None if there is nothing worth a commit.

    Companions expire with their table, and nothing expires on a REST catalog. Raise BadInput when a
    property of the table says nothing that can be followed.
    """
    if lake.settings.catalog.type == "rest" or companions.is_companion(state.table):
        return None
    lake.retention_policy.for_table(state)
    unit = companions.load_unit(lake, state.table)
    expiries = list(_plan_unit(lake, unit))
    if not expiries:
        return None
    changes = refs.merge_changes(*(change for each in expiries for change in each.changes))
    states = {each.table: each for each in (unit.table, *unit.companions)}
    pointers = {change.table: states[change.table].metadata_location for change in changes}
    rows = ConsumptionRows(moves=tuple(each.moves for each in expiries if each.moves))
    return ExpireTask(state.table, pointers, tuple(changes), rows)


def _plan_unit(lake: Lake, unit: Unit) -> Iterator[Expiry]:
    """Plan a table, and what its companions then need no more."""
    head = unit.table.head()
    if head is None:
        return
    own = retention.plan_expiry(lake, unit.table, head, unit=lambda: unit.companions)
    if own is not None:
        yield own
    oldest = own.oldest if own is not None else list(unit.table.ancestry(head))[-1].id
    for companion in unit.companions:
        at = companion.head()
        try:
            held = companions.matching_snapshot(unit.table, oldest, companion)
        except BadInput:
            continue  # it is not known which snapshots are needed
        tagged = own.companions.get(companion.table, {}).values() if own is not None else ()
        if at is None:
            continue
        found = retention.plan_expiry(lake, companion, at, held=[held], tagged=list(tagged))
        if found is not None:
            yield found
