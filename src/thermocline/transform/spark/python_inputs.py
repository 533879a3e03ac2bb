"""The input of a Python model's step as Spark frames, and the call of its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.transform.inputs import SourceSpan, is_append_only
from thermocline.transform.model_decorator import ReadMode
from thermocline.transform.python_models import CHANGE, PythonInputs, call_model, read_changed_rows
from thermocline.transform.spark.reader import SparkReader, create_frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Lake


@dataclass
class FunctionInputs(PythonInputs["DataFrame", "DataFrame"]):
    """The input of a Python model's step, as Spark frames."""

    lake: Lake

    def _call(self, read: Callable[[str, ReadMode], DataFrame]) -> DataFrame:
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame as Frame

        frames = {name: read(each.table, each.mode) for name, each in self.model.reads.items()}
        rows: DataFrame = call_model(
            self.model, frames, expected=Frame, pass_through=PySparkException
        )
        return rows

    def _read_all(self, table: str, mode: ReadMode) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self.lake.spark.read(table, self.spans[table].end)
        return rows.withColumn(CHANGE, F.lit("insert")) if mode is ReadMode.CHANGES else rows

    def _read_new(self, table: str, mode: ReadMode) -> DataFrame:
        from pyspark.sql import functions as F

        span = self.spans[table]
        if mode is not ReadMode.CHANGES or not span.has_changed:
            rows = self._read_all(table, mode)
            return rows if mode is not ReadMode.CHANGES else rows.limit(0)
        if is_append_only(self.lake, span):
            return SparkReader(self.lake).read_appended(span).withColumn(CHANGE, F.lit("insert"))
        return self._changed(span)

    def _changed(self, span: SourceSpan) -> DataFrame:
        """Return inserted and updated rows as they are now, deleted rows as they were."""
        rows = read_changed_rows(self.lake, span)
        return create_frame(self.lake, rows, span.table, {CHANGE: "string"})
