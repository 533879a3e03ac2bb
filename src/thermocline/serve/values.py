"""The words that the parts of serving share: what was asked, who asked, and what was answered.

Values only: nothing here talks to anybody.
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
    """Who asks. `policy` stands for everything that decides what they may see."""

    name: str = "anonymous"
    roles: tuple[str, ...] = ()

    @property
    def policy(self) -> str:
        """Two callers with the same policy get the same answer to the same question."""
        return ",".join(sorted(self.roles))


@dataclass(frozen=True)
class QueryRequest:
    """One request: a SELECT and how it is to be answered.

    `snapshot` and `min_snapshot` are of the table `table_id`, or of the only table asked for.
    `start_time` only narrows. `max_staleness` and `timeout` are seconds.
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
    """A column of an answer, with its type in Arrow's words and in Trino's."""

    name: str
    type: str
    trino: str


@dataclass(frozen=True)
class EncodedRows:
    """What an engine gave: the encoded rows, and what it knows about them.

    `body` is an Arrow IPC stream (arrow), a CSV text with a header line (csv), or for json and
    trino one JSON array a row, each on its own line.
    """

    columns: tuple[ResultColumn, ...]
    count: int
    body: bytes = field(repr=False)
    ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Answer:
    """Rows and where they came from. `provenance` is ready for JSON."""

    rows: EncodedRows
    format: Format
    provenance: Mapping[str, Any]


NO_SNAPSHOT = 0
"""Stands for the snapshot of a table that was never committed to, and so has no rows."""


@dataclass(frozen=True)
class TableHead:
    """A table as the catalog has it now.

    `columns` maps names to Iceberg type words; `time` is the column its rows' time is in, if it
    has one; `snapshots` are the ids of main, newest first, of which the first `alike` have these
    columns; `files` are sums over its data files; `deletes` stands for all that takes rows out of
    files; `hot` is how many seconds back the table is to be held hot, None when it is not, and
    infinity when it is held whole.
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
        """A short text that stands for the columns, their types and the time."""
        text = repr((self.time, tuple(self.columns.items())))
        return blake2b(text.encode(), digest_size=16).hexdigest()

    def columns_at(self, snapshot: int) -> Mapping[str, str] | None:
        """The columns that a snapshot has, where that is known."""
        return self.columns if snapshot in self.snapshots[: self.same_schema_count] else None


@dataclass(frozen=True)
class HotCopy:
    """A hot copy on a node: the snapshot it is at, and from when on it is whole (None: always)."""

    snapshot: int
    since: datetime | None
    rows: int = 0
    bytes: int = 0


@dataclass(frozen=True)
class LakeState:
    """What is known of the lake at one look at the catalog, and what the nodes hold of it."""

    epoch: int
    polled_at: datetime
    table_heads: Mapping[str, TableHead]
    hot_copies: Mapping[str, Mapping[str, HotCopy]]
    """Node → table → its copy."""
