"""Compare rows that dbt created with a table, and find the smallest write that makes them equal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import quote_identifier, to_ddl

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from thermocline.contract.definition import Column

_FILE = "filename"
"""DuckDB's own column of a scan; a table column of that name hides it."""

_BATCH_ROWS = 1_000_000
"""Rows per written file, and per batch in memory."""


@dataclass(frozen=True)
class RowDifference:
    """Which data files to replace, or all (None), and the relation that holds the rows to write."""

    added: int
    removed: int
    replaced_files: tuple[str, ...] | None
    rows_to_write: str

    @property
    def is_empty(self) -> bool:
        """Whether the table already holds exactly these rows."""
        return not self.added and not self.removed


class RowComparison:
    """Compares one relation with the table that it replaces, both as multisets of rows.

    A file is replaced when it holds a row that is gone; its other rows are rewritten. All other
    files stay, so that a few new rows become an append of just these rows.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        made: str,
        columns: Sequence[Column],
        *,
        computed: bool,
    ) -> None:
        self._run = connection.execute
        names = [quote_identifier(column.name) for column in columns]
        self._same = " AND ".join(f"held.{n} IS NOT DISTINCT FROM _gone.{n}" for n in names)
        self._hidden = any(column.name.lower() == _FILE for column in columns)
        self._cast = ", ".join(
            f"CAST({quote_identifier(c.name)} AS {to_ddl(c.type)}) AS {quote_identifier(c.name)}"
            for c in columns
        )
        # A view is read once: it may be slow, or return other rows the next time.
        kind = "TABLE" if computed else "VIEW"
        self._run("DROP VIEW IF EXISTS _view; DROP TABLE IF EXISTS _table")
        self._made = f"_{kind.lower()}"
        self._run(f"CREATE TEMP {kind} {self._made} AS SELECT {self._cast} FROM {made}")

    def compare_with_empty(self) -> RowDifference:
        """Return the difference for a new table."""
        return RowDifference(self._count(self._made), 0, (), self._made)

    def compare_with_other_schema(self, scan: str) -> RowDifference:
        """Return the difference for a table with other columns: all of it is rewritten."""
        return RowDifference(self._count(self._made), self._count(scan), None, self._made)

    def compare_with_table(self, scan: str) -> RowDifference:
        """Return the difference for a table with the same columns, read by a scan of its files."""
        old = f"SELECT {self._cast} FROM {scan}"
        self._store("_gone", f"{old} EXCEPT ALL FROM {self._made}")
        removed = self._count("_gone")
        if self._hidden:
            self._store("_to_write", f"FROM {self._made} EXCEPT ALL {old}")
            return RowDifference(self._count("_to_write"), removed, None, self._made)
        self._store(
            "_replaced",
            f"SELECT DISTINCT {_FILE} FROM (SELECT {self._cast}, {_FILE} FROM {scan}) AS held "
            f"SEMI JOIN _gone ON {self._same}",
        )
        kept = f"{old} WHERE {_FILE} NOT IN (FROM _replaced)"
        self._store("_to_write", f"FROM {self._made} EXCEPT ALL {kept}")
        moved = self._count(f"{scan} WHERE {_FILE} IN (FROM _replaced)") - removed
        files = tuple(path for (path,) in self._run("FROM _replaced ORDER BY 1").fetchall())
        return RowDifference(self._count("_to_write") - moved, removed, files, "_to_write")

    def _store(self, name: str, query: str) -> None:
        self._run(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def _count(self, relation: str) -> int:
        row: Any = self._run(f"SELECT count(*) FROM {relation}").fetchone()
        return int(row[0])


@dataclass(frozen=True)
class RowBatches:
    """The rows of a relation in batches of a million; can be iterated repeatedly."""

    connection: duckdb.DuckDBPyConnection
    relation: str

    def __iter__(self) -> Iterator[pa.Table]:
        import pyarrow as pa

        for batch in self.connection.execute(f"FROM {self.relation}").to_arrow_reader(_BATCH_ROWS):
            yield pa.Table.from_batches([batch])
