"""One table: its columns, its history, and its changes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from thermocline.api.file_errors import reports_missing_files
from thermocline.api.rendering import html_table
from thermocline.engine.frames import ArrowConvertible
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import carried_state, restore_points, row_counts
from thermocline.lake import schema as schemas
from thermocline.lake.companions import load_unit
from thermocline.lake.metadata import MAIN, Snapshot, TableState
from thermocline.lake.run_branches import is_run_branch
from thermocline.lake.time_travel import Moment, resolve_snapshot

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake import Lake
    from thermocline.lake.changeset import ChangeSet
    from thermocline.maintain.table_details import TableDetails


@dataclass(frozen=True)
class TableInfo:
    """Summary of a table. Branches that belong to runs are left out."""

    name: str
    rows: int
    files: int
    bytes: int
    snapshot: int | None
    snapshots: int
    committed_at: datetime | None
    branches: tuple[str, ...]
    tags: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the summary as JSON values."""
        when = self.committed_at.isoformat() if self.committed_at else None
        return {**vars(self), "committed_at": when, "branches": list(self.branches),
                "tags": list(self.tags)}  # fmt: skip


@dataclass(frozen=True)
class HistoryEntry:
    """One snapshot in a table's history."""

    when: datetime
    snapshot: int
    operation: str
    added: int
    changed: int
    removed: int
    by: str
    run: str | None
    bookmark: str
    current: bool
    refs: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the entry as JSON values."""
        return {**vars(self), "when": self.when.isoformat(), "refs": list(self.refs)}


def summarize_table(state: TableState) -> TableInfo:
    """Return a table's summary, from its metadata alone."""
    head = state.head()
    snapshot = state.snapshots.get(head) if head is not None else None
    return TableInfo(
        name=state.table,
        rows=_row_count(snapshot) if snapshot else 0,
        files=snapshot.count("total-data-files") if snapshot else 0,
        bytes=snapshot.count("total-files-size") if snapshot else 0,
        snapshot=head,
        snapshots=len(state.snapshots),
        committed_at=snapshot.committed_at if snapshot else None,
        branches=tuple(name for name in _branches(state) if not is_run_branch(name)),
        tags=tuple(sorted(r.name for r in state.refs.values() if r.type == "tag")),
    )


class Table(ArrowConvertible):
    """A table of the lake. Metadata calls start no engine."""

    def __init__(self, lake: Lake, name: str, contract: Contract | None) -> None:
        self._lake = lake
        self.name = name
        self.contract = contract
        self._state()  # a table that does not exist is an error now, not on first use

    def _state(self) -> TableState:
        return self._lake.state(self.name)

    def info(self) -> TableInfo:
        """Return rows, files, size, newest snapshot, branches and tags."""
        return summarize_table(self._state())

    def branches(self) -> list[str]:
        """Return all branches, including those of runs."""
        return _branches(self._state())

    def schema(self) -> list[tuple[str, str, bool, str | None, str | None]]:
        """Return each column's name, type, whether it is required, meaning and classification."""
        found = []
        for column in schemas.shape_of(self._state()).columns:
            declared = self.contract.column(column.name) if self.contract else None
            doc = column.doc or (declared.doc if declared else None)
            classification = declared.classification if declared else None
            found.append((column.name, str(column.type), column.required, doc, classification))
        return found

    def history(self, ref: str = MAIN) -> list[HistoryEntry]:
        """Return a branch's snapshots, newest first; for main also those that only a tag keeps."""
        state = self._state()
        head = state.head(ref)
        found = [*state.ancestry(head), *(state.only_tagged if ref == MAIN else ())]
        return [_history_entry(state, snapshot, head) for snapshot in found]

    def health(self) -> TableDetails:
        """Return how well the table can be read: partitions, reads, updates, alerts, and advice."""
        from thermocline.api.maintenance import Maintenance

        return Maintenance(self._lake).describe(self.name)

    def at(self, when: Moment | None = None) -> TableSnapshot:
        """Return the table at a snapshot id, time, tag or branch."""
        state = self._state()
        return TableSnapshot(self._lake, self.name, resolve_snapshot(state, when))

    @reports_missing_files
    def changes(self, since: Moment | None, until: Moment | None = None) -> ChangeSet:
        """Return rows inserted, updated and deleted since a moment, up to another one (now)."""
        from thermocline.lake.changes import diff_snapshots

        state = self._state()
        start = None if since is None else resolve_snapshot(state, since)
        key = schemas.shape_of(state).key
        return diff_snapshots(
            self._lake.iceberg(self.name), start, resolve_snapshot(state, until), key=key
        )

    def diff(self, a: Moment, b: Moment | None = None) -> ChangeSet:
        """Return the keyed difference of two moments: rows added, removed and changed."""
        return self.changes(a, b)

    @reports_missing_files
    def rollback(self, to: Moment) -> RollbackReport:
        """Point main, and the companions, back to an older snapshot of the table's own history."""
        unit = load_unit(self._lake, self.name)
        target = resolve_snapshot(unit.table, to)
        rows, table = self._lake.consumption_store, unit.table
        anchored = rows.bound_snapshots(table.uuid) if rows else carried_state.read_anchors(table)
        known = {*restore_points.restore_points_of(table).values(), *anchored}
        self._lake.commit(unit.rollback(target, known))
        return RollbackReport(unit.plan_moves(target))

    def tag(self, name: str, at: Moment | None = None) -> int:
        """Tag a snapshot, which keeps it from expiring; return its id."""
        return self._new_ref(name, at, tag=True)

    def branch(self, name: str, at: Moment | None = None) -> int:
        """Create a branch at a snapshot and return the snapshot's id."""
        return self._new_ref(name, at, tag=False)

    def _new_ref(self, name: str, at: Moment | None, *, tag: bool) -> int:
        unit = load_unit(self._lake, self.name)
        snapshot = resolve_snapshot(unit.table, at)
        self._lake.commit(unit.new_ref(name, snapshot, tag=tag))
        return snapshot

    def drop_ref(self, name: str) -> None:
        """Remove a branch or tag. Main cannot be removed."""
        self._lake.commit(load_unit(self._lake, self.name).remove_ref(name))

    def to_arrow(self) -> pa.Table:
        """Return the current rows as an Arrow table."""
        return self.at().to_arrow()

    def to_spark(self) -> DataFrame:
        """Return the current rows as a Spark DataFrame."""
        return self.at().to_spark()

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the current rows as a DuckDB relation."""
        return self.at().to_duckdb()

    def __repr__(self) -> str:
        line = self.info()
        return f"<Table {self.name}: {line.rows:,} rows, snapshot {line.snapshot}>"

    def _repr_html_(self) -> str:
        rows = [
            (n, t, "required" if r else "", d or "", c or "") for n, t, r, d, c in self.schema()
        ]
        return html_table(["column", "type", "", "meaning", "class"], rows, len(rows))


@dataclass(frozen=True)
class RollbackReport:
    """Each table's snapshot before and after a rollback."""

    tables: dict[str, tuple[int | None, int]]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {t: {"before": before, "after": after} for t, (before, after) in self.tables.items()}

    def __str__(self) -> str:
        return "\n".join(f"{t} is back at {after}" for t, (_, after) in self.tables.items())


class TableSnapshot(ArrowConvertible):
    """A table at one snapshot, readable in Arrow, pandas, polars, Spark or DuckDB."""

    def __init__(self, lake: Lake, name: str, snapshot: int) -> None:
        self._lake = lake
        self.name = name
        self.snapshot = snapshot

    @reports_missing_files
    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        from thermocline.lake.changes import read_rows

        return read_rows(self._lake.iceberg(self.name), self.snapshot)

    def to_spark(self) -> DataFrame:
        """Return the rows as a lazy Spark DataFrame."""
        return self._lake.spark.read(self.name, self.snapshot)

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """Return the rows as a lazy DuckDB relation."""
        return self._lake.duck.read(self._lake.state(self.name).metadata_location, self.snapshot)

    def __repr__(self) -> str:
        return f"<{self.name} at snapshot {self.snapshot}>"


def _branches(state: TableState) -> list[str]:
    return sorted(ref.name for ref in state.refs.values() if ref.type == "branch")


def _row_count(snapshot: Snapshot) -> int:
    return snapshot.count("total-records") - snapshot.count("total-position-deletes")


def _history_entry(state: TableState, snapshot: Snapshot, head: int | None) -> HistoryEntry:
    run = snapshot.summary.get(bookmarks.RUN)
    rows = row_counts.count_rows(snapshot)
    return HistoryEntry(
        when=state.published_at(snapshot.id),
        snapshot=snapshot.id,
        operation=_operation(snapshot),
        added=rows.added,
        changed=rows.changed,
        removed=rows.removed,
        by=f"run {run}" if run else snapshot.summary.get("engine-name", "thermocline"),
        run=run,
        bookmark=_format_bookmark(snapshot),
        current=snapshot.id == head,
        refs=state.names.get(snapshot.id, ()),
    )


def _operation(snapshot: Snapshot) -> str:
    if snapshot.operation == "replace":
        return "compact"
    return snapshot.summary.get(bookmarks.OPERATION, snapshot.operation)


def _format_bookmark(snapshot: Snapshot) -> str:
    """Format a bookmark for people: source@snapshot, a count of files, or "(kept)"."""
    found = bookmarks.parse_bookmark(snapshot)
    if found is None:
        return "(kept)" if snapshot.operation == "replace" else ""
    parts = []
    for source, value in found.items():
        if source.startswith("@"):
            continue
        if isinstance(value, int):
            text = str(value)
            parts.append(
                f"{source}@{text[:4]}…{text[-4:]}" if len(text) > 9 else f"{source}@{text}"
            )
        elif isinstance(value, dict):
            parts.append(f"{len(value)} {source}")
        else:
            parts.append(f"{source} {json.dumps(value)}")
    return ", ".join(parts)
