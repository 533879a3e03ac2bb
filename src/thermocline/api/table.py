"""One table: what it is, what it was, and how it changed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from thermocline.api.missing import names_missing
from thermocline.api.rendering import html_table
from thermocline.engine.frames import Frames
from thermocline.lake import bookmark as bookmarks
from thermocline.lake import restore_points, row_counts
from thermocline.lake import schema as schemas
from thermocline.lake.companions import load_unit
from thermocline.lake.leftovers import is_run_branch
from thermocline.lake.metadata import MAIN, Snapshot, TableState
from thermocline.lake.moments import Moment, resolve

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake import Lake
    from thermocline.lake.changeset import ChangeSet


@dataclass(frozen=True)
class TableInfo:
    """A table in one line. Branches that runs make for themselves are left out."""

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
        """For programs."""
        when = self.committed_at.isoformat() if self.committed_at else None
        return {**vars(self), "committed_at": when, "branches": list(self.branches),
                "tags": list(self.tags)}  # fmt: skip


@dataclass(frozen=True)
class Entry:
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
        """For programs."""
        return {**vars(self), "when": self.when.isoformat(), "refs": list(self.refs)}


def info(state: TableState) -> TableInfo:
    """A table's line, from its metadata alone."""
    head = state.head()
    snapshot = state.snapshots.get(head) if head is not None else None
    return TableInfo(
        name=state.table,
        rows=_rows(snapshot) if snapshot else 0,
        files=snapshot.count("total-data-files") if snapshot else 0,
        bytes=snapshot.count("total-files-size") if snapshot else 0,
        snapshot=head,
        snapshots=len(state.snapshots),
        committed_at=snapshot.committed_at if snapshot else None,
        branches=tuple(name for name in _branches(state) if not is_run_branch(name)),
        tags=tuple(sorted(r.name for r in state.refs.values() if r.type == "tag")),
    )


class Table(Frames):
    """A table of the lake. Looking at it starts no engine."""

    def __init__(self, lake: Lake, name: str, contract: Contract | None) -> None:
        self._lake = lake
        self.name = name
        self.contract = contract
        self._state()  # a table that is not there is an error now, not later

    def _state(self) -> TableState:
        return self._lake.state(self.name)

    def info(self) -> TableInfo:
        """Rows, files, size, newest snapshot, branches and tags."""
        return info(self._state())

    def branches(self) -> list[str]:
        """All branches, those of runs among them."""
        return _branches(self._state())

    def schema(self) -> list[tuple[str, str, bool, str | None, str | None]]:
        """Each column's name, type, whether it is required, its meaning and its classification."""
        found = []
        for column in schemas.shape_of(self._state()).columns:
            declared = self.contract.column(column.name) if self.contract else None
            doc = column.doc or (declared.doc if declared else None)
            classification = declared.classification if declared else None
            found.append((column.name, str(column.type), column.required, doc, classification))
        return found

    def history(self, ref: str = MAIN) -> list[Entry]:
        """The snapshots of a branch, newest first; of main also those that only tags still keep."""
        state = self._state()
        head = state.head(ref)
        found = [*state.ancestry(head), *(state.only_tagged if ref == MAIN else ())]
        return [_entry(state, snapshot, head) for snapshot in found]

    def at(self, when: Moment | None = None) -> TableAt:
        """The table as it was: by snapshot id, time, tag or branch."""
        state = self._state()
        return TableAt(self._lake, self.name, resolve(state, when))

    @names_missing
    def changes(self, since: Moment | None, until: Moment | None = None) -> ChangeSet:
        """Rows inserted, updated and deleted from one moment to another (now by default)."""
        from thermocline.lake.changes import changes

        state = self._state()
        start = None if since is None else resolve(state, since)
        key = schemas.shape_of(state).key
        return changes(self._lake.iceberg(self.name), start, resolve(state, until), key=key)

    def diff(self, a: Moment, b: Moment | None = None) -> ChangeSet:
        """The keyed difference of two moments: added, removed, and changed with old and new."""
        return self.changes(a, b)

    @names_missing
    def rollback(self, to: Moment) -> Rollback:
        """Point main back to an older snapshot of its own history, its companions with it."""
        unit = load_unit(self._lake, self.name)
        target = resolve(unit.table, to)
        beside, points = self._lake.beside, restore_points.named_in(unit.table).values()
        been = {*points, *(beside.carried(unit.table.uuid) if beside else ())}
        self._lake.commit(unit.rollback(target, been))
        return Rollback(unit.moves(target))

    def tag(self, name: str, at: Moment | None = None) -> int:
        """Give a snapshot a name that keeps it."""
        return self._new_ref(name, at, tag=True)

    def branch(self, name: str, at: Moment | None = None) -> int:
        """Begin a branch at a snapshot."""
        return self._new_ref(name, at, tag=False)

    def _new_ref(self, name: str, at: Moment | None, *, tag: bool) -> int:
        unit = load_unit(self._lake, self.name)
        snapshot = resolve(unit.table, at)
        self._lake.commit(unit.new_ref(name, snapshot, tag=tag))
        return snapshot

    def drop_ref(self, name: str) -> None:
        """Remove a branch or tag. Main stays."""
        self._lake.commit(load_unit(self._lake, self.name).remove_ref(name))

    def to_arrow(self) -> pa.Table:
        """The table as it is now, as an Arrow table."""
        return self.at().to_arrow()

    def to_spark(self) -> DataFrame:
        """The table as it is now, as a Spark frame."""
        return self.at().to_spark()

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """The table as it is now, as a DuckDB relation."""
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
class Rollback:
    """What a rollback did: each table's snapshot before and after."""

    tables: dict[str, tuple[int | None, int]]

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        return {t: {"before": before, "after": after} for t, (before, after) in self.tables.items()}

    def __str__(self) -> str:
        return "\n".join(f"{t} is back at {after}" for t, (_, after) in self.tables.items())


class TableAt(Frames):
    """A table at one snapshot, to be read by whichever library is at hand."""

    def __init__(self, lake: Lake, name: str, snapshot: int) -> None:
        self._lake = lake
        self.name = name
        self.snapshot = snapshot

    @names_missing
    def to_arrow(self) -> pa.Table:
        """As an Arrow table."""
        from thermocline.lake.changes import rows

        return rows(self._lake.iceberg(self.name), self.snapshot)

    def to_spark(self) -> DataFrame:
        """As a Spark frame, read when used."""
        return self._lake.spark.read(self.name, self.snapshot)

    def to_duckdb(self) -> duckdb.DuckDBPyRelation:
        """As a DuckDB relation, read when used."""
        return self._lake.duck.read(self._lake.state(self.name).metadata_location, self.snapshot)

    def __repr__(self) -> str:
        return f"<{self.name} at snapshot {self.snapshot}>"


def _branches(state: TableState) -> list[str]:
    return sorted(ref.name for ref in state.refs.values() if ref.type == "branch")


def _rows(snapshot: Snapshot) -> int:
    return snapshot.count("total-records") - snapshot.count("total-position-deletes")


def _entry(state: TableState, snapshot: Snapshot, head: int | None) -> Entry:
    run = snapshot.summary.get(bookmarks.RUN)
    rows = row_counts.of(snapshot)
    return Entry(
        when=state.published_at(snapshot.id),
        snapshot=snapshot.id,
        operation=_operation(snapshot),
        added=rows.added,
        changed=rows.changed,
        removed=rows.removed,
        by=f"run {run}" if run else snapshot.summary.get("engine-name", "thermocline"),
        run=run,
        bookmark=_shown_bookmark(snapshot),
        current=snapshot.id == head,
        refs=state.names.get(snapshot.id, ()),
    )


def _operation(snapshot: Snapshot) -> str:
    if snapshot.operation == "replace":
        return "compact"
    return snapshot.summary.get(bookmarks.OPERATION, snapshot.operation)


def _shown_bookmark(snapshot: Snapshot) -> str:
    """A bookmark for people: source@snapshot, or how many files; what maintenance keeps is said."""
    found = bookmarks.of(snapshot)
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
