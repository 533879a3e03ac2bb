"""A DuckDB connection for the steps of a run, and the temporary objects in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck import UnsupportedByDuckDB, build_snapshot_query
from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.engine.view_rewrite import private_view_name
from thermocline.lake.metadata import TableState
from thermocline.lake.schema import shape_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from duckdb.sqltypes import DuckDBPyType

    from thermocline.lake import Lake

BATCH_ROWS = 64 * 1024
UNSUPPORTED_PREFIX = "unable: "
"""The prefix of an error that a query raises for a row that DuckDB does not support."""


MAX_PAIRS = 2_000_000_000
"""Most pairs of rows to compare one by one: some seconds of work."""
_NESTED_LOOP_JOINS = {"BLOCKWISE_NL_JOIN", "NESTED_LOOP_JOIN"}


FILE, ROW = private_view_name("file"), private_view_name("row")
POSITION_COLUMNS = f"filename AS {FILE}, file_row_number AS {ROW}"
"""The data file of each row, and the row's number in it."""


class Session:
    """One DuckDB connection with its own memory, opened on first use.

    Lazy rows are the text of a query.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._connection: duckdb.DuckDBPyConnection | None = None
        self._numbers = count()
        self._objects: list[tuple[str, str]] = []

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection."""
        if self._connection is None:
            self._connection = self.lake.duck.connect()
            # Queries order rows where the order matters; preserving any other order costs memory.
            self._connection.execute("SET preserve_insertion_order = false")
        return self._connection

    def scan(self, name: str, snapshot: int, *, positions: bool = False) -> str:
        """Return all rows of a table at a snapshot. Uuids are text, as on Spark.

        With `positions`, each row also has its file and its number in the file.
        """
        state = self.lake.state(name)
        rows = build_snapshot_query(
            self.connection, state.metadata_location, snapshot,
            also=f", {POSITION_COLUMNS}" if positions else "", fractions=state.may_hold_nan,
        )  # fmt: skip
        uuids = _uuid_columns(state, self, rows)
        texts = ", ".join(f"CAST({column} AS {kind}) AS {column}" for column, kind in uuids)
        return f"SELECT * REPLACE ({texts}) FROM ({rows})" if uuids else rows

    def create_view(self, sql: str) -> str:
        """Create a view: its rows are computed on every read."""
        return self._create("VIEW", sql)

    def materialize(self, sql: str) -> str:
        """Create a table: its rows are computed now and stored, on disk if memory is short."""
        return self._create("TABLE", sql)

    def _create(self, kind: str, sql: str) -> str:
        name = private_view_name(str(next(self._numbers)))
        self.connection.execute(f"CREATE TEMP {kind} {name} AS {sql}")
        self._objects.append((kind, name))
        return name

    def register(self, rows: object) -> str:
        """Register Arrow rows, a table or an object with an Arrow stream, and return their name."""
        name = private_view_name(str(next(self._numbers)))
        # A join may push its filter down to Arrow rows, which do not support every filter.
        self.connection.execute("SET disabled_optimizers = 'join_filter_pushdown'")
        self.connection.register(name, rows)
        self._objects.append(("", name))
        return name

    def describe(self, sql: str) -> dict[str, DuckDBPyType]:
        """Return the names and types of a query's columns, without running it."""
        relation = self.connection.sql(sql)
        return dict(zip(relation.columns, relation.types, strict=True))

    def fetch(self, sql: str) -> list[tuple[Any, ...]]:
        """Return a query's rows as Python values; for small results."""
        return self.connection.execute(sql).fetchall()

    def require_fast_joins(self, sql: str) -> None:
        """Raise UnsupportedByDuckDB if DuckDB would join large tables by comparing all row pairs.

        It does so for outer joins with a condition that does not compare one side with the other,
        even next to an equality; Spark evaluates the equality first.
        """
        ((_, text),) = self.fetch(f"EXPLAIN (FORMAT json) {sql}")
        pairs = max(map(_estimate_pairs, json.loads(text)), default=0)
        if pairs > MAX_PAIRS:
            raise UnsupportedByDuckDB(
                f"an outer join would compare {pairs:.0e} pairs of rows; "
                "write its condition as comparisons of one side with the other"
            )

    def stream(self, sql: str) -> Iterator[pa.Table]:
        """Yield a query's rows in the canonical Arrow form, in batches."""
        import pyarrow as pa

        from thermocline.engine.arrow import normalize

        for batch in self.connection.execute(sql).to_arrow_reader(BATCH_ROWS):
            yield normalize(pa.Table.from_batches([batch]))

    def clear(self) -> None:
        """Drop all temporary objects."""
        if any(not kind for kind, _ in self._objects):
            self.connection.execute("RESET disabled_optimizers")
        for kind, name in reversed(self._objects):
            if kind:
                self.connection.execute(f"DROP {kind} {name}")
            else:
                self.connection.unregister(name)
        self._objects.clear()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _estimate_pairs(node: Mapping[str, Any]) -> int:
    """Return the most row pairs that an operator of a plan compares, as DuckDB estimates."""
    below = [_estimate_pairs(child) for child in node["children"]]
    if node["name"].strip() in _NESTED_LOOP_JOINS:
        below.append(math.prod(_estimate_rows(child) for child in node["children"]))
    return max(below, default=0)


def _estimate_rows(node: Mapping[str, Any]) -> int:
    """Return an operator's estimated rows; without an estimate, those of its largest child."""
    estimate = node["extra_info"].get("Estimated Cardinality")
    if estimate is not None:
        return int(estimate)
    return max((_estimate_rows(child) for child in node["children"]), default=1)


def _uuid_columns(state: TableState, session: Session, rows: str) -> list[tuple[str, str]]:
    """Return the columns with uuids, with the type that has text instead."""
    uuid_columns = [c for c in shape_of(state).columns if "uuid" in str(c.type)]
    there = session.describe(rows) if uuid_columns else {}
    return [(quote_identifier(c.name), to_ddl(c.type)) for c in uuid_columns if c.name in there]
