"""A staged change set: the changes of each table, and the copies that result."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.serve.node.copy_types import quote_identifier
from thermocline.serve.wire.jobs import WorkerError


@dataclass(frozen=True)
class StoredCopy:
    """A copy of a table: its DuckDB table, its snapshot and its size.

    `dead` rows are deleted but still take memory; `bytes_in` is the Arrow size of all rows ever
    added.
    """

    name: str
    columns: tuple[str, ...]
    sort: str | None
    snapshot: str
    since: str | None
    rows: int = 0
    dead: int = 0
    bytes_in: int = 0

    @property
    def relation(self) -> str:
        """The DuckDB table that stores it."""
        return f"copies.{quote_identifier(self.name)}"

    @property
    def bytes(self) -> int:
        """The approximate Arrow size of its rows; in memory they are compressed."""
        every = self.rows + self.dead
        return self.bytes_in * self.rows // every if every else 0

    def with_snapshot(self, snapshot: str, since: str | None) -> StoredCopy:
        """Return the copy at another snapshot."""
        return replace(self, snapshot=snapshot, since=since)

    def with_name(self, name: str) -> StoredCopy:
        """Return the copy with its rows in another DuckDB table."""
        return replace(self, name=name)

    def with_rows(self, rows: int, dead: int, bytes_in: int) -> StoredCopy:
        """Return the copy with other row counts."""
        return replace(self, rows=rows, dead=dead, bytes_in=bytes_in)


@dataclass
class StagedTable:
    """The staged changes of one table.

    `relation` has the new rows: for a new copy, the copy itself.
    """

    kind: Literal["new", "advance", "drop"]
    copy: StoredCopy | None = None
    base: StoredCopy | None = None
    """For an advance: the copy that it changes."""
    relation: str = ""
    files: list[int] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    obsolete: list[str] = field(default_factory=list)
    bodies: int = 0
    rows: int = 0
    bytes: int = 0
    in_order: bool = True
    """Whether no row is older than one of an earlier body."""
    _newest: Any = None

    def record_rows(self, rows: pa.Table) -> None:
        """Record rows that were added."""
        self.bodies += 1
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        if self.copy is None or self.copy.sort is None or not rows.num_rows:
            return
        span = pc.min_max(rows[self.copy.sort]).as_py()
        if span["min"] is None or (self._newest is not None and span["min"] < self._newest):
            self.in_order = False
        self._newest = span["max"] if span["max"] is not None else self._newest

    def relations(self) -> set[str]:
        """Return all DuckDB tables that were created for it."""
        return {*self.positions, *self.obsolete, *([self.relation] if self.relation else ())}


@dataclass
class StagedChangeSet:
    """A change set that is not applied yet."""

    name: str
    tables: dict[str, StagedTable] = field(default_factory=dict)

    def get_staged(self, table: str, *kinds: str) -> StagedTable:
        """Return what is staged for a table. Raises WorkerError when it is of another kind."""
        staged = self.tables.get(table)
        if staged is None or staged.kind not in (kinds or ("new", "advance")):
            raise WorkerError("staging", f"{table} has no staged change that this could belong to.")
        return staged

    def relations(self) -> set[str]:
        """Return all DuckDB tables that were created for it."""
        return set().union(*(staged.relations() for staged in self.tables.values()))


def parse_utc(moment: str) -> datetime:
    """Parse a time; without a zone it is UTC."""
    read = datetime.fromisoformat(moment)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
