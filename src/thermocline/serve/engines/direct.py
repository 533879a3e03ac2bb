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
from thermocline.engine.duck import DuckEngine, all_rows
from thermocline.errors import CatalogUnavailable
from thermocline.lake.catalog import reader
from thermocline.serve.engines import starting
from thermocline.serve.node.engine import one_select, reported
from thermocline.serve.rows.bounded import BATCH_ROWS, fetched, narrowed
from thermocline.serve.rows.reply import as_asked, checked, reply
from thermocline.serve.wire import worker
from thermocline.serve.wire.jobs import Failed

if TYPE_CHECKING:
    from thermocline.config import Settings

THREADS = 8
"""How many queries run side by side; each uses as many of DuckDB's threads as it can get."""
KNOWN = 1000
"""Of so many snapshots it is known how they are read."""
RETRIES = 5
RETRY_SECONDS = 0.2
_OF_THE_TEXT = (duckdb.CatalogException, duckdb.BinderException, duckdb.ParserException)
# A store may take a moment to show an object that a commit has just named.
_MISSING = re.compile(r"No such file|does not exist|Cannot open file|HTTP 404|NoSuchKey")

GONE = "A file of a table that the query reads is not there."
AGAIN = "Ask again in a moment; if it stays so, `thermo doctor` on the server names the file."


class Direct:
    """Answers queries from the files, each with a cursor and views of its own."""

    def __init__(self, settings: Settings) -> None:
        roots = [settings.warehouse]
        with suppress(CatalogUnavailable):  # it is there again before anybody asks, or nobody can
            roots = reader(settings).roots()
        self._inside = tuple(f"{root.rstrip('/')}/" for root in roots)
        self._connection = DuckEngine(settings, lambda: roots).connect()
        # For all sessions: each query has one of its own, and after the lock none can set it.
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")
        self._connection.execute("SET lock_configuration = true")
        self._running: dict[str, duckdb.DuckDBPyConnection] = {}
        self._read: dict[tuple[str, int], str] = {}
        self._lock = threading.Lock()

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a query at the snapshots that it names, or say why not."""
        sql, format_, rows, size = checked(request)
        began = time.perf_counter()
        for attempt in range(RETRIES + 1):
            try:
                views = [self._reading(name, of) for name, of in request["tables"].items()]
                table = self._run(request["id"], sql, views, rows, size)
                break
            except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
                if isinstance(error, _OF_THE_TEXT) or not _MISSING.search(str(error)):
                    raise reported(error) from error
                if attempt == RETRIES:
                    telemetry.log("direct", "missing", level="ERROR", error=str(error))
                    raise Failed("missing", GONE, AGAIN) from error
                time.sleep(RETRY_SECONDS)
        return reply(table, format_, began, as_asked(request))

    def cancel(self, query: str) -> None:
        """Interrupt a query."""
        with self._lock:
            cursor = self._running.get(query)
            if cursor is not None:
                cursor.interrupt()

    def _reading(self, view: str, of: Mapping[str, Any]) -> str:
        """The statement that makes a view of a table at its snapshot."""
        location, snapshot = of.get("metadata"), str(of.get("snapshot", ""))
        if not isinstance(location, str) or not snapshot.isdigit():
            raise Failed("query", f"Where {view[:100]} is was not said.")
        path = location.removeprefix("file://").removeprefix("file:")
        # DuckDB itself reads nothing outside; this is so that the error says what was wrong.
        if not path.startswith(self._inside) or posixpath.normpath(path) != _plain(path):
            raise Failed("query", f"{view[:100]} is not inside the warehouse.")
        name = view.replace('"', '""')
        return f'CREATE TEMP VIEW "{name}" AS {self._rows(location, int(snapshot))}'

    def _rows(self, location: str, snapshot: int) -> str:
        """The query that reads a table; what it says of a snapshot never changes."""
        with self._lock:
            known = self._read.get((location, snapshot))
        if known is None:
            known = all_rows(self._connection.cursor(), location, snapshot)
            with self._lock:
                while len(self._read) >= KNOWN:
                    del self._read[next(iter(self._read))]
                self._read[location, snapshot] = known
        return known

    def _run(self, query: str, sql: str, views: Sequence[str], rows: int, size: int) -> pa.Table:
        cursor = self._connection.cursor()
        with self._lock:
            self._running[query] = cursor
        try:
            statement = one_select(cursor, sql)
            for made in views:
                cursor.execute(made)
            cursor.execute(statement)
            description = cursor.description or []
            reader = cursor.to_arrow_reader(BATCH_ROWS)
            return narrowed(fetched(reader, reader.schema, rows, size), description)
        finally:
            with self._lock:
                del self._running[query]
            cursor.close()


def _plain(path: str) -> str:
    """A path as `normpath` leaves it, when there is nothing to leave out of it."""
    return path if "://" not in path else path.replace("://", ":/", 1)


def main() -> None:
    """Read the project and answer until standard input closes."""
    told = starting.told("thermocline.serve.engines.direct", THREADS)
    worker.run(told.address, told.token, Direct(told.settings), threads=told.threads)


if __name__ == "__main__":
    main()
