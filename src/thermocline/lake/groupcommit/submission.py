"""Submit entries and wait for their commits, with one interface for every catalog."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from thermocline.errors import CatalogUnavailable, CommitUnknown, Permanent, Transient
from thermocline.lake.crash_points import crash_point

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.catalog.rest import RestCatalog

    from thermocline.lake.groupcommit.committer import Committer
    from thermocline.lake.groupcommit.entry import CommitEntry
    from thermocline.lake.groupcommit.queue import Queue
    from thermocline.lake.lake import Lake

WAIT_SECONDS = 120.0
"""Seconds that a writer waits for its commit by default."""

_MIN_PAUSE, _MAX_PAUSE, _PAUSE_SHARE = 0.005, 0.5, 0.25


class Ticket(Protocol):
    """A submitted entry."""

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        """Wait until the entry is committed, and return the snapshot that contains it.

        Raise the entry's error: CommitConflict when another commit changed what it replaces,
        Permanent when it can never be committed. Raise Transient after the timeout; the entry may
        still land, and submitting the same key again reports the outcome.
        """


class GroupCommit:
    """Commits to the tables of a catalog that any number of processes share."""

    def __init__(self, catalog: Catalog, lake: Lake) -> None:
        self._catalog = catalog
        self._lake = lake
        self._recent_waits: dict[str, float] = {}
        """By table, the seconds that its last entry waited."""

    def submit(self, entry: CommitEntry) -> Ticket:
        """Submit an entry.

        On SQLite and PostgreSQL the entry is stored durably and lands even if this process dies:
        the table's next writer commits it. On a REST catalog it is committed by `Ticket.wait`. A
        key that was submitted before is the same commit, whatever the files are now.
        """
        from pyiceberg.catalog.rest import RestCatalog
        from pyiceberg.catalog.sql import SqlCatalog

        if isinstance(self._catalog, RestCatalog):
            return _RestTicket(self._catalog, self._lake, entry)
        if not isinstance(self._catalog, SqlCatalog):
            raise Permanent(
                f"Writers cannot share tables on a {type(self._catalog).__name__}.",
                "Use a SQLite, PostgreSQL or REST catalog.",
            )
        self._queue.put(entry)
        crash_point("groupcommit.queued")
        return _QueueTicket(
            self._queue, self._committer, self._recent_waits, entry.table, entry.key
        )

    def commit(self, entry: CommitEntry, timeout: float = WAIT_SECONDS) -> int:
        """Submit an entry, wait for it and return the snapshot that contains it."""
        return self.submit(entry).wait(timeout)

    @cached_property
    def _queue(self) -> Queue:
        from pyiceberg.catalog.sql import SqlCatalog

        from thermocline.lake.groupcommit.queue import Queue

        assert isinstance(self._catalog, SqlCatalog)
        return Queue(self._catalog)

    @cached_property
    def _committer(self) -> Committer:
        from pyiceberg.catalog.sql import SqlCatalog

        from thermocline.lake.groupcommit.committer import Committer

        assert isinstance(self._catalog, SqlCatalog)
        return Committer(self._catalog, self._queue, self._lake)


class _RestTicket:
    """A ticket for a REST catalog: the entry is committed while the writer waits."""

    def __init__(self, catalog: RestCatalog, lake: Lake, entry: CommitEntry) -> None:
        self._catalog = catalog
        self._lake = lake
        self._entry = entry

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        from thermocline.lake.groupcommit import optimistic_commit

        return optimistic_commit.commit(self._catalog, self._lake, self._entry, timeout)


class _QueueTicket:
    """A ticket for an entry in the queue."""

    def __init__(
        self,
        queue: Queue,
        committer: Committer,
        recent_waits: dict[str, float],
        table: str,
        key: str,
    ) -> None:
        self._queue = queue
        self._committer = committer
        self._recent_waits = recent_waits
        self._table = table
        self._key = key

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        start = time.monotonic()
        deadline = start + timeout
        last_failure: Transient | None = None
        for pause in _poll_pauses(start, self._recent_waits.get(self._table, 0.0)):
            try:
                snapshot = self._poll(deadline)
                if snapshot is not None:
                    self._recent_waits[self._table] = time.monotonic() - start
                    return snapshot
            except (CatalogUnavailable, CommitUnknown) as error:
                last_failure = error
            if time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
        raise Transient(
            f"The entry {self._key} for {self._table} still waits after {timeout:g} s"
            + (f": {last_failure.cause}" if last_failure else "."),
            "It stays in the queue. Submit it again under the same key to wait for it.",
            table=self._table,
            key=self._key,
        ) from last_failure

    def _poll(self, deadline: float) -> int | None:
        """Return the entry's snapshot, if it landed; else commit if the lease is free."""
        from thermocline.lake.groupcommit.queue import DONE, FAILED

        status = self._queue.status(self._table, self._key)
        if status is None:
            raise Transient(
                f"The entry {self._key} for {self._table} is not in the queue any more.",
                "Its key has been forgotten; check for its rows before submitting it again.",
            )
        if status.state == FAILED:
            raise status.failure()
        if status.state == DONE:
            return status.snapshot
        if status.lease_free and (lease := self._queue.acquire_lease(self._table, _lease_owner())):
            self._committer.serve(lease, lambda: self._is_finished() or time.monotonic() > deadline)
            return self._poll(deadline)
        return None

    def _is_finished(self) -> bool:
        from thermocline.lake.groupcommit.queue import WAITING

        status = self._queue.status(self._table, self._key)
        return status is None or status.state != WAITING


def _poll_pauses(start: float, recent_wait: float) -> Iterator[float]:
    """Yield pauses that grow with the time waited, so that many waiting writers cost little.

    The first pause is half of the table's recent wait; earlier polls would rarely succeed.
    """
    longest = recent_wait / 2
    while True:
        longest = min(max(longest, _MIN_PAUSE), _MAX_PAUSE)
        yield random.uniform(longest / 2, longest)  # noqa: S311  not a secret
        longest = (time.monotonic() - start) * _PAUSE_SHARE


def _lease_owner() -> str:
    """Return a readable name for the holder of a lease."""
    return f"{socket.gethostname()[:32]}:{os.getpid()}:{threading.get_ident()}"[:64]
