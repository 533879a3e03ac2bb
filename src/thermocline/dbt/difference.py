"""How rows that dbt made differ from a table, and the least that has to be written for it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.engine.duck_types import ddl, quoted

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

    from thermocline.contract.definition import Column

_FILE = "filename"
"""DuckDB's own column of a scan, which a table's column of that name would hide."""

_PIECE = 1_000_000
"""Rows that are written to one file, and held in memory at once."""


@dataclass(frozen=True)
class Difference:
    """Which data files leave a table, or all of them (None), and the relation of rows that come."""

    added: int
    removed: int
    leaving: tuple[str, ...] | None
    coming: str

    @property
    def nothing(self) -> bool:
        """Whether the table holds these very rows."""
        return not self.added and not self.removed


class Comparison:
    """Compares one relation with the table it is to become, both as bags of rows.

    A file leaves when it holds a row that is gone; its other rows are written anew. Files none of
    whose rows are gone stay, so that a few new rows are an append of just these.
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
        names = [quoted(column.name) for column in columns]
        self._same = " AND ".join(f"held.{n} IS NOT DISTINCT FROM _gone.{n}" for n in names)
        self._hidden = any(column.name.lower() == _FILE for column in columns)
        self._cast = ", ".join(
            f"CAST({quoted(c.name)} AS {ddl(c.type)}) AS {quoted(c.name)}" for c in columns
        )
        # A view is asked once: it may be slow, or give other rows the next time.
        kind = "TABLE" if computed else "VIEW"
        self._run("DROP VIEW IF EXISTS _view; DROP TABLE IF EXISTS _table")
        self._made = f"_{kind.lower()}"
        self._run(f"CREATE TEMP {kind} {self._made} AS SELECT {self._cast} FROM {made}")

    def with_nothing(self) -> Difference:
        """For a table that is new."""
        return Difference(self._count(self._made), 0, (), self._made)

    def with_another_shape(self, scan: str) -> Difference:
        """For a table that had other columns: all of it is written anew."""
        return Difference(self._count(self._made), self._count(scan), None, self._made)

    def with_table(self, scan: str) -> Difference:
        """For a table of the same columns, read by a scan of its files."""
        old = f"SELECT {self._cast} FROM {scan}"
        self._keep("_gone", f"{old} EXCEPT ALL FROM {self._made}")
        removed = self._count("_gone")
        if self._hidden:
            self._keep("_coming", f"FROM {self._made} EXCEPT ALL {old}")
            return Difference(self._count("_coming"), removed, None, self._made)
        self._keep(
            "_leaving",
            f"SELECT DISTINCT {_FILE} FROM (SELECT {self._cast}, {_FILE} FROM {scan}) AS held "
            f"SEMI JOIN _gone ON {self._same}",
        )
        staying = f"{old} WHERE {_FILE} NOT IN (FROM _leaving)"
        self._keep("_coming", f"FROM {self._made} EXCEPT ALL {staying}")
        moved = self._count(f"{scan} WHERE {_FILE} IN (FROM _leaving)") - removed
        leaving = tuple(path for (path,) in self._run("FROM _leaving ORDER BY 1").fetchall())
        return Difference(self._count("_coming") - moved, removed, leaving, "_coming")

    def _keep(self, name: str, query: str) -> None:
        self._run(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}")

    def _count(self, relation: str) -> int:
        row: Any = self._run(f"SELECT count(*) FROM {relation}").fetchone()
        return int(row[0])


@dataclass(frozen=True)
class Pieces:
    """The rows of a relation, a million at a time, as often as they are asked for."""

    connection: duckdb.DuckDBPyConnection
    relation: str

    def __iter__(self) -> Iterator[pa.Table]:
        import pyarrow as pa

        for batch in self.connection.execute(f"FROM {self.relation}").to_arrow_reader(_PIECE):
            yield pa.Table.from_batches([batch])
