"""Commit an entry to a REST catalog: each writer commits its own entry and retries on conflict.

The key is in the snapshot's summary. Every attempt first looks for the key in the same table state
that its commit then requires. So an attempt whose response was lost is found and not repeated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitUnknown,
    Permanent,
    ThermoclineError,
)
from thermocline.lake import atomic_commit
from thermocline.lake.bookmark import read_entry_keys
from thermocline.lake.crash_points import crash_point
from thermocline.lake.groupcommit.commit_round import plan_round
from thermocline.lake.groupcommit.entry import CommitEntry
from thermocline.lake.groupcommit.live_branch import LiveBranch
from thermocline.lake.groupcommit.round_snapshot import PreparedSnapshot, prepare_snapshot
from thermocline.lake.retries import retry_on

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.table import Table


class _RetryCommit(ThermoclineError):
    """This attempt did not land, or its outcome is unknown."""


def commit(catalog: RestCatalog, entry: CommitEntry, timeout: float) -> int:
    """Commit one entry unless its key has landed; return the snapshot that contains it."""
    try:
        for attempt in retry_on(_RetryCommit, timeout):
            with attempt:
                return _attempt(catalog, entry)
    except _RetryCommit as error:
        reason = error.__cause__
        if isinstance(reason, CommitConflict):
            raise reason from None
        raise CommitUnknown(
            f"It is not known whether the entry {entry.key} for {entry.table} landed: {reason}",
            "When the catalog is back, submit it again under the same key; it lands once.",
            table=entry.table,
            key=entry.key,
        ) from reason
    raise AssertionError("the retry loop either returns or raises")


def _attempt(catalog: RestCatalog, entry: CommitEntry) -> int:
    try:
        table = atomic_commit.load(catalog, entry.table)
    except CatalogUnavailable as error:
        raise _RetryCommit("The catalog is away.") from error
    landed = _find_key(table, entry.key)
    if landed is not None:
        return landed
    live = LiveBranch(table, entry.branch)
    planned = plan_round(live, [entry])
    for _, rejection in planned.rejected:
        raise rejection
    prepared = prepare_snapshot(table, entry.branch, live, planned)
    try:
        atomic_commit.commit_once_rest(catalog, prepared.change)
    except CatalogUnavailable as error:
        raise _RetryCommit("It is not known whether it landed.") from error
    except (CommitConflict, Permanent) as error:
        _raise_rejection(catalog, table, prepared, error)
    crash_point("groupcommit.landed")
    return prepared.id


def _raise_rejection(
    catalog: RestCatalog, table: Table, prepared: PreparedSnapshot, error: ThermoclineError
) -> None:
    """Raise _RetryCommit when another commit was faster, else the catalog's own error."""
    prepared.discard()
    now = atomic_commit.load(catalog, ".".join(table.name()))
    if now.metadata_location == table.metadata_location:
        raise error
    raise _RetryCommit("Another commit was faster.") from error


def _find_key(table: Table, key: str) -> int | None:
    """Return the snapshot that contains a key, on any branch."""
    for snapshot in reversed(table.metadata.snapshots):
        if snapshot.summary is not None and key in read_entry_keys(snapshot.summary):
            return snapshot.snapshot_id
    return None
