"""Hand over entries and wait for them: the same on every catalog."""

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
"""Seconds that a writer waits for its commit unless it says otherwise."""

_MIN_PAUSE, _MAX_PAUSE, _PAUSE_SHARE = 0.005, 0.5, 0.25


class Ticket(Protocol):
    """An entry that was handed over."""

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        """The snapshot that holds the entry, as soon as it is committed.

        Raises what the entry failed with: CommitConflict when the table has moved away under it,
        Permanent when it can never be committed. Transient when the time is up; the entry may
        land all the same, and submitting the same key again tells.
        """


class GroupCommit:
    """Commits to the tables of one catalog that any number of processes share."""

    def __init__(self, catalog: Catalog, lake: Lake) -> None:
        self._catalog = catalog
        self._lake = lake
        self._lately: dict[str, float] = {}
        """Seconds that the last entry of a table waited for."""

    def submit(self, entry: CommitEntry) -> Ticket:
        """Hand over an entry.

        On SQLite and PostgreSQL it is kept from here on, and lands even if this process dies: the
        next writer of the table commits it. On a REST catalog it is committed while it is waited
        for. A key that was handed over before is the same commit, whatever the files are now.
        """
        from pyiceberg.catalog.rest import RestCatalog
        from pyiceberg.catalog.sql import SqlCatalog

        if isinstance(self._catalog, RestCatalog):
            return _RestTicket(self._catalog, entry)
        if not isinstance(self._catalog, SqlCatalog):
            raise Permanent(
                f"Writers cannot share tables on a {type(self._catalog).__name__}.",
                "Use a SQLite, PostgreSQL or REST catalog.",
            )
        self._queue.put(entry)
        crash_point("groupcommit.queued")
        return _QueueTicket(self._queue, self._committer, self._lately, entry.table, entry.key)

    def commit(self, entry: CommitEntry, timeout: float = WAIT_SECONDS) -> int:
        """Hand over an entry and wait for it; says in which snapshot it is."""
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
    """An entry for a REST catalog."""

    def __init__(self, catalog: RestCatalog, entry: CommitEntry) -> None:
        self._catalog = catalog
        self._entry = entry

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        from thermocline.lake.groupcommit import optimistic_commit

        return optimistic_commit.commit(self._catalog, self._entry, timeout)


class _QueueTicket:
    """A place in the queue."""

    def __init__(
        self, queue: Queue, committer: Committer, lately: dict[str, float], table: str, key: str
    ) -> None:
        self._queue = queue
        self._committer = committer
        self._lately = lately
        self._table = table
        self._key = key

    def wait(self, timeout: float = WAIT_SECONDS) -> int:
        began = time.monotonic()
        deadline = began + timeout
        trouble: Transient | None = None
        for pause in _poll_pauses(began, self._lately.get(self._table, 0.0)):
            try:
                snapshot = self._look(deadline)
                if snapshot is not None:
                    self._lately[self._table] = time.monotonic() - began
                    return snapshot
            except (CatalogUnavailable, CommitUnknown) as error:
                trouble = error
            if time.monotonic() + pause > deadline:
                break
            time.sleep(pause)
        raise Transient(
            f"The entry {self._key} for {self._table} still waits after {timeout:g} s"
            + (f": {trouble.cause}" if trouble else "."),
            "It stays in the queue. Submit it again under the same key to wait for it.",
            table=self._table,
            key=self._key,
        ) from trouble

    def _look(self, deadline: float) -> int | None:
        """The entry's snapshot, if it has one; commits for everybody when nobody else does."""
        from thermocline.lake.groupcommit.queue import DONE, FAILED

        standing = self._queue.status(self._table, self._key)
        if standing is None:
            raise Transient(
                f"The entry {self._key} for {self._table} is not in the queue any more.",
                "Its key has been forgotten; look for its rows before submitting it again.",
            )
        if standing.state == FAILED:
            raise standing.failure()
        if standing.state == DONE:
            return standing.snapshot
        if standing.lease_free and (lease := self._queue.lease(self._table, _lease_owner())):
            self._committer.serve(lease, lambda: self._settled() or time.monotonic() > deadline)
            return self._look(deadline)
        return None

    def _settled(self) -> bool:
        from thermocline.lake.groupcommit.queue import WAITING

        standing = self._queue.status(self._table, self._key)
        return standing is None or standing.state != WAITING


def _poll_pauses(began: float, lately: float) -> Iterator[float]:
    """Pauses that grow with the time waited: many who wait for long hardly disturb who works.

    The first is half of what it took lately; looks before that would nearly all be in vain.
    """
    longest = lately / 2
    while True:
        longest = min(max(longest, _MIN_PAUSE), _MAX_PAUSE)
        yield random.uniform(longest / 2, longest)  # noqa: S311  not a secret
        longest = (time.monotonic() - began) * _PAUSE_SHARE


def _lease_owner() -> str:
    """Who holds a lease, for a person who looks."""
    return f"{socket.gethostname()[:32]}:{os.getpid()}:{threading.get_ident()}"[:64]
