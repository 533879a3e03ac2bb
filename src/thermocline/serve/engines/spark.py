"""The Spark worker: a session that answers large scans, at the snapshots that a query names.

    python -m thermocline.serve.engines.spark --project P --address A

It says that it is ready when its session is. Each query is a job group, so that it can be cancelled
by itself. The token comes as the first line of standard input.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from thermocline import telemetry
from thermocline.engine.arrow import normalise
from thermocline.engine.spark import TRANSLATED, SparkEngine
from thermocline.serve.engines import starting
from thermocline.serve.failures import DivisionByZero
from thermocline.serve.rows.bounded import fetched
from thermocline.serve.rows.reply import as_asked, checked, reply
from thermocline.serve.wire import worker
from thermocline.serve.wire.jobs import Broken, Failed, too_many_rows
from thermocline.sql.guard import DIVISION_BY_ZERO, SUBSTITUTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from thermocline.config import Settings

THREADS = 8
PATIENCE = 3.0
"""Seconds that the tasks of a cancelled query have to end, before the process does."""


class Spark:
    """Answers queries, as many at a time as there are threads, on sessions that share one JVM."""

    def __init__(self, settings: Settings) -> None:
        self._engine = SparkEngine(settings)
        self._session = self._engine.session
        self._running: set[str] = set()
        self._free: list[SparkSession] = []
        """Sessions without a query. Each has a catalog with connections of its own: they stay."""

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a query at the snapshots that it names, or say why not."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        sql, format_, rows, size = checked(request)
        if SUBSTITUTION in sql:
            raise Failed("query", f"A query for Spark may not hold {SUBSTITUTION}.")
        began = time.perf_counter()
        try:
            table = self._run(request["id"], sql, request["tables"], rows, size)
        except (PySparkException, Py4JError, pa.ArrowException) as error:
            told = _reported(error)
            if told.code == "cancelled" and not self._ended(request["id"]):
                raise Broken("A cancelled query goes on computing.") from error
            raise told from error
        return reply(table, format_, began, as_asked(request))

    def cancel(self, query: str) -> None:
        """Cancel the jobs of a query."""
        if query in self._running:
            self._session.sparkContext.cancelJobGroup(query)

    def _ended(self, query: str) -> bool:
        """Whether the tasks of a cancelled query end soon: some loops never look up."""
        tracker = self._session.sparkContext.statusTracker()
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            jobs = [tracker.getJobInfo(job) for job in tracker.getJobIdsForGroup(query)]
            stages = [tracker.getStageInfo(stage) for job in jobs if job for stage in job.stageIds]
            if not any(stage and stage.numActiveTasks for stage in stages):
                return True
            time.sleep(0.1)
        return False

    def stop(self) -> None:
        """End the session and its JVM."""
        self._engine.stop()

    @contextmanager
    def reading(self, tables: Mapping[str, Any]) -> Iterator[SparkSession]:
        """A session in which names mean tables at their snapshots, and SQL what it should.

        Temporary views are a session's own: two queries cannot see each other's.
        """
        try:
            session = self._free.pop()
        except IndexError:
            session = self._another()
        try:
            for view, of in tables.items():
                read = session.read.option("versionAsOf", str(int(of["snapshot"])))
                read.table(f"lake.{_table(of)}").createOrReplaceTempView(f"`{view}`")
            yield session
        finally:
            for view in tables:
                session.catalog.dropTempView(view)
            self._free.append(session)

    def _another(self) -> SparkSession:
        return self._engine.beside(TRANSLATED)

    def _run(
        self, query: str, sql: str, tables: Mapping[str, Any], rows: int, size: int
    ) -> pa.Table:
        self._running.add(query)
        try:
            self._session.sparkContext.setJobGroup(query, "a query", interruptOnCancel=True)
            with self.reading(tables) as session:
                # One more than may be: too many are noticed, and no more than that are made.
                frame = session.sql(sql).limit(rows + 1)
                table = _arrow(frame)
        finally:
            self._running.discard(query)
        if table.num_rows > rows:
            raise too_many_rows(rows)
        return fetched(table.to_batches(), table.schema, rows, size)


def _arrow(frame: DataFrame) -> pa.Table:
    """The rows in Arrow. Columns of one name are told apart on the way, which Spark cannot."""
    names = frame.columns
    plain = frame.toDF(*(f"c{n}" for n in range(len(names))))
    return normalise(plain.toArrow()).rename_columns(names)


def _table(of: Mapping[str, Any]) -> str:
    name = str(of.get("table"))
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*", name):
        raise Failed("query", f"{name[:100]!r} is no name of a table.")
    return name


_SAID = {
    "ARITHMETIC_OVERFLOW": "A value is out of the range of its type.",
    "NUMERIC_VALUE_OUT_OF_RANGE": "A value is out of the range of its type.",
    "CAST_INVALID_INPUT": "A value cannot be converted to the type that is asked for.",
    "CAST_OVERFLOW": "A value cannot be converted to the type that is asked for.",
}
"""Errors whose text holds values of rows: what is said of them instead."""


def _reported(error: Exception) -> Failed:
    """An error of Spark's as an asker may see it: one line, no value of a row, no path."""
    text = str(error)
    if "cancelled" in text.lower() and "job" in text.lower():
        return Failed("cancelled", "The query was cancelled.")
    condition = str(getattr(error, "getCondition", lambda: None)() or "")
    if condition.startswith("DIVIDE_BY_ZERO") or (
        condition == "USER_RAISED_EXCEPTION" and DIVISION_BY_ZERO in text
    ):
        return Failed(DivisionByZero.code, DIVISION_BY_ZERO)
    for known, said in _SAID.items():
        if condition.startswith(known) or f"[{known}" in text:
            return Failed("query", said)
    if "OutOfMemoryError" in text:
        return Failed("memory", "The query needs more memory than it may use.", "Ask for less.")
    # The text of a ParseException begins with an empty line.
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    telemetry.log("spark", "failed", level="WARNING", error=first[:500])
    if type(error).__name__ in {"AnalysisException", "ParseException"} and first:
        line = re.sub(r"\s*SQLSTATE.*|;\s*line \d.*", "", first)
        return Failed("query", line[:300])
    return Failed("query", f"The query failed in Spark ({condition or type(error).__name__}).")


def main() -> None:
    """Start the session and answer until standard input closes."""
    told = starting.told("thermocline.serve.engines.spark", THREADS)
    handler = Spark(told.settings)
    worker.run(told.address, told.token, handler, threads=told.threads, at_end=handler.stop)


if __name__ == "__main__":
    main()
