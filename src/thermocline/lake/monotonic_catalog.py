"""PyIceberg's catalogs, with commit times that never go back; see commit_times.

PyIceberg writes the time that the clock shows. Every commit of it to a SQL catalog passes
`_update_and_stage_table`, and `tests/contract/test_commit_times.py` notices when that changes.
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
    """The time of a table's next commit, in milliseconds since 1970."""
    logs = (metadata.snapshot_log, metadata.metadata_log)
    return next_ms(max([metadata.last_updated_ms, *(at for log in logs for at in log_times(log))]))


def move_times_forward(base: TableMetadata, new: TableMetadata) -> TableMetadata:
    """Metadata that follows `base`, with each new time moved behind all of its times."""
    if new == base:
        return new
    least = next_time(base)
    before = {snapshot.snapshot_id for snapshot in base.snapshots}
    logged = {(entry.snapshot_id, entry.timestamp_ms) for entry in base.snapshot_log}

    def late(entry: Any) -> Any:
        if entry.timestamp_ms >= least:
            return entry
        return entry.model_copy(update={"timestamp_ms": least})

    log = [
        entry if (entry.snapshot_id, entry.timestamp_ms) in logged else late(entry)
        for entry in new.snapshot_log
    ]
    times = {
        "snapshots": [s if s.snapshot_id in before else late(s) for s in new.snapshots],
        "snapshot_log": log,
        "last_updated_ms": max(new.last_updated_ms, least),
    }
    return new.model_copy(update=times)


class MonotonicSqlCatalog(SqlCatalog):
    """A SQL catalog whose commits never go back in time."""

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
    """A REST catalog: its server keeps the logs; the snapshots' times are ours."""

    def commit_table(
        self,
        table: Table,
        requirements: tuple[TableRequirement, ...],
        updates: tuple[TableUpdate, ...],
    ) -> CommitTableResponse:
        least = next_time(table.metadata)
        later = tuple(_move_forward(update, least) for update in updates)
        response: CommitTableResponse = super().commit_table(table, requirements, later)
        return response


def _move_forward(update: TableUpdate, least: int) -> TableUpdate:
    if not isinstance(update, AddSnapshotUpdate) or update.snapshot.timestamp_ms >= least:
        return update
    snapshot = update.snapshot.model_copy(update={"timestamp_ms": least})
    return AddSnapshotUpdate(snapshot=snapshot)
