"""Commit an entry to a REST catalog: each writer commits its own entry and retries on conflict.

The key is in the snapshot's summary, and in the state that the table's snapshots carry, so that it
is known after the snapshot has expired. Every attempt first looks for the key in the same table
state that its commit then requires. So an attempt whose response was lost is found and not
repeated. The commit also expires snapshots.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from thermocline.errors import (
    CatalogUnavailable,
    CommitConflict,
    CommitUnknown,
    Permanent,
    ThermoclineError,
)
from thermocline.lake import (
    atomic_commit,
    carried_state,
    companions,
    metadata_cleanup,
    refs,
    retention,
)
from thermocline.lake.bookmark import BOOKMARK, read_entry_keys
from thermocline.lake.consumption import Consumption
from thermocline.lake.crash_points import crash_point
from thermocline.lake.digest_runs import RunFiles
from thermocline.lake.groupcommit.commit_round import plan_round
from thermocline.lake.groupcommit.entry import CommitEntry
from thermocline.lake.groupcommit.live_branch import LiveBranch
from thermocline.lake.groupcommit.round_snapshot import PreparedSnapshot, prepare_snapshot
from thermocline.lake.metadata import MAIN, TableState
from thermocline.lake.retries import retry_on

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata

    from thermocline.lake.carried_state import CarriedState
    from thermocline.lake.lake import Lake
    from thermocline.lake.retention import Expiry


class _RetryCommit(ThermoclineError):
    """This attempt did not land, or its outcome is unknown."""


def commit(catalog: RestCatalog, lake: Lake, entry: CommitEntry, timeout: float) -> int:
    """Commit one entry unless its key has landed; return the snapshot that contains it.

    If that snapshot has expired, return the newest one of the branch.
    """
    try:
        for attempt in retry_on(_RetryCommit, timeout):
            with attempt:
                return _attempt(catalog, lake, entry)
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


def _attempt(catalog: RestCatalog, lake: Lake, entry: CommitEntry) -> int:
    try:
        table = atomic_commit.load(catalog, entry.table)
    except CatalogUnavailable as error:
        raise _RetryCommit("The catalog is away.") from error
    state = TableState(entry.table, table.metadata_location, _to_json(table.metadata))
    runs = RunFiles(entry.table, state.location, lambda: table.io)
    before = carried_state.read_state(state, state.head(entry.branch))
    landed = _find_key(table, entry, runs, before)
    if landed is not None:
        return landed
    live = LiveBranch(table, entry.branch)
    planned = plan_round(live, [entry])
    for _, rejection in planned.rejected:
        raise rejection
    after = carried_state.extend_state(runs, before, Consumption(), [entry.key])
    planned.properties |= carried_state.summary_properties(after)
    prepared = prepare_snapshot(table, entry.branch, live, planned)
    expiry = _plan_expiry(lake, state, entry, prepared)
    [change] = refs.merge_changes(prepared.change, *(expiry.changes if expiry else ()))
    try:
        atomic_commit.commit_once_rest(catalog, change)
    except CatalogUnavailable as error:
        raise _RetryCommit("It is not known whether it landed.") from error
    except (CommitConflict, Permanent) as error:
        runs.discard()
        _raise_rejection(catalog, table, prepared, error)
    crash_point("groupcommit.landed")
    metadata_cleanup.delete_after_expiry(lake, [change], {entry.table: state})
    return prepared.id


def _plan_expiry(
    lake: Lake, state: TableState, entry: CommitEntry, prepared: PreparedSnapshot
) -> Expiry | None:
    """Plan which snapshots of the table expire with this commit."""
    if entry.branch != MAIN:
        return None
    bookmark = json.loads(entry.properties.get(BOOKMARK, "null"))
    plan = partial(
        retention.plan_expiry, lake, state, prepared.id, bookmark=bookmark, carries_state=True
    )
    expiry = plan(unit=lambda: companions.load_unit(lake, state.table).companions)
    if expiry and any(change.table != state.table for change in expiry.changes):
        return plan()  # this commits to one table, so it makes no restore points of a unit
    return expiry


def _to_json(metadata: TableMetadata) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(metadata.model_dump_json())
    return found


def _raise_rejection(
    catalog: RestCatalog, table: Table, prepared: PreparedSnapshot, error: ThermoclineError
) -> None:
    """Raise _RetryCommit when another commit was faster, else the catalog's own error."""
    prepared.discard()
    now = atomic_commit.load(catalog, ".".join(table.name()))
    if now.metadata_location == table.metadata_location:
        raise error
    raise _RetryCommit("Another commit was faster.") from error


def _find_key(
    table: Table, entry: CommitEntry, runs: RunFiles, carried: CarriedState
) -> int | None:
    """Return the snapshot that contains a key, on any branch."""
    for snapshot in reversed(table.metadata.snapshots):
        if snapshot.summary is not None and entry.key in read_entry_keys(snapshot.summary):
            return snapshot.snapshot_id
    if carried_state.find_digests(runs, carried, [carried_state.key_digest(entry.key)]):
        return table.metadata.refs[entry.branch].snapshot_id
    return None
