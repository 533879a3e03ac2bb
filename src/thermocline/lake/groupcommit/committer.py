"""The leaseholder's work: rounds that commit for all who wait."""

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
from thermocline.lake.groupcommit.commit_round import CommitRound, combine
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
    """Commits what waits in the queue, for as long as it holds a table's lease."""

    def __init__(self, catalog: SqlCatalog, queue: Queue, lake: Lake) -> None:
        self._catalog = catalog
        self._queue = queue
        self._lake = lake

    def serve(self, lease: Lease, until: Callable[[], bool]) -> None:
        """Make rounds until it is enough, nobody waits, or the lease is somebody else's."""
        crash_point("groupcommit.leased")
        try:
            with self._signs_of_life(lease), suppress(LeaseLost):
                while not until() and self._round(lease):
                    pass
        finally:
            with suppress(CatalogUnavailable):  # the lease runs out by itself
                self._queue.release(lease)

    @contextmanager
    def _signs_of_life(self, lease: Lease) -> Iterator[None]:
        """Renew the lease meanwhile, however long a round takes. A frozen process cannot."""
        ended = threading.Event()

        def renew() -> None:
            while not ended.wait(self._queue.lease_seconds / 4):
                with suppress(CatalogUnavailable):
                    if not self._queue.renew(lease):
                        return

        beating = threading.Thread(target=renew, daemon=True)
        beating.start()
        try:
            yield
        finally:
            ended.set()
            beating.join()

    def _round(self, lease: Lease) -> bool:
        """Commit once for the entries in front; False when nobody waits."""
        waiting = self._queue.waiting(lease.table)
        try:
            self._commit(lease, waiting)
        except ThermoclineError:
            raise
        except Exception:  # noqa: BLE001  one of them breaks the writers: alone it shows which
            for each in waiting:
                self._commit_alone(lease, each)
        return bool(waiting)

    def _commit_alone(self, lease: Lease, waiting: WaitingEntry) -> None:
        try:
            self._commit(lease, [waiting])
        except ThermoclineError:
            raise
        except Exception as error:  # noqa: BLE001  it is told to the writer of the entry
            broken = Permanent(
                f"The entry {waiting.key} for {lease.table} cannot be written: {error!r}",
                "Nothing of it landed. Check that its files and values are the table's.",
                key=waiting.key,
            )
            self._queue.settle_alone(lease, [(waiting.number, broken)])

    def _commit(self, lease: Lease, waiting: Sequence[WaitingEntry]) -> None:
        """Settle as many entries as one snapshot can hold; none when somebody moved the table."""
        if not waiting:
            return
        try:
            table = atomic_commit.load(self._catalog, lease.table)
        except NotFound as gone:
            self._queue.settle_alone(lease, [(each.number, gone) for each in waiting])
            return
        with catalog_errors(self._queue.kind):
            self._commit_on(table, lease, waiting)

    def _commit_on(self, table: Table, lease: Lease, waiting: Sequence[WaitingEntry]) -> None:
        numbers = {each.key: each.number for each in waiting}
        branch = waiting[0].branch
        live = LiveBranch(table, branch)
        found = combine(live, [each.entry() for each in waiting])
        failed = [(numbers[entry.key], error) for entry, error in found.failing]
        if not found.landing:
            self._queue.settle_alone(lease, failed)
            return
        landed = [numbers[entry.key] for entry in found.landing]
        prepared = prepare_snapshot(table, branch, live, found)
        expired = self._expired(table, branch, prepared.id, found)
        [change] = refs.merge_changes(prepared.change, *(expired.changes if expired else ()))

        def settle(session: Session) -> None:
            self._queue.settle(session, lease, landed, prepared.id, failed)
            if expired and self._lake.beside:
                self._lake.beside.write(session, ConsumptionRows(moves=(expired.moves,)))

        try:
            atomic_commit.swap_loaded(self._catalog, table, change, settle)
        except CommitConflict as conflict:
            prepared.discard()
            if not isinstance(conflict, atomic_commit.PointerMoved):
                raise

    def _expired(self, table: Table, branch: str, head: int, found: CommitRound) -> Expiry | None:
        """The snapshots that the table lets go with this commit."""
        if branch != MAIN:
            return None
        raw = read_raw_metadata(table.io, table.metadata_location)
        state = TableState(".".join(table.name()), table.metadata_location, raw)
        bookmark = json.loads(found.properties.get(BOOKMARK, "null"))
        expiry = partial(retention.plan_expiry, self._lake, state, head, bookmark=bookmark)
        expired = expiry(unit=lambda: companions.load_unit(self._lake, state.table).companions)
        if expired and any(change.table != state.table for change in expired.changes):
            return expiry()  # this commits to one table, so it makes no restore points of a unit
        return expired
