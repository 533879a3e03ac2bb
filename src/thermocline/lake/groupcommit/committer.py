"""Commit rounds of waiting entries while this process holds a table's lease."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from thermocline.errors import (
    CatalogUnavailable,
    CommitConflict,
    NotFound,
    Permanent,
    ThermoclineError,
)
from thermocline.lake import atomic_commit, companions, refs, retention
from thermocline.lake.bookmark import BOOKMARK
from thermocline.lake.catalog import catalog_errors
from thermocline.lake.consumption import ConsumptionRows
from thermocline.lake.crash_points import crash_point
from thermocline.lake.groupcommit.commit_round import CommitRound, plan_round
from thermocline.lake.groupcommit.live_branch import LiveBranch
from thermocline.lake.groupcommit.queue import Lease, LeaseLost, Queue, WaitingEntry
from thermocline.lake.groupcommit.round_snapshot import prepare_snapshot
from thermocline.lake.metadata import MAIN, TableState
from thermocline.lake.metadata_files import read_raw_metadata

if TYPE_CHECKING:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.table import Table
    from sqlalchemy.orm import Session

    from thermocline.lake.lake import Lake
    from thermocline.lake.retention import Expiry


class Committer:
    """Commits the waiting entries of a table while it holds the table's lease."""

    def __init__(self, catalog: SqlCatalog, queue: Queue, lake: Lake) -> None:
        self._catalog = catalog
        self._queue = queue
        self._lake = lake

    def serve(self, lease: Lease, until: Callable[[], bool]) -> None:
        """Commit rounds until `until` is true, no entry waits, or the lease is lost."""
        crash_point("groupcommit.leased")
        try:
            with self._renew_in_background(lease), suppress(LeaseLost):
                while not until() and self._commit_round(lease):
                    pass
        finally:
            with suppress(CatalogUnavailable):  # the lease expires on its own
                self._queue.release_lease(lease)

    @contextmanager
    def _renew_in_background(self, lease: Lease) -> Iterator[None]:
        """Renew the lease during the block, so that a long round keeps it, but not a frozen one."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self._queue.lease_seconds / 4):
                with suppress(CatalogUnavailable):
                    if not self._queue.renew_lease(lease):
                        return

        renewal = threading.Thread(target=renew, daemon=True)
        renewal.start()
        try:
            yield
        finally:
            ended.set()
            renewal.join()

    def _commit_round(self, lease: Lease) -> bool:
        """Commit the next batch of entries once; return False when no entry waits."""
        waiting = self._queue.next_batch(lease.table)
        try:
            self._commit(lease, waiting)
        except ThermoclineError:
            raise
        except Exception:  # noqa: BLE001  one entry is broken: commit each alone to find it
            for each in waiting:
                self._commit_alone(lease, each)
        return bool(waiting)

    def _commit_alone(self, lease: Lease, waiting: WaitingEntry) -> None:
        try:
            self._commit(lease, [waiting])
        except ThermoclineError:
            raise
        except Exception as error:  # noqa: BLE001  it is reported to the writer of the entry
            broken = Permanent(
                f"The entry {waiting.key} for {lease.table} cannot be written: {error!r}",
                "Nothing of it landed. Check that its files and values fit the table.",
                key=waiting.key,
            )
            self._queue.record_failures(lease, [(waiting.number, broken)])

    def _commit(self, lease: Lease, waiting: Sequence[WaitingEntry]) -> None:
        """Commit as many entries as fit into one snapshot; none when the table moved meanwhile."""
        if not waiting:
            return
        try:
            table = atomic_commit.load(self._catalog, lease.table)
        except NotFound as gone:
            self._queue.record_failures(lease, [(each.number, gone) for each in waiting])
            return
        with catalog_errors(self._queue.kind):
            self._commit_to(table, lease, waiting)

    def _commit_to(self, table: Table, lease: Lease, waiting: Sequence[WaitingEntry]) -> None:
        numbers = {each.key: each.number for each in waiting}
        branch = waiting[0].branch
        live = LiveBranch(table, branch)
        planned = plan_round(live, [each.entry() for each in waiting])
        failed = [(numbers[entry.key], error) for entry, error in planned.rejected]
        if not planned.accepted:
            self._queue.record_failures(lease, failed)
            return
        landed = [numbers[entry.key] for entry in planned.accepted]
        prepared = prepare_snapshot(table, branch, live, planned)
        expiry = self._plan_expiry(table, branch, prepared.id, planned)
        [change] = refs.merge_changes(prepared.change, *(expiry.changes if expiry else ()))

        def write_rows(session: Session) -> None:
            self._queue.record_outcomes(session, lease, landed, prepared.id, failed)
            if expiry and expiry.moves and self._lake.consumption_store:
                rows = ConsumptionRows(expiry.gaps, moves=(expiry.moves,))
                self._lake.consumption_store.write(session, rows)

        try:
            atomic_commit.commit_once_sql(self._catalog, table, change, write_rows)
        except CommitConflict as conflict:
            prepared.discard()
            if not isinstance(conflict, atomic_commit.PointerMoved):
                raise

    def _plan_expiry(
        self, table: Table, branch: str, head: int, planned: CommitRound
    ) -> Expiry | None:
        """Plan which snapshots of the table expire with this commit."""
        if branch != MAIN:
            return None
        raw = read_raw_metadata(table.io, table.metadata_location)
        state = TableState(".".join(table.name()), table.metadata_location, raw)
        bookmark = json.loads(planned.properties.get(BOOKMARK, "null"))
        plan = partial(retention.plan_expiry, self._lake, state, head, bookmark=bookmark)
        expiry = plan(unit=lambda: companions.load_unit(self._lake, state.table).companions)
        if expiry and any(change.table != state.table for change in expiry.changes):
            return plan()  # this commits to one table, so it makes no restore points of a unit
        return expiry
