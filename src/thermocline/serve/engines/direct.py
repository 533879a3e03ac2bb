"""The direct worker: DuckDB reads the lake's files, at the snapshots that a query names.

    python -m thermocline.serve.engines.direct --project P --address A

It can read the warehouse and nothing else, keeps nothing between two queries, and its connection's
configuration is locked. The token comes as the first line of standard input.
"""

from __future__ import annotations

import posixpath
import re
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from thermocline import telemetry
from thermocline.engine.duck import DuckEngine, UnsupportedByDuckDB, build_snapshot_query
from thermocline.errors import CatalogUnavailable
from thermocline.lake.catalog import open_reader
from thermocline.serve.engines import startup
from thermocline.serve.node.engine import parse_select, to_failed
from thermocline.serve.rows.fetch import BATCH_ROWS, downcast_integers, fetch_bounded
from thermocline.serve.rows.reply import build_reply, parse_request, requested_snapshots
from thermocline.serve.wire import worker
from thermocline.serve.wire.jobs import WorkerError

if TYPE_CHECKING:
    from thermocline.config import Settings

THREADS = 8
"""How many queries run side by side; each uses as many of DuckDB's threads as it can get."""
MAX_CACHED_READS = 1000
"""How many queries that read a snapshot are cached."""
RETRIES = 5
RETRY_SECONDS = 0.2
_QUERY_ERRORS = (duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException)
# A store may need a moment until a newly committed object is visible.
_MISSING = re.compile(r"No such file|does not exist|Cannot open file|HTTP 404|NoSuchKey")

MISSING_CAUSE = "A file that the query reads is missing."
MISSING_NEXT_STEP = (
    "Retry in a moment; if it persists, `thermo doctor` on the server names the file."
)


class DirectWorker:
    """Answers queries from the files, each with a cursor and views of its own."""

    def __init__(self, settings: Settings) -> None:
        roots = [settings.warehouse]
        with suppress(CatalogUnavailable):  # queries fail until the catalog is back
            roots = open_reader(settings).roots()
        self._inside = tuple(f"{root.rstrip('/')}/" for root in roots)
        self._connection = DuckEngine(settings, lambda: roots).connect()
        # Global: each query has its own session, and after the lock none can set it.
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
        self._connection.execute("SET lock_configuration = true")
        self._running: dict[str, duckdb.DuckDBPyConnection] = {}
        self._table_queries: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a query at the snapshots that it names. Raises WorkerError."""
        sql, format_, rows, size = parse_request(request)
        began = time.perf_counter()
        for attempt in range(RETRIES + 1):
            try:
                views = [self._view_statement(name, of) for name, of in request["tables"].items()]
                table = self._run(request["id"], sql, views, rows, size)
                break
            except UnsupportedByDuckDB as error:  # another engine may read the table
                raise WorkerError("unsupported", error.cause, error.next_step) from error
            except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
                if isinstance(error, _QUERY_ERRORS) or not _MISSING.search(str(error)):
                    raise to_failed(error) from error
                if attempt == RETRIES:
                    telemetry.log("direct", "missing", level="ERROR", error=str(error))
                    raise WorkerError("missing", MISSING_CAUSE, MISSING_NEXT_STEP) from error
                time.sleep(RETRY_SECONDS)
        return build_reply(table, format_, began, requested_snapshots(request))

    def cancel(self, query: str) -> None:
        """Interrupt a query."""
        with self._lock:
            cursor = self._running.get(query)
            if cursor is not None:
                cursor.interrupt()

    def _view_statement(self, view: str, of: Mapping[str, Any]) -> str:
        """Return the statement that creates a view of a table at its snapshot."""
        location, snapshot = of.get("metadata"), str(of.get("snapshot", ""))
        if not isinstance(location, str) or not snapshot.isdigit():
            raise WorkerError("query", f"The location of {view[:100]} is missing.")
        path = location.removeprefix("file://").removeprefix("file:")
        # DuckDB itself reads nothing outside; this check gives a clear error.
        if not path.startswith(self._inside) or posixpath.normpath(path) != _collapse_scheme(path):
            raise WorkerError("query", f"{view[:100]} is not inside the warehouse.")
        name = view.replace('"', '""')
        return f'CREATE TEMP VIEW "{name}" AS {self._table_query(location, int(snapshot))}'

    def _table_query(self, location: str, snapshot: int) -> str:
        """Return the query that reads a table at a snapshot, from a cache: it never changes."""
        with self._lock:
            known = self._table_queries.get((location, snapshot))
        if known is None:
            known = build_snapshot_query(self._connection.cursor(), location, snapshot)
            with self._lock:
                while len(self._table_queries) >= MAX_CACHED_READS:
                    del self._table_queries[next(iter(self._table_queries))]
                self._table_queries[location, snapshot] = known
        return known

    def _run(self, query: str, sql: str, views: Sequence[str], rows: int, size: int) -> pa.Table:
        cursor = self._connection.cursor()
        with self._lock:
            self._running[query] = cursor
        try:
            statement = parse_select(cursor, sql)
            for view_statement in views:
                cursor.execute(view_statement)
            cursor.execute(statement)
            description = cursor.description or []
            reader = cursor.to_arrow_reader(BATCH_ROWS)
            return downcast_integers(fetch_bounded(reader, reader.schema, rows, size), description)
        finally:
            with self._lock:
                del self._running[query]
            cursor.close()


def _collapse_scheme(path: str) -> str:
    """Return a path with its scheme as `normpath` would write it."""
    return path if "://" not in path else path.replace("://", ":/", 1)


def main() -> None:
    """Read the project and answer until standard input closes."""
    arguments = startup.read_arguments("thermocline.serve.engines.direct", THREADS)
    worker.run(
        arguments.address,
        arguments.token,
        DirectWorker(arguments.settings),
        threads=arguments.threads,
    )


if __name__ == "__main__":
    main()
