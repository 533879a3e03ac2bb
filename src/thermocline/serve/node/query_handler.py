"""Queries on a node's copies: each in a transaction that also reads the snapshots of the copies."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

import duckdb
import pyarrow as pa

from thermocline import telemetry
from thermocline.serve.node.change_set import parse_utc
from thermocline.serve.node.copy_types import quote_identifier
from thermocline.serve.node.engine import is_fatal, open_query_cursor, parse_select, to_failed
from thermocline.serve.rows.fetch import BATCH_ROWS, downcast_integers, fetch_bounded
from thermocline.serve.rows.reply import build_reply, parse_request
from thermocline.serve.wire.jobs import EngineBroken, WorkerError


class QueryHandler:
    """Answers queries, as many at a time as it has cursors."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, threads: int) -> None:
        self._free: SimpleQueue[duckdb.DuckDBPyConnection] = SimpleQueue()
        for _ in range(threads):
            self._free.put(open_query_cursor(connection))
        self._running: dict[str, duckdb.DuckDBPyConnection] = {}
        self._lock = threading.Lock()

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a query at the snapshots that it names. Raises WorkerError."""
        tables = request.get("tables") or {}
        sql, format_, rows, size = parse_request({**request, "tables": tables})
        began = time.perf_counter()
        cursor = self._free.get()
        with self._lock:
            self._running[request["id"]] = cursor
        try:
            statement = parse_select(cursor, sql)
            table, held = self._run(cursor, statement, tables, rows, size)
            return build_reply(table, format_, began, held)
        except (duckdb.Error, pa.ArrowException, MemoryError, OSError) as error:
            if is_fatal(error):
                telemetry.log("node", "broken", level="ERROR", error=str(error))
                raise EngineBroken from error
            raise to_failed(error) from error
        finally:
            with self._lock:  # a late interrupt must not hit the next query of this cursor
                self._running.pop(request["id"], None)
            self._free.put(cursor)

    def cancel(self, query: str) -> None:
        """Interrupt a query."""
        with self._lock:
            cursor = self._running.get(query)
            if cursor is not None:
                cursor.interrupt()

    def _run(
        self,
        cursor: duckdb.DuckDBPyConnection,
        statement: duckdb.Statement,
        tables: Mapping[str, Any],
        rows: int,
        size: int,
    ) -> tuple[pa.Table, dict[str, Any]]:
        """Return the rows and the versions of the copies, read in one transaction."""
        _begin(cursor)
        try:
            requested = {each["table"]: each for each in tables.values()}
            held = {name: _read_copy_state(cursor, name) for name in requested}
            for name, version in requested.items():
                _require_version(name, version, *held[name])
            ran = cursor.execute(statement)
            described = ran.description or ()
            reader = ran.to_arrow_reader(BATCH_ROWS)
            table = downcast_integers(fetch_bounded(reader, reader.schema, rows, size), described)
            return table, {
                "snapshots": {name: held[name][0] for name in requested},
                "since": {name: held[name][1] for name in requested},
            }
        finally:
            with contextlib.suppress(duckdb.Error):  # interrupted here too: `_begin` recovers
                cursor.execute("ROLLBACK")


def _begin(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.execute("BEGIN TRANSACTION READ ONLY")
    except duckdb.TransactionException:  # the previous one was not ended
        cursor.execute("ROLLBACK")
        cursor.execute("BEGIN TRANSACTION READ ONLY")


def _read_copy_state(cursor: duckdb.DuckDBPyConnection, name: str) -> tuple[str, str | None]:
    """Return a copy's snapshot and the start of its window. Raises WorkerError without a copy.

    This is our own query: when it fails, the database is broken.
    """
    try:
        found = cursor.execute(
            f"SELECT snapshot, since FROM held.{quote_identifier(name)}"
        ).fetchone()
    except duckdb.CatalogException as error:
        raise WorkerError("not-held", f"The node holds no copy of {name}.") from error
    except (duckdb.InterruptException, duckdb.OutOfMemoryException):
        raise
    except duckdb.Error as error:
        telemetry.log("node", "broken", level="ERROR", error=str(error))
        raise EngineBroken from error
    assert found is not None
    return found[0], found[1]


def _require_version(
    name: str, version: Mapping[str, Any], snapshot: str, since: str | None
) -> None:
    """Raise WorkerError if a copy is at another snapshot or does not reach back far enough."""
    if version.get("snapshot") is not None and str(version["snapshot"]) != snapshot:
        raise WorkerError(
            "moved", f"The copy of {name} is at another snapshot.", table=name, held=snapshot
        )
    if "since" in version and since is not None:
        requested = version["since"]
        if requested is None or parse_utc(requested) < parse_utc(since):
            raise WorkerError(
                "moved", f"The copy of {name} begins later.", held=snapshot, since=since
            )
