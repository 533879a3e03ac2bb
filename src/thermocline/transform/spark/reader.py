"""A step's sources as Spark frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Column
from thermocline.engine.spark import CATALOG
from thermocline.engine.spark_types import quote_identifier
from thermocline.engine.view_rewrite import private_view_name
from thermocline.transform import target_parts
from thermocline.transform.inputs import MOST_COMPARED, Span
from thermocline.transform.models import Model
from thermocline.transform.spark.conform import shaped
from thermocline.transform.target_parts import OLD, Touched
from thermocline.transform.write_rules import written_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from thermocline.lake import Lake

_LETTERS = ("İΣ", "iσ")


class SparkReader:
    """Reads tables as frames. Views that it makes in Spark are dropped by `close`."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._views: list[str] = []

    def at(self, table: str, snapshot: int) -> DataFrame:
        """A table's rows at a snapshot."""
        return self._lake.spark.read(table, snapshot)

    def appended(self, span: Span) -> DataFrame:
        """The rows of the files that a span's appends added."""
        if span.start is None:
            return self.at(span.table, span.end)
        reader = self._lake.spark.session.read.option("start-snapshot-id", str(span.start))
        return reader.option("end-snapshot-id", str(span.end)).table(f"{CATALOG}.{span.table}")

    def changed(self, rows: pa.Table, table: str) -> DataFrame:
        """Images of changed rows, in the table's own types."""
        return frame(self._lake, rows, table, {OLD: "boolean"})

    def with_old(self, rows: DataFrame, changed: DataFrame) -> DataFrame:
        """Rows, and the old images among the changed ones."""
        gone = changed.where(OLD).drop(OLD)
        return rows.unionByName(gone, allowMissingColumns=True)

    def within(
        self, rows: DataFrame, column: str, values: Sequence[Any], *, days: bool
    ) -> DataFrame | None:
        """The rows of some values or days of a column."""
        condition = target_parts.within(rows, column, values, days)
        return None if condition is None else rows.where(condition)

    def view(self, rows: DataFrame) -> str:
        """A temporary view."""
        name = private_view_name(f"{id(self)}_{len(self._views)}")
        rows.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    def select(self, query: exp.Query) -> DataFrame:
        """A query of the models' dialect, in Spark's own."""
        from thermocline.engine.spark_sql import to_sql

        return self._lake.spark.sql(to_sql(meant(query)))

    def target_parts(
        self, rows: DataFrame, model: Model, columns: Sequence[str], most: int
    ) -> set[tuple[Any, ...]]:
        """The parts that rows lie in."""
        names = [quote_identifier(name) for name in columns]
        kinds = [target_parts.by_day(model, name) for name in columns]
        asked = [f"cast({n} as date)" if day else n for n, day in zip(names, kinds, strict=True)]
        found = rows.selectExpr(*asked).distinct().limit(most + 1).collect()
        return {tuple(row) for row in found}

    def of_parts(self, rows: DataFrame, model: Model, touched: Touched) -> DataFrame:
        """The rows of the touched parts.

        By a list of literals rather than a join, because Spark pushes it down through the model's
        aggregates and windows to the scans.
        """
        return rows.where(target_parts.condition(model, touched))

    def some(self, rows: DataFrame, share: float, most: int) -> DataFrame:
        """A random share of rows."""
        return rows.sample(min(1.0, share)).limit(most)

    def differing(
        self, rows: DataFrame, held: DataFrame, model: Model, columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """The parts in which a model's rows are not those that its table holds."""
        values = [_comparable(column) for column in written_columns(model.contract)]
        computed = shaped(rows, model.contract).selectExpr(*values)
        there = held.selectExpr(*values)
        both = computed.exceptAll(there).unionAll(there.exceptAll(computed))
        return sorted(self.target_parts(both, model, columns, MOST_COMPARED), key=repr)

    def close(self) -> None:
        """Drop the views."""
        for view in self._views:
            self._lake.spark.session.catalog.dropTempView(view)
        self._views.clear()


def _comparable(column: Column) -> str:
    """A column's value as set operations take it.

    Without the last digits of a sum that depend on the order of its rows; a map as text.
    """
    name, kind = quote_identifier(column.name), str(column.type)
    if kind in {"float", "double"}:
        return f"cast({name} as float) as {name}"
    return f"to_json({name}) as {name}" if "map<" in kind else name


def meant(query: exp.Query) -> exp.Expr:
    """A query in which Spark is told what the models' dialect means, where its own would differ.

    Nothing comes of a whole number's division by zero. A letter's lower case is one letter, in
    whatever place: Java knows a final sigma, and takes İ apart.
    """
    from sqlglot import exp

    def mended(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.IntDiv | exp.Mod):
            zero = exp.Nullif(this=node.expression, expression=exp.Literal.number(0))
            node.set("expression", zero)
        elif isinstance(node, exp.Lower):
            node.set("this", exp.func("TRANSLATE", node.this, *map(exp.Literal.string, _LETTERS)))
        return node

    return query.transform(mended)


def frame(lake: Lake, rows: pa.Table, table: str, extra: Mapping[str, str]) -> DataFrame:
    """Arrow rows of a table as a frame with the table's own Spark types, and some columns more."""
    from pyspark.sql.types import StructType

    session = lake.spark.session
    known = {f.name: f for f in session.table(f"{CATALOG}.{table}").schema.fields}
    schema = StructType()
    for name in rows.column_names:
        schema.add(name, extra[name] if name in extra else known[name].dataType, True)
    return lake.spark.frame(rows, schema)
