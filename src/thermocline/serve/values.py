"""The values that all of serving shares: requests, callers, answers, and the state of the lake.

Values only, without I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from hashlib import blake2b
from typing import Any, Literal

from thermocline.serve.file_sums import TableFileTotals

Format = Literal["json", "arrow", "csv", "trino"]
EngineName = Literal["hot", "direct", "trino", "spark", "cache"]


@dataclass(frozen=True)
class Caller:
    """The caller of a query. `policy` covers everything that decides what they may see."""

    name: str = "anonymous"
    roles: tuple[str, ...] = ()

    @property
    def policy(self) -> str:
        """Two callers with the same policy get the same answer to the same query."""
        return ",".join(sorted(self.roles))


@dataclass(frozen=True)
class QueryRequest:
    """One request: a SELECT, and the conditions for its answer.

    `snapshot` and `min_snapshot` are of the table `table_id`, or of the query's only table.
    `start_time` only adds a filter. `max_staleness` and `timeout` are seconds.
    """

    sql: str
    dialect: str = "duckdb"
    table_id: str | None = None
    start_time: datetime | None = None
    snapshot: int | None = None
    min_snapshot: int | None = None
    max_staleness: float | None = None
    timeout: float | None = None
    format: Format = "json"


@dataclass(frozen=True)
class ResultColumn:
    """A column of an answer, with the names of its type in Arrow and in Trino."""

    name: str
    type: str
    trino: str


@dataclass(frozen=True)
class EncodedRows:
    """The encoded rows of an engine, with their columns, count and timings.

    `body` is an Arrow IPC stream (arrow), a CSV text with a header line (csv), or for json and
    trino one JSON array a row, each on its own line.
    """

    columns: tuple[ResultColumn, ...]
    count: int
    body: bytes = field(repr=False)
    ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Rows and their provenance, which is ready for JSON."""

    rows: EncodedRows
    format: Format
    provenance: Mapping[str, Any]


NO_SNAPSHOT = 0
"""The snapshot id of a table without commits, which has no rows."""


@dataclass(frozen=True)
class TableHead:
    """A table's current state in the catalog.

    `columns` maps names to Iceberg type names; `time` is the column with the rows' time, if any;
    `snapshots` are the ids of main, newest first, of which the first `same_schema_count` have these
    columns; `files` are sums over its data files; `deletes` identifies its delete files; `hot` is
    how many seconds back the table is held hot, None when it is not, infinity when it is held
    whole.
    """

    table: str
    uuid: str
    snapshot: int
    metadata: str
    committed_at: datetime
    columns: Mapping[str, str]
    time: str | None
    snapshots: tuple[int, ...]
    files: TableFileTotals = field(default_factory=TableFileTotals)
    hot: float | None = None
    same_schema_count: int = 1
    deletes: int = 0

    @cached_property
    def schema_fingerprint(self) -> str:
        """A hash of the columns, their types and the time column."""
        text = repr((self.time, tuple(self.columns.items())))
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def columns_at(self, snapshot: int) -> Mapping[str, str] | None:
        """Return the columns of a snapshot, or None when they are not known."""
        return self.columns if snapshot in self.snapshots[: self.same_schema_count] else None


@dataclass(frozen=True)
class HotCopy:
    """A hot copy on a node: its snapshot, and from when on it is complete (None: all rows)."""

    snapshot: int
    since: datetime | None
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class LakeState:
    """The state of the lake at one poll of the catalog, and the hot copies of the nodes."""

    epoch: int
    polled_at: datetime
    table_heads: Mapping[str, TableHead]
    hot_copies: Mapping[str, Mapping[str, HotCopy]]
    """Node → table → its copy."""
