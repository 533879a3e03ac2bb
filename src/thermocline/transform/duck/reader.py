"""Read a step's sources as DuckDB queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Column
from thermocline.engine.duck_types import quote_identifier, to_ddl
from thermocline.transform import target_parts
from thermocline.transform.duck.conform import conform_rows
from thermocline.transform.duck.session import Session
from thermocline.transform.inputs import SourceSpan
from thermocline.transform.models import DIALECT, Model
from thermocline.transform.target_parts import OLD, TouchedParts
from thermocline.transform.write_rules import written_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from sqlglot import exp

_TIMES = {"DATE", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE"}
_LITERALS = (str, int, date)


class DuckReader:
    """Reads tables as queries over their files."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def read_snapshot(self, table: str, snapshot: int) -> str:
        """Return a table's rows at a snapshot."""
        return self._session.scan(table, snapshot)

    def read_appended(self, span: SourceSpan) -> str:
        """Return the rows of the files that a span's appends added, file by file."""
        if span.start is None or not span.has_changed:
            rows = self.read_snapshot(span.table, span.end)
            return rows if span.has_changed else f"{rows} LIMIT 0"
        lake = self._session.lake
        between = lake.state(span.table).between(span.start, span.end) or []
        appends = [snapshot.id for snapshot in between if snapshot.operation == "append"]
        added = _AppendedRows(lake.iceberg(span.table), span.end, appends)
        return f"SELECT * FROM {self._session.register(added)}"

    def add_changed(self, rows: pa.Table, table: str) -> str:
        """Register images of changed rows."""
        return f"SELECT * FROM {self._session.register(rows)}"

    def add_old_images(self, rows: str, changed: str) -> str:
        """Return the rows together with the old images among the changed rows."""
        old = f"SELECT * EXCLUDE ({OLD}) FROM ({changed}) WHERE {OLD}"
        return f"({rows}) UNION ALL BY NAME ({old})"

    def filter_values(
        self, rows: str, column: str, values: Sequence[Any], *, days: bool
    ) -> str | None:
        """Return the rows of some values or days of a column, by comparisons that skip files."""
        kind = str(self._session.describe(rows).get(column, ""))
        if None in values or (days and kind not in _TIMES):
            return None
        name = quote_identifier(column)
        if days:
            runs = target_parts.merge_days(sorted(values))
            conditions = [
                f"({name} >= {_day_literal(low, kind)} "
                f"AND {name} < {_day_literal(high + timedelta(days=1), kind)})"
                for low, high in runs
            ]
        elif all(isinstance(value, _LITERALS) for value in values):
            conditions = [f"{name} IN ({', '.join(map(_literal, values))})"]
        else:
            return None
        return f"SELECT * FROM ({rows}) WHERE {' OR '.join(conditions)}"

    def create_view(self, rows: str) -> str:
        """Create a temporary view."""
        return self._session.create_view(rows)

    def run_query(self, query: exp.Query) -> str:
        """Run a query of the models' dialect, which is DuckDB's."""
        from sqlglot import exp

        from thermocline.engine import duck_sql

        duck_sql.work_around_bugs(query)
        text = query.sql(dialect=DIALECT)
        chosen = self._session.lake.settings.transform.engine == "auto"
        if chosen and any(join.side for join in query.find_all(exp.Join)):
            self._session.require_fast_joins(text)
        return text

    def find_parts(
        self, rows: str, model: Model, columns: Sequence[str], most: int
    ) -> set[tuple[Any, ...]]:
        """Return the parts that rows lie in."""
        columns_sql = ", ".join(_part_expression(model, name) for name in columns)
        found = self._session.fetch(f"SELECT DISTINCT {columns_sql} FROM ({rows}) LIMIT {most + 1}")
        return set(found)

    def filter_parts(self, rows: str, model: Model, touched: TouchedParts) -> str:
        """Return the rows of the touched parts."""
        parts = self._session.materialize(self.register_parts(model, touched))
        same = " AND ".join(
            f"{_part_expression(model, name, 'r')} IS NOT DISTINCT FROM t.{quote_identifier(name)}"
            for name in touched.columns
        )
        return f"SELECT r.* FROM ({rows}) AS r SEMI JOIN {parts} AS t ON {same}"

    def sample_rows(self, rows: str, share: float, most: int) -> str:
        """Return a random share of rows."""
        percent = min(100.0, share * 100)
        sample = f"SELECT * FROM ({rows}) USING SAMPLE {percent} PERCENT (bernoulli)"
        return f"SELECT * FROM ({sample}) LIMIT {most}"

    def find_differing(
        self, rows: str, registered: str, model: Model, columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """Return the parts in which a model's rows differ from its table's rows."""
        values = ", ".join(map(_comparable_value, written_columns(model.contract)))
        computed = self._session.materialize(
            f"SELECT {values} FROM ({conform_rows(self._session, rows, model.contract)})"
        )
        there = self._session.materialize(f"SELECT {values} FROM ({registered})")
        columns_sql = ", ".join(_part_expression(model, name) for name in columns)
        both = (
            f"(FROM {computed} EXCEPT ALL FROM {there}) UNION ALL "
            f"(FROM {there} EXCEPT ALL FROM {computed})"
        )
        return sorted(self._session.fetch(f"SELECT DISTINCT {columns_sql} FROM ({both})"), key=repr)

    def register_parts(self, model: Model, touched: TouchedParts) -> str:
        """Register the parts as rows, in the types of the target's columns."""
        import pyarrow as pa

        columns, kinds = {}, {}
        for position, name in enumerate(touched.columns):
            column = model.contract.column(name)
            assert column is not None, name
            day = target_parts.is_by_day(model, name)
            kinds[name] = "DATE" if day else to_ddl(column.type)
            columns[name] = pa.array([value[position] for value in touched.values])
        registered = self._session.register(pa.table(columns))
        columns_sql = ", ".join(
            f"CAST({quote_identifier(n)} AS {kind}) AS {quote_identifier(n)}"
            for n, kind in kinds.items()
        )
        return f"SELECT {columns_sql} FROM {registered}"

    def close(self) -> None:
        """Drop the views."""
        self._session.clear()


def _comparable_value(column: Column) -> str:
    """Return a column's value, without last digits of a sum that depend on the row order."""
    real = str(column.type) in {"float", "double"}
    name = quote_identifier(column.name)
    return f"CAST({name} AS FLOAT) AS {name}" if real else name


def _part_expression(model: Model, name: str, alias: str | None = None) -> str:
    column = f"{alias}.{quote_identifier(name)}" if alias else quote_identifier(name)
    return f"CAST({column} AS DATE)" if target_parts.is_by_day(model, name) else column


def _day_literal(day: date, kind: str) -> str:
    return f"CAST('{day.isoformat()}' AS {kind})"


def _literal(value: str | int | date) -> str:
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return _day_literal(value, "DATE")


class _AppendedRows:
    """The rows of all files that some snapshots added; each scan reads them again, in parts.

    It is an Arrow stream interface, because an Arrow reader could be consumed only once.
    """

    def __init__(self, table: Table, end: int, snapshots: Sequence[int]) -> None:
        from thermocline.lake.data_file_reader import DataFileReader
        from thermocline.lake.read_schema import comparison_schema, schema_at

        self._table = table
        self._snapshots = snapshots
        self._reader = DataFileReader(table, comparison_schema(schema_at(table, end)))
        self.schema = self._reader.empty.schema

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self.schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[pa.RecordBatch]:
        import numpy as np

        from thermocline.lake.filediff import added_files

        for file in added_files(self._table, self._snapshots):
            for _, rows in self._reader.live_parts(file, np.zeros(0, dtype=np.int64)):
                yield from rows.to_batches()
