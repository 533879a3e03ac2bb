"""PyIceberg's catalogs with commit times that never go back; see commit_times.

PyIceberg writes the clock's time. Each of its commits to a SQL catalog calls the private method
`_update_and_stage_table`, and `tests/contract/test_commit_times.py` fails when that changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.update import AddSnapshotUpdate

from thermocline.lake.commit_times import next_ms
from thermocline.lake.lazy_metadata import log_times

if TYPE_CHECKING:
    from pyiceberg.table import CommitTableResponse, StagedTable, Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.update import TableRequirement, TableUpdate


def next_time(metadata: TableMetadata) -> int:
    """Return the time of a table's next commit, in milliseconds since 1970."""
    logs = (metadata.snapshot_log, metadata.metadata_log)
    return next_ms(max([metadata.last_updated_ms, *(at for log in logs for at in log_times(log))]))


def move_times_forward(base: TableMetadata, new: TableMetadata) -> TableMetadata:
    """Return `new` metadata with each new time moved after all times of `base`."""
    if new == base:
        return new
    min_time = next_time(base)
    before = {snapshot.snapshot_id for snapshot in base.snapshots}
    logged = {(entry.snapshot_id, entry.timestamp_ms) for entry in base.snapshot_log}

    def move_entry(entry: Any) -> Any:
        if entry.timestamp_ms >= min_time:
            return entry
        return entry.model_copy(update={"timestamp_ms": min_time})

    log = [
        entry if (entry.snapshot_id, entry.timestamp_ms) in logged else move_entry(entry)
        for entry in new.snapshot_log
    ]
    times = {
        "snapshots": [s if s.snapshot_id in before else move_entry(s) for s in new.snapshots],
        "snapshot_log": log,
        "last_updated_ms": max(new.last_updated_ms, min_time),
    }
    return new.model_copy(update=times)


class MonotonicSqlCatalog(SqlCatalog):
    """A SQL catalog with monotonic commit times."""

    def _update_and_stage_table(
        self,
        current_table: Table | None,
        table_identifier: Any,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> StagedTable:
        staged = super()._update_and_stage_table(
            current_table, table_identifier, requirements, updates
        )
        if current_table is not None:
            staged.metadata = move_times_forward(current_table.metadata, staged.metadata)
        return staged


class MonotonicRestCatalog(RestCatalog):
    """A REST catalog with monotonic snapshot times; its server writes the logs."""

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        min_time = next_time(table.metadata)
        later = tuple(_move_forward(update, min_time) for update in updates)
        response: CommitTableResponse = super().commit_table(table, requirements, later)
        return response


def _move_forward(update: TableUpdate, min_time: int) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms >= min_time:
        return update
    snapshot = update.snapshot.model_copy(update={"timestamp_ms": min_time})
    return AddSnapshotUpdate(snapshot=snapshot)
