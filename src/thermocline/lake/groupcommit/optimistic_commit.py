"""GroupCommit on a REST catalog: each writer for itself, again and again until it wins.

The key is in the snapshot's summary. Every attempt looks for it first, in the very state that the
commit then requires: so an attempt whose answer was lost is found, and never repeated.
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
from thermocline.lake.bookmark import keys_of
from thermocline.lake.crash_points import crash_point
from thermocline.lake.groupcommit.commit_round import combine
from thermocline.lake.groupcommit.entry import CommitEntry
from thermocline.lake.groupcommit.live_branch import LiveBranch
from thermocline.lake.groupcommit.round_snapshot import PreparedSnapshot, prepare_snapshot

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.table import Table


class _RetryCommit(ThermoclineError):
    """This attempt did not land, or is not known to have."""


def commit(catalog: RestCatalog, entry: CommitEntry, patience: float) -> int:
    """Commit one entry unless its key has landed; says in which snapshot it is."""
    try:
        for again in atomic_commit.retrying(_RetryCommit, patience):
            with again:
                return _attempt(catalog, entry)
    except _RetryCommit as given_up:
        reason = given_up.__cause__
        if isinstance(reason, CommitConflict):
            raise reason from None
        raise CommitUnknown(
            f"It is not known whether the entry {entry.key} for {entry.table} landed: {reason}",
            "When the catalog is back, submit it again under the same key: it is looked for first.",
            table=entry.table,
            key=entry.key,
        ) from reason
    raise AssertionError("retrying either returns or raises")


def _attempt(catalog: RestCatalog, entry: CommitEntry) -> int:
    try:
        table = atomic_commit.load(catalog, entry.table)
    except CatalogUnavailable as error:
        raise _RetryCommit("The catalog is away.") from error
    landed = _find_key(table, entry.key)
    if landed is not None:
        return landed
    live = LiveBranch(table, entry.branch)
    found = combine(live, [entry])
    for _, refusal in found.failing:
        raise refusal
    prepared = prepare_snapshot(table, entry.branch, live, found)
    try:
        atomic_commit.post_loaded(catalog, prepared.change)
    except CatalogUnavailable as error:
        raise _RetryCommit("It is not known whether it landed.") from error
    except (CommitConflict, Permanent) as error:
        _raise_refusal(catalog, table, prepared, error)
    crash_point("groupcommit.landed")
    return prepared.id


def _raise_refusal(
    catalog: RestCatalog, table: Table, prepared: PreparedSnapshot, error: ThermoclineError
) -> None:
    """It was refused: because somebody was faster, or for good."""
    prepared.discard()
    now = atomic_commit.load(catalog, ".".join(table.name()))
    if now.metadata_location == table.metadata_location:
        raise error
    raise _RetryCommit("Somebody else was faster.") from error


def _find_key(table: Table, key: str) -> int | None:
    """The snapshot that a key is in, on whatever branch."""
    for snapshot in reversed(table.metadata.snapshots):
        if snapshot.summary is not None and key in keys_of(snapshot.summary):
            return snapshot.snapshot_id
    return None
