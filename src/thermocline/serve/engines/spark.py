"""The Spark worker: a session that answers large scans, at the snapshots that a query names.

    python -m thermocline.serve.engines.spark --project P --address A

It reports ready when its session is. Each query is a job group, so that it can be cancelled
by itself. The token comes as the first line of standard input.
"""

from __future__ import annotations

import re
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from thermocline import telemetry
from thermocline.engine.arrow import normalize
from thermocline.engine.spark import TRANSLATED_SQL_CONF, SparkEngine
from thermocline.serve.engines import startup
from thermocline.serve.failures import DivisionByZero
from thermocline.serve.rows.fetch import fetch_bounded
from thermocline.serve.rows.reply import build_reply, parse_request, requested_snapshots
from thermocline.serve.wire import worker
from thermocline.serve.wire.jobs import EngineBroken, WorkerError, too_many_rows
from thermocline.sql.guard import DIVISION_BY_ZERO, SUBSTITUTION

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from thermocline.config import Settings

THREADS = 8
CANCEL_SECONDS = 3.0
"""Seconds that the tasks of a cancelled query have to end, before the process does."""


class SparkWorker:
    """Answers queries, as many at a time as it has threads, on sessions that share one JVM."""

    def __init__(self, settings: Settings) -> None:
        self._engine = SparkEngine(settings)
        self._session = self._engine.session
        self._running: set[str] = set()
        self._free: list[SparkSession] = []
        """Idle sessions. They are reused: each has a catalog with its own connections."""

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a query at the snapshots that it names. Raises WorkerError."""
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        sql, format_, rows, size = parse_request(request)
        if SUBSTITUTION in sql:
            raise WorkerError("query", f"A query for Spark must not contain {SUBSTITUTION}.")
        began = time.perf_counter()
        try:
            table = self._run(request["id"], sql, request["tables"], rows, size)
        except (PySparkException, Py4JError, pa.ArrowException) as error:
            failure = _to_failed(error)
            if failure.code == "cancelled" and not self._has_ended(request["id"]):
                raise EngineBroken("A cancelled query continues to run.") from error
            raise failure from error
        return build_reply(table, format_, began, requested_snapshots(request))

    def cancel(self, query: str) -> None:
        """Cancel the jobs of a query."""
        if query in self._running:
            self._session.sparkContext.cancelJobGroup(query)

    def _has_ended(self, query: str) -> bool:
        """Return whether the tasks of a cancelled query end: some loops ignore it."""
        tracker = self._session.sparkContext.statusTracker()
        until = time.monotonic() + CANCEL_SECONDS
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
    def open_views(self, tables: Mapping[str, Any]) -> Iterator[SparkSession]:
        """Yield a session with temporary views of the tables at their snapshots.

        Temporary views belong to a session: queries cannot see each other's.
        """
        try:
            session = self._free.pop()
        except IndexError:
            session = self._new_session()
        try:
            for view, of in tables.items():
                read = session.read.option("versionAsOf", str(int(of["snapshot"])))
                read.table(f"lake.{_check_table_name(of)}").createOrReplaceTempView(f"`{view}`")
            yield session
        finally:
            for view in tables:
                session.catalog.dropTempView(view)
            self._free.append(session)

    def _new_session(self) -> SparkSession:
        return self._engine.beside(TRANSLATED_SQL_CONF)

    def _run(
        self, query: str, sql: str, tables: Mapping[str, Any], rows: int, size: int
    ) -> pa.Table:
        self._running.add(query)
        try:
            self._session.sparkContext.setJobGroup(query, "a query", interruptOnCancel=True)
            with self.open_views(tables) as session:
                # One row more than the limit shows that there are too many.
                frame = session.sql(sql).limit(rows + 1)
                table = _to_arrow(frame)
        finally:
            self._running.discard(query)
        if table.num_rows > rows:
            raise too_many_rows(rows)
        return fetch_bounded(table.to_batches(), table.schema, rows, size)


def _to_arrow(frame: DataFrame) -> pa.Table:
    """Return the rows in Arrow. Columns get unique names meanwhile: Spark needs them."""
    names = frame.columns
    renamed = frame.toDF(*(f"c{n}" for n in range(len(names))))
    return normalize(renamed.toArrow()).rename_columns(names)


def _check_table_name(of: Mapping[str, Any]) -> str:
    name = str(of.get("table"))
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\.[A-Za-z_][A-Za-z0-9_]*", name):
        raise WorkerError("query", f"{name[:100]!r} is no table name.")
    return name


_MESSAGES = {
    "ARITHMETIC_OVERFLOW": "A value is out of the range of its type.",
    "NUMERIC_VALUE_OUT_OF_RANGE": "A value is out of the range of its type.",
    "CAST_INVALID_INPUT": "A value cannot be converted to the requested type.",
    "CAST_OVERFLOW": "A value cannot be converted to the requested type.",
}
"""Replacements for errors whose text may contain values of rows."""


def _to_failed(error: Exception) -> WorkerError:
    """Return an error of Spark as a caller may see it: one line, no value of a row, no path."""
    text = str(error)
    if "cancelled" in text.lower() and "job" in text.lower():
        return WorkerError("cancelled", "The query was cancelled.")
    condition = str(getattr(error, "getCondition", lambda: None)() or "")
    if condition.startswith("DIVIDE_BY_ZERO") or (
        condition == "USER_RAISED_EXCEPTION" and DIVISION_BY_ZERO in text
    ):
        return WorkerError(DivisionByZero.code, DIVISION_BY_ZERO)
    for known, message in _MESSAGES.items():
        if condition.startswith(known) or f"[{known}" in text:
            return WorkerError("query", message)
    if "OutOfMemoryError" in text:
        return WorkerError(
            "memory", "The query needs more memory than it may use.", "Read less data."
        )
    # The text of a ParseException begins with an empty line.
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    telemetry.log("spark", "failed", level="WARNING", error=first[:500])
    if type(error).__name__ in {"AnalysisException", "ParseException"} and first:
        line = re.sub(r"\s*SQLSTATE.*|;\s*line \d.*", "", first)
        return WorkerError("query", line[:300])
    return WorkerError("query", f"The query failed in Spark ({condition or type(error).__name__}).")


def main() -> None:
    """Start the session and answer until standard input closes."""
    arguments = startup.read_arguments("thermocline.serve.engines.spark", THREADS)
    handler = SparkWorker(arguments.settings)
    worker.run(
        arguments.address, arguments.token, handler, threads=arguments.threads, on_exit=handler.stop
    )


if __name__ == "__main__":
    main()
