"""The values of a contract: the compiled form of an ODCS document.

Nothing here does I/O or knows an engine. All other packages read `Contract`; `parse` builds it
from YAML, and `evolution` compares it with a table.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any

from thermocline.contract.types import Field, List, Map, Primitive, Struct, Type

_STRING = Primitive("string")
_BINARY = Primitive("binary")
_TIMESTAMPTZ = Primitive("timestamptz")


class WriteMode(StrEnum):
    """How new rows are combined with existing rows."""

    APPEND = "append"
    MERGE = "merge"
    SCD2 = "scd2"
    PARTITIONS = "partitions"
    REPLACE = "replace"


class UpdateMode(StrEnum):
    """Whether a changed row rewrites its file or adds a delete file."""

    COPY_ON_WRITE = "copy-on-write"
    MERGE_ON_READ = "merge-on-read"


class IncrementalMode(StrEnum):
    """What to do with a model whose affected rows cannot be derived from its changes."""

    AUTO = "auto"
    """Recompute the whole table; the plan gives the reason."""
    STRICT = "strict"
    """Fail."""


class DriftMode(StrEnum):
    """What ingestion does with a field that is not in the contract."""

    REFUSE = "refuse"
    ADD = "add"
    RESCUE = "rescue"


@dataclass(frozen=True)
class Column:
    """One column of a table."""

    name: str
    type: Type
    required: bool = False
    doc: str | None = None
    classification: str | None = None
    renamed_from: str | None = None
    load_time: bool = False
    """Whether it records when its row was computed, so that recomputation may change it."""
    line: int = field(default=0, compare=False)


@dataclass(frozen=True)
class PartitionField:
    """One partition field: a transform of a column. `param` is bucket count or truncate width."""

    column: str
    transform: str = "identity"
    param: int | None = None
    line: int = field(default=0, compare=False)

    @property
    def name(self) -> str:
        """Return the partition field's name, as Spark would choose it."""
        if self.transform == "identity":
            return self.column
        suffix = {"truncate": "trunc"}.get(self.transform, self.transform)
        return f"{self.column}_{suffix}"

    def __str__(self) -> str:
        if self.transform == "identity":
            return self.column
        inner = f"{self.param}, {self.column}" if self.param is not None else self.column
        return f"{self.transform}({inner})"


CLUSTER_COLUMNS = range(2, 5)
"""How many columns a z-order may have."""


@dataclass(frozen=True)
class SortField:
    """One column of the sort order inside files."""

    column: str
    descending: bool = False


@dataclass(frozen=True)
class Rule:
    """One quality rule.

    `kind` is the measure; `columns` and `arguments` are its inputs:

    - missing: one column is null, or one of `values` (optional: "", "N/A", …)
    - duplicates: rows whose `columns` together also occur in another row
    - row_count: the table's rows
    - accepted: one column is not in `values`
    - range: one column is below `min` or above `max`, or touches `exclusive_min`, `exclusive_max`
    - length: one text column is shorter than `min` or longer than `max` characters
    - pattern: the regular expression `pattern` does not match anywhere in one text column
    - reference: `columns` do not occur in `table` ("layer.name") in its `columns`
    - freshness: the newest value of one column is older than `within` (a timedelta)
    - sql: the number that `query` returns; {object} in it is replaced by the table

    A null violates only missing. `bounds` compare the measure (the number of violating rows, or
    the result of row_count and sql) with numbers: keys are the ODCS operators (mustBe, mustNotBe,
    mustBeGreaterThan, mustBeGreaterOrEqualTo, mustBeLessThan, mustBeLessOrEqualTo, mustBeBetween,
    mustNotBeBetween; the last two have an inclusive range). `unit` is "rows" or "percent"
    of the table's rows. `severity` is "error" or "warning".
    """

    kind: str
    columns: tuple[str, ...] = ()
    arguments: tuple[tuple[str, Any], ...] = ()
    bounds: tuple[tuple[str, Any], ...] = (("mustBe", 0),)
    unit: str = "rows"
    severity: str = "error"
    name: str = ""
    line: int = field(default=0, compare=False)

    def argument(self, key: str, default: Any = None) -> Any:
        """Return one argument of the rule."""
        return dict(self.arguments).get(key, default)

    @property
    def is_row_level(self) -> bool:
        """Return whether a single row can violate the rule, so that ingestion can quarantine it."""
        return self.kind in {"missing", "accepted", "range", "length", "pattern"}

    @property
    def title(self) -> str:
        """Return the display name of the rule."""
        if self.name:
            return self.name
        return f"{self.kind}({', '.join(self.columns)})" if self.columns else self.kind


SCD2_COLUMNS = (
    Column("_valid_from", _TIMESTAMPTZ, required=True, doc="from when this version was true"),
    Column("_valid_to", _TIMESTAMPTZ, doc="until when; null while it is current"),
    Column("_is_current", Primitive("boolean"), required=True, doc="whether it is true now"),
)
INGEST_COLUMNS = (
    Column("_source", _STRING, doc="the source it came from"),
    # Not "_file": Iceberg reserves that name, and Spark then refuses to read the table.
    Column("_source_file", _STRING, doc="the landing file, topic/partition or endpoint"),
    Column("_position", Primitive("long"), doc="its record number in that file, or its offset"),
    Column("_ingested_at", _TIMESTAMPTZ, doc="when it was landed"),
    Column("_rescued", Map(_STRING, _STRING), doc="fields that the contract does not name"),
)
MESSAGE_COLUMNS = (
    Column("_key", _BINARY, doc="the message's key, as it came"),
    Column(
        "_headers",
        List(Struct((Field("key", _STRING), Field("value", _BINARY)))),
        doc="the message's headers, in their order",
    ),
    Column("_event_time", _TIMESTAMPTZ, doc="when the source says it happened"),
    Column("_raw", _BINARY, doc="the payload, byte by byte; null for a tombstone"),
)


@dataclass(frozen=True)
class TableShape:
    """The part of a contract that a table itself has."""

    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    partition: tuple[PartitionField, ...] = ()
    sort: tuple[SortField, ...] = ()

    def column(self, name: str) -> Column | None:
        """Return the column of that name, if it exists."""
        return next((column for column in self.columns if column.name == name), None)


@dataclass(frozen=True)
class Contract:
    """One table's contract. `table` is "layer.name"; `columns` are those the author wrote.

    `readers` are the roles that may read it through the server; None means everyone. `messages`
    means that its rows arrive as messages from a topic, a database or an API, not in files; the
    table then also stores each message's metadata. `companion_of` is the table that it belongs to.
    `cluster` are the columns of a z-order, by which maintenance clusters the rows; the alternative
    is `sort`.
    """

    table: str
    columns: tuple[Column, ...]
    path: Path | None = field(default=None, compare=False)
    id: str = ""
    version: str = "1.0.0"
    status: str = "active"
    description: str = ""
    key: tuple[str, ...] = ()
    partition: tuple[PartitionField, ...] = ()
    sort: tuple[SortField, ...] = ()
    cluster: tuple[str, ...] = ()
    write: WriteMode = WriteMode.APPEND
    order_by: tuple[str, ...] = ()
    delete_when: str | None = None
    updates: UpdateMode = UpdateMode.COPY_ON_WRITE
    incremental: IncrementalMode = IncrementalMode.AUTO
    drift: DriftMode = DriftMode.REFUSE
    dropped: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    freshness: timedelta | None = None
    freshness_column: str | None = None
    retention: timedelta | None = None
    tags: tuple[str, ...] = ()
    hot: timedelta | None = None
    history: timedelta | None = None
    readers: tuple[str, ...] | None = None
    messages: bool = False
    companion_of: str | None = None
    line: int = field(default=0, compare=False)

    @property
    def layer(self) -> str:
        """Return the layer: bronze, silver, gold or another name of the project."""
        return self.table.split(".", 1)[0]

    @property
    def name(self) -> str:
        """Return the table's name without its layer."""
        return self.table.split(".", 1)[1]

    @property
    def system_columns(self) -> tuple[Column, ...]:
        """Return the columns that Thermocline fills: history of scd2, provenance of bronze."""
        if self.write is WriteMode.SCD2:
            return SCD2_COLUMNS
        if self.layer != "bronze":
            return ()
        return INGEST_COLUMNS + MESSAGE_COLUMNS if self.messages else INGEST_COLUMNS

    @property
    def table_columns(self) -> tuple[Column, ...]:
        """Return all columns: the author's, then the system columns that the author left out."""
        written = {column.name for column in self.columns}
        return self.columns + tuple(c for c in self.system_columns if c.name not in written)

    @property
    def shape(self) -> TableShape:
        """Return the shape that the table should have."""
        key = self.key
        if self.write is WriteMode.SCD2:
            key = (*self.key, "_valid_from")
        return TableShape(self.table_columns, key, self.partition, self.sort)

    def column(self, name: str) -> Column | None:
        """Return the table's column of that name, if it exists."""
        return self.shape.column(name)
