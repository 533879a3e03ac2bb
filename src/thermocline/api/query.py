"""Execute one SELECT and return its rows with their provenance."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.api.rendering import MAX_ROWS, html_table, text_table
from thermocline.engine.frames import ArrowConvertible
from thermocline.engine.sql_errors import describe_parse_error
from thermocline.errors import BadInput, NotFound
from thermocline.lake.metadata import TableState
from thermocline.lake.naming import validate_table_name
from thermocline.lake.time_travel import Moment, resolve_snapshot

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlglot import exp

    from thermocline.lake import Lake


@dataclass(frozen=True)
class Result(ArrowConvertible):
    """Rows in canonical Arrow form, with the engine, snapshots and times that produced them."""

    table: pa.Table = field(repr=False)
    provenance: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        """Column names."""
        return list(self.table.column_names)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """All rows as tuples of Python values."""
        columns = [column.to_pylist() for column in self.table.columns]
        return list(zip(*columns, strict=True)) if columns else []

    def to_arrow(self) -> pa.Table:
        """Return the rows as an Arrow table."""
        return self.table

    def as_dict(self) -> dict[str, Any]:
        """Return columns, rows and provenance as JSON values."""
        from thermocline.engine import arrow

        types = [str(field_.type) for field_ in self.table.schema]
        columns = [{"name": n, "type": t} for n, t in zip(self.columns, types, strict=True)]
        rows = [list(row.values()) for row in arrow.to_json_rows(self.table)]
        return {"columns": columns, "rows": rows, "provenance": dict(self.provenance)}

    def __str__(self) -> str:
        return text_table(self.columns, self._first_rows(), self.table.num_rows)

    def _repr_html_(self) -> str:
        return html_table(self.columns, self._first_rows(), self.table.num_rows)

    def _first_rows(self) -> list[tuple[Any, ...]]:
        return Result(self.table.slice(0, MAX_ROWS), {}).rows


def execute_query(
    lake: Lake, sql: str, *, at: Moment | None = None, engine: str = "auto"
) -> Result:
    """Execute one SELECT on DuckDB or Spark; the result names the snapshot of every table."""
    if engine not in {"auto", "duckdb", "spark"}:
        raise BadInput(f"There is no engine {engine!r}.", "Use auto, duckdb or spark.")
    chosen = "spark" if engine == "spark" else "duckdb"
    from thermocline.lake.schema import columns_at
    from thermocline.sql.predicate_columns import find_predicate_columns

    started = time.perf_counter()
    query: _ExecutableQuery = _SparkQuery(sql) if chosen == "spark" else _DuckDBQuery(sql)
    states = {name: lake.state(validate_table_name(name)) for name in query.tables}
    snapshots = _resolve_snapshots(states, at)
    columns = {name: columns_at(state, snapshots[name]) for name, state in states.items()}
    filtered = find_predicate_columns(query.tree, query.tables, columns)
    query.bind(lake, states, snapshots)
    parsed = time.perf_counter()
    rows = query.run(lake)
    done = time.perf_counter()
    for name, state in states.items():
        count = state.snapshot(snapshots[name]).count
        lake.read_log.record(
            name, count("total-data-files"), count("total-files-size"), filtered[name]
        )
    tables = {
        name: {
            "snapshot": str(snapshots[name]),
            "committed_at": state.snapshot(snapshots[name]).committed_at.isoformat(),
            "bytes": state.snapshot(snapshots[name]).count("total-files-size"),
        }
        for name, state in states.items()
    }
    milliseconds = {"parse": _elapsed_ms(started, parsed), "execute": _elapsed_ms(parsed, done)}
    return Result(rows, {"engine": chosen, "tables": tables, "ms": milliseconds})


class _ExecutableQuery(Protocol):
    """A query for one engine: parsed, bound to snapshots of its tables, then executed."""

    @property
    def tree(self) -> exp.Query:
        """The parsed query."""
        ...

    @property
    def tables(self) -> Mapping[str, Sequence[exp.Table]]:
        """The references to each table that the query reads, by "layer.name"."""
        ...

    def bind(
        self, lake: Lake, states: Mapping[str, TableState], snapshots: Mapping[str, int]
    ) -> None:
        """Bind each table to a snapshot."""

    def run(self, lake: Lake) -> pa.Table:
        """Execute the query and return its rows."""
        ...


class _DuckDBQuery:
    """DuckDB's dialect with all its functions: the caller owns the lake."""

    def __init__(self, sql: str) -> None:
        self.tree = _parse(sql)
        self.tables = _find_table_references(self.tree)

    def bind(
        self, lake: Lake, states: Mapping[str, TableState], snapshots: Mapping[str, int]
    ) -> None:
        from thermocline.engine.view_rewrite import private_view_name, replace_with_view

        for number, (name, state) in enumerate(states.items()):
            view = private_view_name(f"query_{number}")
            lake.duck.view(view, state.metadata_location, snapshots[name])
            for reference in self.tables[name]:
                replace_with_view(reference, view)

    def run(self, lake: Lake) -> pa.Table:
        import duckdb

        from thermocline.engine import duck_sql

        duck_sql.work_around_bugs(self.tree)
        try:
            return lake.duck.query(self.tree.sql(dialect="duckdb"))
        except duckdb.Error as error:
            raise _describe_failure(error) from error


class _SparkQuery:
    """DuckDB's dialect, translated for Spark: the meaning is kept, or the query is refused."""

    def __init__(self, sql: str) -> None:
        from thermocline.sql.guard import guard

        self._query = guard(sql)
        self.tree = self._query.tree
        self.tables = self._query.tables
        self._text = ""

    def bind(
        self, lake: Lake, states: Mapping[str, TableState], snapshots: Mapping[str, int]
    ) -> None:
        from thermocline.engine.view_rewrite import private_view_name
        from thermocline.lake.schema import columns_at
        from thermocline.sql.translate import Untranslatable, translate

        views = {name: private_view_name(f"query_{number}") for number, name in enumerate(states)}
        columns = {name: columns_at(state, snapshots[name]) for name, state in states.items()}
        try:
            self._text = translate(self._query, "spark", views, columns)
        except Untranslatable as error:
            raise BadInput(error.cause, "Use DuckDB: `--engine duckdb`.") from error
        for name, view in views.items():
            lake.spark.translated.view(view, name, snapshots[name])

    def run(self, lake: Lake) -> pa.Table:
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            return lake.spark.translated.query(self._text)
        except (PySparkException, Py4JJavaError) as error:
            raise _describe_failure(error) from error


def _elapsed_ms(start: float, end: float) -> float:
    return round((end - start) * 1000, 2)


def _parse(sql: str) -> exp.Query:
    import sqlglot
    from sqlglot import errors, exp

    try:
        statements = [s for s in sqlglot.parse(sql, dialect="duckdb") if s is not None]
    except (errors.ParseError, errors.TokenError, RecursionError) as error:
        raise BadInput(
            f"The query cannot be parsed: {describe_parse_error(error)}.",
            "Fix the SQL (DuckDB's dialect).",
        ) from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise BadInput(
            "A query is exactly one SELECT.", "Send one SELECT; `thermo query` runs nothing else."
        )
    return statements[0]


def _find_table_references(query: exp.Query) -> dict[str, list[exp.Table]]:
    from thermocline.transform.models import find_table_references

    found: dict[str, list[exp.Table]] = {}
    for reference in find_table_references(query):
        if not reference.db or reference.catalog:
            raise NotFound(
                f"There is no table {reference.sql('duckdb')}.",
                "Write tables as layer.name; `thermo tables` lists them.",
            )
        # Table names are lower-case; a query may spell them in any case.
        found.setdefault(f"{reference.db}.{reference.name}".lower(), []).append(reference)
    return found


def _resolve_snapshots(states: Mapping[str, TableState], at: Moment | None) -> dict[str, int]:
    """Resolve each table's snapshot; `at` a ref that only some tables have means main elsewhere."""
    named = isinstance(at, str) and any(at in state.refs for state in states.values())
    return {
        name: resolve_snapshot(state, None if named and at not in state.refs else at)
        for name, state in states.items()
    }


def _describe_failure(error: Exception) -> BadInput:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # An error raised in the JVM comes as a stack trace; Spark's own errors have a [CONDITION].
    causes = (line.partition(": ")[2] for line in lines if line.startswith("Caused by:"))
    first = lines[0] if lines else type(error).__name__
    text = next((line for line in causes if "[" in line), first)
    return BadInput(f"The query failed: {text}", "Fix the SQL; `thermo show TABLE` lists columns.")
