"""A connection for the steps of a run, and what they make in it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from itertools import count
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck import build_snapshot_query
from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.engine.view_rewrite import private_view_name
from thermocline.errors import Permanent
from thermocline.lake.metadata import TableState
from thermocline.lake.schema import shape_of

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from duckdb.sqltypes import DuckDBPyType

    from thermocline.lake import Lake

BATCH_ROWS = 64 * 1024
UNABLE = "unable: "
"""What a query says first when a row shows that DuckDB is not able to do what is asked."""


MOST_PAIRS = 2_000_000_000
"""So many pairs of rows may be compared one by one: some seconds of work."""
_ONE_BY_ONE = {"BLOCKWISE_NL_JOIN", "NESTED_LOOP_JOIN"}


FILE, ROW = private_view_name("file"), private_view_name("row")
PLACES = f"filename AS {FILE}, file_row_number AS {ROW}"
"""Of each row of a table the data file that it is in, and its number there."""

BY_SPARK = "Set transform.engine = auto, and Spark computes it."


class Unable(Permanent):
    """Something that DuckDB cannot do, or not as Spark would; nothing was written by then.

    With `auto` Spark is asked then. So its next step is only shown where that is not set.
    """

    code = "unable"

    def __init__(self, what: str, next_step: str = BY_SPARK) -> None:
        super().__init__(what, next_step)


class Session:
    """One DuckDB connection with memory of its own, opened when first used.

    Rows that are yet to be computed are the text of a query.
    """

    def __init__(self, lake: Lake) -> None:
        self.lake = lake
        self._opened: duckdb.DuckDBPyConnection | None = None
        self._numbers = count()
        self._made: list[tuple[str, str]] = []

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The connection itself."""
        if self._opened is None:
            self._opened = self.lake.duck.connect()
            # What order rows have is said where it matters; keeping any other costs memory.
            self._opened.execute("SET preserve_insertion_order = false")
        return self._opened

    def table(self, name: str, snapshot: int, *, places: bool = False) -> str:
        """All rows of a table at a snapshot. Uuids are text, as they are in Spark.

        With `places` each also has its file and its number in there.
        """
        state = self.lake.state(name)
        rows = build_snapshot_query(
            self.connection, state.metadata_location, snapshot,
            also=f", {PLACES}" if places else "", fractions=state.may_hold_nan,
        )  # fmt: skip
        uuids = _uuid_columns(state, self, rows)
        texts = ", ".join(f"CAST({column} AS {kind}) AS {column}" for column, kind in uuids)
        return f"SELECT * REPLACE ({texts}) FROM ({rows})" if uuids else rows

    def view(self, sql: str) -> str:
        """A name for rows, which are computed whenever they are read."""
        return self._make("VIEW", sql)

    def keep(self, sql: str) -> str:
        """A name for rows, which are computed now and kept; on disk where memory is short."""
        return self._make("TABLE", sql)

    def _make(self, kind: str, sql: str) -> str:
        name = private_view_name(str(next(self._numbers)))
        self.connection.execute(f"CREATE TEMP {kind} {name} AS {sql}")
        self._made.append((kind, name))
        return name

    def register(self, rows: object) -> str:
        """A name for rows that Arrow can read: a table, or what gives a stream of them."""
        name = private_view_name(str(next(self._numbers)))
        # A join may hand its filter down to the rows of Arrow, which cannot take every kind.
        self.connection.execute("SET disabled_optimizers = 'join_filter_pushdown'")
        self.connection.register(name, rows)
        self._made.append(("", name))
        return name

    def columns(self, sql: str) -> dict[str, DuckDBPyType]:
        """The names and types of a query's columns, without running it."""
        relation = self.connection.sql(sql)
        return dict(zip(relation.columns, relation.types, strict=True))

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """A query's rows as Python values, for answers that are small."""
        return self.connection.execute(sql).fetchall()

    def require_speed(self, sql: str) -> None:
        """Raise Unable where DuckDB would join large tables by comparing all their rows.

        It does so for outer joins with a condition that is not a comparison of one side with the
        other, even beside an equality; Spark takes the equality first.
        """
        ((_, text),) = self.rows(f"EXPLAIN (FORMAT json) {sql}")
        pairs = max(map(_pairs, json.loads(text)), default=0)
        if pairs > MOST_PAIRS:
            raise Unable(
                f"an outer join would compare {pairs:.0e} pairs of rows; "
                "write its condition as comparisons of one side with the other"
            )

    def stream(self, sql: str) -> Iterator[pa.Table]:
        """A query's rows in the canonical Arrow form, a few at a time."""
        import pyarrow as pa

        from thermocline.engine.arrow import normalize

        for batch in self.connection.execute(sql).to_arrow_reader(BATCH_ROWS):
            yield normalize(pa.Table.from_batches([batch]))

    def clear(self) -> None:
        """Drop all that was made."""
        if any(not kind for kind, _ in self._made):
            self.connection.execute("RESET disabled_optimizers")
        for kind, name in reversed(self._made):
            if kind:
                self.connection.execute(f"DROP {kind} {name}")
            else:
                self.connection.unregister(name)
        self._made.clear()

    def close(self) -> None:
        """Close the connection."""
        if self._opened is not None:
            self._opened.close()
            self._opened = None


def _pairs(node: Mapping[str, Any]) -> int:
    """The most pairs of rows that an operator of a plan compares one by one, as DuckDB guesses."""
    below = [_pairs(child) for child in node["children"]]
    if node["name"].strip() in _ONE_BY_ONE:
        below.append(math.prod(_guessed(child) for child in node["children"]))
    return max(below, default=0)


def _guessed(node: Mapping[str, Any]) -> int:
    """How many rows an operator gives; one that does not say gives what those below it do."""
    said = node["extra_info"].get("Estimated Cardinality")
    if said is not None:
        return int(said)
    return max((_guessed(child) for child in node["children"]), default=1)


def _uuid_columns(state: TableState, session: Session, rows: str) -> list[tuple[str, str]]:
    """The columns that hold uuids, with the type that has text in their place."""
    held = [c for c in shape_of(state).columns if "uuid" in str(c.type)]
    there = session.columns(rows) if held else {}
    return [(quote_identifier(c.name), to_ddl(c.type)) for c in held if c.name in there]
