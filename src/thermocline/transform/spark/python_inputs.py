"""What a step of a Python model reads, and the call of its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.transform.inputs import Span, appended_only
from thermocline.transform.model_decorator import How
from thermocline.transform.python_models import CHANGE, PythonInputs, called, changed_rows
from thermocline.transform.spark.reader import SparkReader, frame

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.lake import Lake


@dataclass
class FunctionInputs(PythonInputs["DataFrame", "DataFrame"]):
    """The sources of one step of a Python model, as frames."""

    lake: Lake

    def _call(self, read: Callable[[str, How], DataFrame]) -> DataFrame:
        from pyspark.errors import PySparkException
        from pyspark.sql import DataFrame as Frame

        frames = {name: read(each.table, each.how) for name, each in self.model.reads.items()}
        rows: DataFrame = called(self.model, frames, gives=Frame, passes=PySparkException)
        return rows

    def _whole(self, table: str, how: How) -> DataFrame:
        from pyspark.sql import functions as F

        rows = self.lake.spark.read(table, self.spans[table].end)
        return rows.withColumn(CHANGE, F.lit("insert")) if how is How.CHANGES else rows

    def _new(self, table: str, how: How) -> DataFrame:
        from pyspark.sql import functions as F

        span = self.spans[table]
        if how is not How.CHANGES or not span.moved:
            rows = self._whole(table, how)
            return rows if how is not How.CHANGES else rows.limit(0)
        if appended_only(self.lake, span):
            return SparkReader(self.lake).appended(span).withColumn(CHANGE, F.lit("insert"))
        return self._changed(span)

    def _changed(self, span: Span) -> DataFrame:
        """Inserted and updated rows as they are now, deleted ones as they were."""
        rows = changed_rows(self.lake, span)
        return frame(self.lake, rows, span.table, {CHANGE: "string"})
