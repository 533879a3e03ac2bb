"""Spark for thousands of small questions: the worker's own way, without its costs of starting.

Of a question over some hundred rows most time goes into a session of its own, reading the catalog,
and compiling code. So here is one session for all, whose views are made once, and expressions are
interpreted. The words of the SQL, the settings that give them their meaning, and how rows are
fetched and written are the worker's.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tests.integration.serve import asking

from thermocline.serve.engines.spark import SparkWorker
from thermocline.serve.wire.jobs import WorkerError
from thermocline.serve.wire.protocol import Frame
from thermocline.sql.guard import guard
from thermocline.sql.translate import translate

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.lake import Lake

SETTINGS = """
[lake]
name = "awkward"
[engine.spark]
master = "local[2]"
memory = "1g"
shuffle_partitions = 1
[engine.spark.conf]
"spark.sql.codegen.wholeStage" = "false"
"spark.sql.codegen.factoryMode" = "NO_CODEGEN"
"spark.sql.adaptive.enabled" = "false"
"spark.sql.ui.retainedExecutions" = "1"
"spark.ui.retainedJobs" = "1"
"spark.ui.retainedStages" = "1"
"""


class LeanSpark(SparkWorker):
    """Answers every question in one session, over the same views."""

    def __init__(self, lake: Lake) -> None:
        super().__init__(lake.settings)
        names = {table: table for table in lake.tables()}
        self.tables = asking.tables(lake, names)
        self.columns = asking.columns(lake, names)
        self._opened = contextlib.ExitStack()
        self._one = self._opened.enter_context(super().open_views(self.tables))

    @contextlib.contextmanager
    def open_views(self, tables: Mapping[str, Any]) -> Iterator[SparkSession]:
        """The session, in which every table is there already at its snapshot."""
        assert all(self.tables[view] == of for view, of in tables.items())
        yield self._one

    def ask(self, sql: str) -> Frame:
        """The answer to a question, which is translated first."""
        question = guard(sql)
        columns = {table: self.columns[table] for table in question.tables}
        said = translate(question, "spark", {t: t for t in question.tables}, columns)
        of = {table: self.tables[table] for table in question.tables}
        try:
            told, body = self.query(asking.request(said, of, id=uuid.uuid4().hex))
        except WorkerError as error:
            return Frame({"ok": False, "error": error.as_dict()["error"]}, b"")
        return Frame({"ok": True, **told}, body)


@contextlib.contextmanager
def lean(lake: Lake) -> Iterator[asking.Asker]:
    """Somebody who asks a lean Spark, in this process."""
    spark = LeanSpark(lake)
    try:
        yield spark.ask
    finally:
        spark.stop()
