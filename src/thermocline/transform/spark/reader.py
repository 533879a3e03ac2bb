"""Read a step's sources as Spark frames."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from thermocline.contract.definition import Column
from thermocline.engine.spark import CATALOG
from thermocline.engine.spark_types import quote_identifier
from thermocline.engine.view_rewrite import private_view_name
from thermocline.transform import target_parts
from thermocline.transform.inputs import MAX_COMPARED_PARTS, SourceSpan
from thermocline.transform.models import Model
from thermocline.transform.spark.conform import conform_rows
from thermocline.transform.target_parts import OLD, TouchedParts
from thermocline.transform.write_rules import written_columns

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from sqlglot import exp

    from thermocline.lake import Lake

_LETTERS = ("İΣ", "iσ")


class SparkReader:
    """Reads tables as frames. `close` drops the views that it creates in Spark."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._views: list[str] = []

    def read_snapshot(self, table: str, snapshot: int) -> DataFrame:
        """Return a table's rows at a snapshot."""
        return self._lake.spark.read(table, snapshot)

    def read_appended(self, span: SourceSpan) -> DataFrame:
        """Return the rows of the files that a span's appends added."""
        if span.start is None:
            return self.read_snapshot(span.table, span.end)
        reader = self._lake.spark.session.read.option("start-snapshot-id", str(span.start))
        return reader.option("end-snapshot-id", str(span.end)).table(f"{CATALOG}.{span.table}")

    def add_changed(self, rows: pa.Table, table: str) -> DataFrame:
        """Create a frame of images of changed rows, in the table's own types."""
        return create_frame(self._lake, rows, table, {OLD: "boolean"})

    def add_old_images(self, rows: DataFrame, changed: DataFrame) -> DataFrame:
        """Return the rows together with the old images among the changed rows."""
        old = changed.where(OLD).drop(OLD)
        return rows.unionByName(old, allowMissingColumns=True)

    def filter_values(
        self, rows: DataFrame, column: str, values: Sequence[Any], *, days: bool
    ) -> DataFrame | None:
        """Return the rows of some values or days of a column."""
        condition = target_parts.build_source_filter(rows, column, values, days)
        return None if condition is None else rows.where(condition)

    def create_view(self, rows: DataFrame) -> str:
        """Create a temporary view."""
        name = private_view_name(f"{id(self)}_{len(self._views)}")
        rows.createOrReplaceTempView(name)
        self._views.append(name)
        return name

    def run_query(self, query: exp.Query) -> DataFrame:
        """Run a query of the models' dialect, translated for Spark."""
        from thermocline.engine.spark_sql import to_sql

        return self._lake.spark.sql(to_sql(adapt_semantics(query)))

    def find_parts(
        self, rows: DataFrame, model: Model, columns: Sequence[str], most: int
    ) -> set[tuple[Any, ...]]:
        """Return the parts that rows lie in."""
        names = [quote_identifier(name) for name in columns]
        days = [target_parts.is_by_day(model, name) for name in columns]
        expressions = [
            f"cast({n} as date)" if day else n for n, day in zip(names, days, strict=True)
        ]
        found = rows.selectExpr(*expressions).distinct().limit(most + 1).collect()
        return {tuple(row) for row in found}

    def filter_parts(self, rows: DataFrame, model: Model, touched: TouchedParts) -> DataFrame:
        """Return the rows of the touched parts.

        It filters by a list of literals rather than a join, because Spark pushes that down through
        the model's aggregates and windows to the scans.
        """
        return rows.where(target_parts.build_condition(model, touched))

    def sample_rows(self, rows: DataFrame, share: float, most: int) -> DataFrame:
        """Return a random share of rows."""
        return rows.sample(min(1.0, share)).limit(most)

    def find_differing(
        self, rows: DataFrame, stored: DataFrame, model: Model, columns: Sequence[str]
    ) -> list[tuple[Any, ...]]:
        """Return the parts in which a model's rows differ from its table's rows."""
        values = [_comparable_value(column) for column in written_columns(model.contract)]
        computed = conform_rows(rows, model.contract).selectExpr(*values)
        there = stored.selectExpr(*values)
        both = computed.exceptAll(there).unionAll(there.exceptAll(computed))
        return sorted(self.find_parts(both, model, columns, MAX_COMPARED_PARTS), key=repr)

    def close(self) -> None:
        """Drop the views."""
        for view in self._views:
            self._lake.spark.session.catalog.dropTempView(view)
        self._views.clear()


def _comparable_value(column: Column) -> str:
    """Return a column's value as set operations accept it.

    Floating-point values lose last digits, which depend on the order of a sum; maps become text.
    """
    name, kind = quote_identifier(column.name), str(column.type)
    if kind in {"float", "double"}:
        return f"cast({name} as float) as {name}"
    return f"to_json({name}) as {name}" if "map<" in kind else name


def adapt_semantics(query: exp.Query) -> exp.Expr:
    """Rewrite a query so that Spark follows the semantics of the models' dialect.

    An integer division by zero is null. The lower case of a letter is one letter, independent of
    its place: Java has a final sigma, and splits İ into two characters.
    """
    from sqlglot import exp

    def adapt(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.IntDiv | exp.Mod):
            zero = exp.Nullif(this=node.expression, expression=exp.Literal.number(0))
            node.set("expression", zero)
        elif isinstance(node, exp.Lower):
            node.set("this", exp.func("TRANSLATE", node.this, *map(exp.Literal.string, _LETTERS)))
        return node

    return query.transform(adapt)


def create_frame(lake: Lake, rows: pa.Table, table: str, extra: Mapping[str, str]) -> DataFrame:
    """Create a frame of a table's Arrow rows in its own Spark types, and of `extra` columns."""
    from pyspark.sql.types import StructType

    session = lake.spark.session
    known = {f.name: f for f in session.table(f"{CATALOG}.{table}").schema.fields}
    schema = StructType()
    for name in rows.column_names:
        schema.add(name, extra[name] if name in extra else known[name].dataType, True)
    return lake.spark.frame(rows, schema)
