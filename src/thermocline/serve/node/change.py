"""A change set in the making: what is staged for each table, and the copies it leads to."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc

from thermocline.serve.node.types import quoted
from thermocline.serve.wire.jobs import Failed


@dataclass(frozen=True)
class Copy:
    """A copy of a table: where it is, at which snapshot, and how large.

    `dead` rows were deleted and still take memory; `bytes_in` is what all rows ever added had as
    Arrow.
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
    def place(self) -> str:
        """The DuckDB table it is in."""
        return f"copies.{quoted(self.name)}"

    @property
    def bytes(self) -> int:
        """About how many bytes its rows have as Arrow; in memory they are compressed."""
        every = self.rows + self.dead
        return self.bytes_in * self.rows // every if every else 0

    def at(self, snapshot: str, since: str | None) -> Copy:
        """The same copy at another snapshot."""
        return replace(self, snapshot=snapshot, since=since)

    def named(self, name: str) -> Copy:
        """The same rows in another table."""
        return replace(self, name=name)

    def sized(self, rows: int, dead: int, bytes_in: int) -> Copy:
        """The same copy with other rows in it."""
        return replace(self, rows=rows, dead=dead, bytes_in=bytes_in)


@dataclass
class Staged:
    """What a change set has for one table.

    `place` is where its new rows are: for a new copy, the copy itself.
    """

    kind: Literal["new", "advance", "drop"]
    copy: Copy | None = None
    base: Copy | None = None
    """Of an advance: the copy that it is a step from."""
    place: str = ""
    files: list[int] = field(default_factory=list)
    positions: list[str] = field(default_factory=list)
    spare: list[str] = field(default_factory=list)
    bodies: int = 0
    rows: int = 0
    bytes: int = 0
    in_order: bool = True
    """Whether no row is older than one that came in a body before."""
    _newest: Any = None

    def took(self, rows: pa.Table) -> None:
        """Take note of rows that were added."""
        self.bodies += 1
        self.rows += rows.num_rows
        self.bytes += rows.nbytes
        if self.copy is None or self.copy.sort is None or not rows.num_rows:
            return
        span = pc.min_max(rows[self.copy.sort]).as_py()
        if span["min"] is None or (self._newest is not None and span["min"] < self._newest):
            self.in_order = False
        self._newest = span["max"] if span["max"] is not None else self._newest

    def places(self) -> set[str]:
        """All tables that were made for it."""
        return {*self.positions, *self.spare, *([self.place] if self.place else ())}


@dataclass
class Change:
    """A change set that was begun."""

    name: str
    tables: dict[str, Staged] = field(default_factory=dict)

    def of(self, table: str, *kinds: str) -> Staged:
        """What is staged for a table, when it is of such a kind."""
        staged = self.tables.get(table)
        if staged is None or staged.kind not in (kinds or ("new", "advance")):
            raise Failed("staging", f"Nothing was staged for {table} that this could belong to.")
        return staged

    def places(self) -> set[str]:
        """All tables that were made for it."""
        return set().union(*(staged.places() for staged in self.tables.values()))


def utc(moment: str) -> datetime:
    """A moment as it is written; without a zone it is UTC."""
    read = datetime.fromisoformat(moment)
    return read.replace(tzinfo=UTC) if read.tzinfo is None else read.astimezone(UTC)
