"""What a step reads: its sources at fixed snapshots, or only what changed in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Write
from thermocline.engine.spark import CATALOG
from thermocline.errors import Permanent, ThermoclineError
from thermocline.lake.changes import changes, only_appends
from thermocline.transform import parts
from thermocline.transform.declare import How
from thermocline.transform.models import Model, table_references
from thermocline.transform.parts import Touched

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from sqlglot import exp

    from thermocline.lake import Lake

CHANGE = "_change"


@dataclass(frozen=True)
class Span:
    """A source between the snapshot last read (None: never) and the one to read now."""

    table: str
    start: int | None
    end: int


@dataclass
class Inputs:
    """The sources of one step. Views that it makes in Spark are dropped by `close`."""

    lake: Lake
    model: Model
    spans: Mapping[str, Span]
    _views: list[str] = field(default_factory=list)
    _deltas: dict[str, pa.Table] = field(default_factory=dict)

    def everything(self) -> DataFrame:
        """The model's rows computed from all rows of its sources."""
        if self.model.is_sql:
            return self._select(self.model.query(), self._full_views())
        return self._call({name: self._whole(read.table, read.how) for name, read in self._reads()})

    def new_rows(self) -> DataFrame | None:
        """The model's rows computed from new input rows alone; None if that is not enough.

        It is not when a source lost or changed rows: a row-by-row model cannot take back what it
        gave for them before.
        """
        moved = [span for span in self.spans.values() if span.start != span.end]
        if self.model.is_sql:
            if not all(self._appended(span) for span in moved):
                return None
            frames = {span.table: self._appended_rows(span) for span in self.spans.values()}
            return self._select(self.model.query(), self._register(frames))
        return self._call({n: self._for_python(read.table, read.how) for n, read in self._reads()})

    def touched(self, columns: Sequence[str], most: int) -> Touched | None:
        """Which values of the target columns the changes can touch; None when more than `most`."""
        from thermocline.transform import delta

        found: set[tuple[Any, ...]] = set()
        moved = [span for span in self.spans.values() if span.start != span.end]
        query = self.model.query()
        for span in moved:
            if not self._delta(span).num_rows:
                continue
            for widened, occurrence in delta.substitutions(query, span.table):
                named = self._named(widened, occurrence, span, columns)
                if named is None:
                    named = self._asked(widened, occurrence, span, moved, columns, most)
                found |= named
                if len(found) > most:
                    return None
        return Touched(tuple(columns), tuple(sorted(found, key=repr)))

    def _named(
        self, query: exp.Query, occurrence: exp.Table, span: Span, columns: Sequence[str]
    ) -> set[tuple[Any, ...]] | None:
        """The parts that changed rows name themselves; None where the query must be asked."""
        from thermocline.transform.narrow import reach_of

        reach = reach_of(query, occurrence, columns[0]) if len(columns) == 1 else None
        if reach is None or reach.column not in self._delta(span).column_names:
            return None
        days = reach.day or parts.by_day(self.model, columns[0])
        return parts.named(self._delta(span)[reach.column], days=days)

    def _asked(
        self,
        query: exp.Query,
        occurrence: exp.Table,
        span: Span,
        moved: Sequence[Span],
        columns: Sequence[str],
        most: int,
    ) -> set[tuple[Any, ...]]:
        """The parts that the query gives for changed rows, or some more than `most` of them."""
        from thermocline.transform import delta

        sharper = delta.differing(query, occurrence, columns)
        chosen = query if sharper is None else sharper
        rows = self._substituted(chosen, occurrence, span, moved)
        expressions = [parts.expression(self.model, name) for name in columns]
        distinct = rows.selectExpr(*expressions).distinct().limit(most + 1)
        return {tuple(row) for row in distinct.collect()}

    def only(self, touched: Touched) -> DataFrame:
        """The model's rows of the touched parts, from the source rows that can reach them."""
        query = self.model.query()
        self._narrow(query, touched)
        rows = self._select(query, self._full_views())
        return rows.where(self.condition(touched))

    def _narrow(self, query: exp.Query, touched: Touched) -> None:
        """Have the query read only rows of the touched parts where its text says which they are."""
        from thermocline.transform.narrow import reaches

        if self.model.contract.write is not Write.PARTITIONS or len(touched.columns) != 1:
            return
        values = [value for (value,) in touched.values]
        by_day = parts.by_day(self.model, touched.columns[0])
        for reach in reaches(query, touched.columns[0]):
            span = self.spans[f"{reach.reference.db}.{reach.reference.name}"]
            frame = self._read(span.table, span.end)
            condition = parts.within(frame, reach.column, values, by_day or reach.day)
            if condition is not None:
                view = self._register({span.table: frame.where(condition)})[span.table]
                _replace(reach.reference, view)

    def condition(self, touched: Touched) -> Column:
        """The condition on the target that selects exactly the touched parts.

        A list of literals rather than a join, because Spark pushes it down through the model's
        aggregates and windows to the scans.
        """
        return parts.condition(self.model, touched)

    def close(self) -> None:
        """Drop the views."""
        for view in self._views:
            self.lake.spark.session.catalog.dropTempView(view)
        self._views.clear()

    def _reads(self) -> list[tuple[str, Any]]:
        return list(self.model.reads.items())

    def _call(self, frames: Mapping[str, DataFrame]) -> DataFrame:
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame as Frame

        path = f"models/{self.model.contract.layer}/{self.model.path.name}"
        try:
            rows = self.model.function()(**frames)
        except (ThermoclineError, PySparkException):
            raise
        except Exception as error:
            # A user's code may fail in any way; where it failed is what its author needs.
            line = next((f.lineno for f in reversed(extract_tb(error.__traceback__))
                         if f.filename == str(self.model.path)), 0)  # fmt: skip
            raise Permanent(
                f"{path}:{line}  {type(error).__name__}: {error}",
                "Mend the model. Nothing was published.",
            ) from error
        if not isinstance(rows, Frame):
            raise Permanent(
                f"{path}  it gave a {type(rows).__name__}, not a DataFrame.",
                "Return the rows as a DataFrame. Nothing was published.",
            )
        return rows

    def _select(self, query: exp.Query, views: Mapping[str, str]) -> DataFrame:
        """Run a query in Spark with its tables replaced by views."""
        from sqlglot import exp

        for reference in table_references(query):
            if reference.db:
                _replace(reference, views[f"{reference.db}.{reference.name}"])
        for column in query.find_all(exp.Column):
            column.set("db", None)
        return self.lake.spark.sql(query.sql(dialect="spark"))

    def _full_views(self) -> dict[str, str]:
        return self._register({s.table: self._read(s.table, s.end) for s in self.spans.values()})

    def _register(self, frames: Mapping[str, DataFrame]) -> dict[str, str]:
        views = {}
        for table, frame in frames.items():
            view = f"_tc_{table.replace('.', '_')}_{len(self._views)}"
            frame.createOrReplaceTempView(view)
            self._views.append(view)
            views[table] = view
        return views

    def _read(self, table: str, snapshot: int) -> DataFrame:
        return self.lake.spark.read(table, snapshot)

    def _appended(self, span: Span) -> bool:
        return only_appends(self.lake.state(span.table), span.start, span.end)

    def _appended_rows(self, span: Span) -> DataFrame:
        if span.start is None:
            return self._read(span.table, span.end)
        reader = self.lake.spark.session.read.option("start-snapshot-id", str(span.start))
        return reader.option("end-snapshot-id", str(span.end)).table(f"{CATALOG}.{span.table}")

    def _for_python(self, table: str, how: How) -> DataFrame:
        from pyspark.sql import functions as F

        span = self.spans[table]
        if how is not How.CHANGES:
            return self._read(table, span.end)
        if span.start == span.end:
            return self._read(table, span.end).limit(0).withColumn(CHANGE, F.lit("insert"))
        if self._appended(span):
            return self._appended_rows(span).withColumn(CHANGE, F.lit("insert"))
        return self._changed_rows(span)

    def _whole(self, table: str, how: How) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self._read(table, self.spans[table].end)
        return rows.withColumn(CHANGE, F.lit("insert")) if how is How.CHANGES else rows

    def _changed_rows(self, span: Span) -> DataFrame:
        """Inserted and updated rows as they are now, deleted ones as they were."""
        import pyarrow as pa

        key = self.lake.state(span.table).schema.get("identifier-field-ids") or ()
        names = {f["id"]: f["name"] for f in self.lake.state(span.table).schema["fields"]}
        found = changes(
            self.lake.iceberg(span.table), span.start, span.end, key=[names[i] for i in key]
        )
        kinds = (("insert", found.inserts), ("update", found.after), ("delete", found.deletes))
        marked = [
            rows.append_column(CHANGE, pa.array([kind] * rows.num_rows, pa.string()))
            for kind, rows in kinds
        ]
        return self._frame(pa.concat_tables(marked), span.table, {CHANGE: "string"})

    def _delta(self, span: Span) -> pa.Table:
        """Old and new images of the rows that changed, in the columns that the model reads."""
        import pyarrow as pa

        from thermocline.transform import delta

        if span.table not in self._deltas:
            table = self.lake.iceberg(span.table)
            available = [f["name"] for f in self.lake.state(span.table).schema["fields"]]
            columns = delta.columns_read(self.model.query(), available) or available[:1]
            found = changes(table, span.start, span.end, columns=columns)
            rows = pa.concat_tables([found.inserts, found.deletes])
            old = pa.array([False] * found.inserts.num_rows + [True] * found.deletes.num_rows)
            self._deltas[span.table] = rows.append_column(delta.OLD, old)
        return self._deltas[span.table]

    def _substituted(
        self, query: exp.Query, occurrence: exp.Table, span: Span, moved: Sequence[Span]
    ) -> DataFrame:
        from thermocline.transform.delta import OLD

        deltas = {s.table: self._delta_frame(s) for s in moved}
        changed = self._register({span.table: deltas[span.table]})
        _replace(occurrence, changed[span.table])
        frames = {}
        for other in self.spans.values():
            frame = self._read(other.table, other.end)
            if other.table in deltas:
                gone = deltas[other.table].where(OLD).drop(OLD)
                frame = frame.unionByName(gone, allowMissingColumns=True)
            frames[other.table] = frame
        return self._select(query, self._register(frames))

    def _delta_frame(self, span: Span) -> DataFrame:
        from thermocline.transform.delta import OLD

        return self._frame(self._delta(span), span.table, {OLD: "boolean"})

    def _frame(self, rows: pa.Table, table: str, extra: Mapping[str, str]) -> DataFrame:
        """Arrow rows of a table as a frame with the table's own Spark types."""
        from pyspark.sql.types import StructType

        session = self.lake.spark.session
        known = {f.name: f for f in session.table(f"{CATALOG}.{table}").schema.fields}
        schema = StructType()
        for name in rows.column_names:
            if name in extra:
                schema.add(name, extra[name], True)
            else:
                schema.add(name, known[name].dataType, True)
        return self.lake.spark.frame(rows, schema)


def _replace(reference: exp.Table, view: str) -> None:
    """Point a table reference to a view, keeping the name by which the query calls it."""
    from sqlglot import exp

    if not reference.alias:
        reference.set("alias", exp.TableAlias(this=exp.to_identifier(reference.name)))
    reference.set("this", exp.to_identifier(view))
    reference.set("db", None)
