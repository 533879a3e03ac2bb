"""The answer to a query: rows, and where they came from."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from thermocline.engine.unread import said_of
from thermocline.errors import BadInput, NotFound
from thermocline.lake.metadata import TableState
from thermocline.lake.moments import Moment, resolve
from thermocline.lake.names import table_name

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    from sqlglot import exp

    from thermocline.lake import Lake

SHOWN_ROWS = 20


@dataclass(frozen=True)
class Result:
    """Rows in the canonical Arrow form, with the engine, snapshots and time that gave them."""

    table: pa.Table = field(repr=False)
    provenance: Mapping[str, Any]

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self.table.column_names)

    @property
    def rows(self) -> list[tuple[Any, ...]]:
        """All rows as Python values."""
        columns = [column.to_pylist() for column in self.table.columns]
        return list(zip(*columns, strict=True)) if columns else []

    def to_arrow(self) -> pa.Table:
        """As an Arrow table."""
        return self.table

    def to_pandas(self) -> pd.DataFrame:
        """As a pandas frame."""
        frame: pd.DataFrame = self.table.to_pandas()
        return frame

    def to_polars(self) -> pl.DataFrame:
        """As a polars frame."""
        import polars as pl

        frame = pl.from_arrow(self.table)
        assert isinstance(frame, pl.DataFrame)
        return frame

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        from thermocline.engine import arrow

        types = [str(field_.type) for field_ in self.table.schema]
        columns = [{"name": n, "type": t} for n, t in zip(self.columns, types, strict=True)]
        rows = [list(row.values()) for row in arrow.json_rows(self.table)]
        return {"columns": columns, "rows": rows, "provenance": dict(self.provenance)}

    def _repr_html_(self) -> str:
        return html_table(self.columns, self.rows[:SHOWN_ROWS], len(self.rows))


def html_table(columns: list[str], rows: list[tuple[Any, ...]], total: int) -> str:
    """Rows as a table for a notebook; every value escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in row) + "</tr>"
        for row in rows
    )
    more = f"<p>{total:,} rows, the first {len(rows)} shown</p>" if total > len(rows) else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def answer(lake: Lake, sql: str, *, at: Moment | None = None, engine: str = "auto") -> Result:
    """Answer one SELECT from DuckDB or Spark, every table at a snapshot that the answer names."""
    if engine not in {"auto", "duckdb", "spark"}:
        raise BadInput(f"There is no engine {engine!r}.", "Use auto, duckdb or spark.")
    from thermocline.engine.relations import private, read_view

    began = time.perf_counter()
    query = _parse(sql)
    references = _references(query)
    states = {name: lake.state(table_name(name)) for name in references}
    snapshots = _snapshots(states, at)
    chosen = "spark" if engine == "spark" else "duckdb"
    for number, (name, state) in enumerate(states.items()):
        view = private(f"query_{number}")
        if chosen == "spark":
            lake.spark.view(view, name, snapshots[name])
        else:
            lake.duck.view(view, state.metadata_location, snapshots[name])
        for reference in references[name]:
            read_view(reference, view)
    parsed = time.perf_counter()
    rows = _run(lake, query, chosen)
    done = time.perf_counter()
    tables = {
        name: {
            "snapshot": str(snapshots[name]),
            "committed_at": state.snapshot(snapshots[name]).committed_at.isoformat(),
            "bytes": state.snapshot(snapshots[name]).count("total-files-size"),
        }
        for name, state in states.items()
    }
    milliseconds = {"parse": _ms(began, parsed), "execute": _ms(parsed, done)}
    return Result(rows, {"engine": chosen, "tables": tables, "ms": milliseconds})


def _ms(start: float, end: float) -> float:
    return round((end - start) * 1000, 2)


def _parse(sql: str) -> exp.Query:
    import sqlglot
    from sqlglot import errors, exp

    try:
        statements = [s for s in sqlglot.parse(sql, dialect="duckdb") if s is not None]
    except (errors.ParseError, errors.TokenError, RecursionError) as error:
        raise BadInput(
            f"The query cannot be read: {said_of(error)}.", "Mend the SQL (DuckDB's dialect)."
        ) from error
    if len(statements) != 1 or not isinstance(statements[0], exp.Query):
        raise BadInput(
            "A query is exactly one SELECT.", "Send other statements one by one, elsewhere."
        )
    return statements[0]


def _references(query: exp.Query) -> dict[str, list[exp.Table]]:
    from thermocline.transform.models import table_references

    found: dict[str, list[exp.Table]] = {}
    for reference in table_references(query):
        if not reference.db or reference.catalog:
            raise NotFound(
                f"There is no table {reference.sql('duckdb')}.",
                "Write tables as layer.name; `thermo tables` lists them.",
            )
        # Tables are called by lower-case names; whoever asks may write them in any case.
        found.setdefault(f"{reference.db}.{reference.name}".lower(), []).append(reference)
    return found


def _snapshots(states: Mapping[str, TableState], at: Moment | None) -> dict[str, int]:
    """Each table's snapshot. A branch or tag that only some tables have means main elsewhere."""
    named = isinstance(at, str) and any(at in state.refs for state in states.values())
    return {
        name: resolve(state, None if named and at not in state.refs else at)
        for name, state in states.items()
    }


def _run(lake: Lake, query: exp.Query, engine: str) -> pa.Table:
    if engine == "spark":
        from pyspark.errors import PySparkException

        from thermocline.engine import spark_sql

        _only_known_functions(lake, query)
        try:
            return lake.spark.query(spark_sql.written(query))
        except PySparkException as error:
            raise _refused(error) from error
    import duckdb

    from thermocline.engine import duck_sql

    duck_sql.mended(query)
    try:
        return lake.duck.query(query.sql(dialect="duckdb"))
    except duckdb.Error as error:
        raise _refused(error) from error


def _only_known_functions(lake: Lake, query: exp.Query) -> None:
    """Refuse what DuckDB's dialect does not have: Spark's own calls any Java, by `java_method`."""
    from sqlglot import exp

    names = {node.name.lower() for node in query.find_all(exp.Anonymous, exp.AnonymousAggFunc)}
    if not names:
        return
    listed = lake.duck.query("SELECT DISTINCT lower(function_name) AS name FROM duckdb_functions()")
    for name in sorted(names.difference(listed.column("name").to_pylist())):
        raise BadInput(
            f"There is no function {name[:60]} in DuckDB's dialect.",
            "Write it otherwise; queries are in that dialect for every engine.",
        )


def _refused(error: Exception) -> BadInput:
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return BadInput(
        f"The query failed: {text.strip()}", "Mend the SQL; `thermo show TABLE` lists columns."
    )
