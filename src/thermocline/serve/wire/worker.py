"""The loop of every process that answers queries: a hot node, the direct worker, the Spark worker.

    run(address, token, handler, threads=4)

It listens, authenticates connections, runs queries in a thread pool and replies in the order in
which they end. A query stops at its time limit, when it is cancelled, and when its connection
closes; queries beyond the queue are refused as `busy`; a peer that does not read its replies blocks
no other. A query that ignores its interrupt is answered all the same. When it still runs after
`stuck_seconds`, the process ends, and its parent starts another.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from thermocline import telemetry
from thermocline.errors import ThermoclineError
from thermocline.serve.wire import protocol
from thermocline.serve.wire.connection import Connection, Connections
from thermocline.serve.wire.jobs import (
    EngineBroken,
    JobQueue,
    QueryJob,
    WorkerError,
    too_large,
    too_many_rows,
)

__all__ = [
    "EngineBroken",
    "Handler",
    "WorkerError",
    "receive_settings",
    "receive_token",
    "resident_bytes",
    "run",
    "too_large",
    "too_many_rows",
]

Verb = Callable[
    [dict[str, Any], protocol.Body], "dict[str, Any] | tuple[dict[str, Any], bytes] | None"
]
"""Answers a request and its body with the fields of the reply, and its body; None is a bare ok."""

MAX_WAITING = 256
"""How many queries may wait for a thread before more are refused as `busy`."""
STUCK_SECONDS = 10.0
STUCK_EXIT_CODE = 70
"""The exit code of a process that ended because a query would not, or its engine broke."""
_TICK_SECONDS = 0.05
_SHORT_QUERY_SECONDS = 0.2
"""A query shorter than this neither takes the memory nor keeps others waiting."""
_MEMORY_SHORTAGE_SECONDS = 3.0
_VERB_THREADS = 16


class Handler(Protocol):
    """The engine of a worker: runs queries and cancels them."""

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Run a query; return the header of its reply (columns, count, ms, snapshots) and its body.

        Raises WorkerError or another ThermoclineError; EngineBroken ends the process.
        `request["id"]` names the query to `cancel`. It is not the id that the client sent, as two
        clients may have sent the same.
        """

    def cancel(self, query: str) -> None:
        """Interrupt a query that runs in another thread. Called again until it has ended."""


def run(
    address: str,
    token: str,
    handler: Handler,
    *,
    threads: int,
    verbs: Mapping[str, Verb] | None = None,
    max_waiting: int = MAX_WAITING,
    stuck_seconds: float = STUCK_SECONDS,
    is_memory_short: Callable[[], bool] = lambda: False,
    on_exit: Callable[[], None] = lambda: None,
) -> None:
    """Answer until standard input closes, then end the process without waiting for anything.

    Writes "ready" to standard output once it listens. Requests for one of `verbs` run side by side
    in threads of their own and may block: a client that needs an order waits for each reply.
    `is_memory_short` is polled: while it is true, queries that may be the cause are ended as
    `memory`, and the process when that does not help.
    """
    _QueryWorker(
        address, token, handler, threads, verbs or {}, max_waiting, stuck_seconds, is_memory_short
    )
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while sys.stdin.buffer.read(4096):
        pass
    with contextlib.suppress(Exception):
        on_exit()
    _exit(0, address)


def receive_token() -> str:
    """Read the token, which the parent writes as the first line of standard input."""
    return sys.stdin.buffer.readline().decode().strip()


def receive_settings() -> dict[str, str]:
    """Read the settings of the router's environment, the second line for a process that opens the
    lake.

    They are sent over standard input because an environment can be read by an engine or by other
    processes.
    """
    found: dict[str, str] = json.loads(sys.stdin.buffer.readline() or b"{}")
    return found


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - the hot path
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _QueryWorker:
    def __init__(
        self,
        address: str,
        token: str,
        handler: Handler,
        threads: int,
        verbs: Mapping[str, Verb],
        max_waiting: int,
        stuck_seconds: float,
        is_memory_short: Callable[[], bool],
    ) -> None:
        self._address = address
        self._handler = handler
        self._verbs = verbs
        self._stuck_seconds = stuck_seconds
        self._is_memory_short = is_memory_short
        self._memory_sufficient_at = time.monotonic()
        self._jobs = JobQueue(threads + max_waiting)
        self._verb_pool = ThreadPoolExecutor(_VERB_THREADS, "verb")
        self._numbers = itertools.count(1)
        listener = protocol.listen(address)
        self._connections = Connections(listener, token, self._dispatch, self._cancel_queries)
        for _ in range(threads):
            self._start_thread()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        self._connections.start()

    def _dispatch(self, connection: Connection, frame: protocol.Frame) -> None:
        """Handle a frame. The thread that reads the connection calls this: it must not block."""
        request = frame.header
        match request.get("do"):
            case "query":
                key = f"{connection.number}-{next(self._numbers)}"
                job = QueryJob(key, connection, request)
                if not self._jobs.add(job):
                    job.answer(
                        WorkerError("busy", "The queue of the worker is full.", "Retry later.")
                    )
            case "cancel":
                self._jobs.cancel(connection, request.get("query"))
                connection.reply(request, {})
            case "ping":
                counts = {"running": self._jobs.running, "waiting": self._jobs.waiting}
                connection.reply(request, {"rss": resident_bytes(), **counts})
            case verb if isinstance(verb, str) and verb in self._verbs:
                self._verb_pool.submit(self._run_verb, connection, frame, self._verbs[verb])
            case verb:
                connection.fail(
                    request, WorkerError("unknown", f"There is no verb {verb!r}."[:200])
                )

    def _cancel_queries(self, connection: Connection) -> None:
        self._jobs.cancel_all(connection)

    def _run_verb(self, connection: Connection, frame: protocol.Frame, verb: Verb) -> None:
        try:
            reply = verb(frame.header, frame.body)
        except Exception as error:  # noqa: BLE001 - the client waits for a reply
            connection.fail(frame.header, _redact_error(error))
            if isinstance(error, EngineBroken):
                _exit(STUCK_EXIT_CODE, self._address)
            return
        header, body = reply if isinstance(reply, tuple) else (reply or {}, b"")
        connection.reply(frame.header, header, body)

    def _run_queries(self) -> None:
        while True:
            job = self._jobs.next()
            if job.end_reason is None:
                try:
                    job.answer(*self._handler.query({**job.request, "id": job.key}))
                except Exception as error:  # noqa: BLE001 - the client waits
                    job.answer(_redact_error(error))
                    if isinstance(error, EngineBroken):
                        _exit(STUCK_EXIT_CODE, self._address)
            else:
                job.answer(job.end_error())
            self._jobs.finish(job)
            if job.is_deprioritized:
                self._start_thread()  # a thread cannot lower its nice value again
                return

    def _start_thread(self) -> None:
        threading.Thread(target=self._run_queries, name="query", daemon=True).start()

    def _watch(self) -> None:
        """Interrupt queries that must end, repeatedly: an interrupt may precede the start of the
        query.
        """
        while True:
            time.sleep(_TICK_SECONDS)
            self._connections.drop_unauthenticated()
            self._relieve_memory()
            self._jobs.deprioritize_slow(_SHORT_QUERY_SECONDS)
            now = time.monotonic()
            for job in self._jobs.expire(now):
                with contextlib.suppress(Exception):
                    self._handler.cancel(job.key)
                if now - job.end_requested_at > 4 * _TICK_SECONDS:
                    job.answer(job.end_error())
                if now - job.end_requested_at > self._stuck_seconds:
                    telemetry.log("serve", "stuck", level="ERROR", seconds=now - job.began_at)
                    _exit(STUCK_EXIT_CODE, self._address)

    def _relieve_memory(self) -> None:
        """End queries while memory is short, and the process when it stays so."""
        if not self._is_memory_short():
            self._memory_sufficient_at = time.monotonic()
            return
        self._jobs.end_long_running(_SHORT_QUERY_SECONDS)
        if time.monotonic() - self._memory_sufficient_at > _MEMORY_SHORTAGE_SECONDS:
            telemetry.log("serve", "memory", level="ERROR", resident=resident_bytes())
            for job in self._jobs.expire(time.monotonic()):
                job.answer(job.end_error())
            _exit(STUCK_EXIT_CODE, self._address)


def _redact_error(error: Exception) -> ThermoclineError:
    """Return an error as the client may see it: ours as it is, any other by its type only."""
    if isinstance(error, ThermoclineError):
        return error
    telemetry.log("serve", "failed", level="ERROR", error=repr(error))
    return WorkerError("internal", f"The worker failed ({type(error).__name__}).", "See its log.")


def _exit(code: int, address: str) -> None:
    """End at once: threads that run queries cannot be waited for."""
    if address.startswith("unix:"):
        with contextlib.suppress(OSError):
            os.unlink(address.removeprefix("unix:"))  # noqa: PTH108
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)
