"""The loop of every process that answers queries: a node, the direct worker, Spark's.

    run(address, token, handler, threads=4)

It listens, takes in who knows the token, runs queries in threads of their own and answers in
whatever order they end. No query runs longer than it may, none that was cancelled or whose asker
is gone goes on, more than can wait are refused as `busy`, and nobody is held up by somebody else
who does not read their replies. A query that ignores being interrupted is answered all the same,
and when it still runs after `patience` seconds the process ends: whoever started it starts another.
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
from thermocline.serve.wire import wire
from thermocline.serve.wire.connection import Connection, Connections
from thermocline.serve.wire.jobs import Broken, Failed, Job, Jobs, too_large, too_many_rows

__all__ = [
    "Broken",
    "Failed",
    "Handler",
    "resident",
    "run",
    "sent_settings",
    "told_token",
    "too_large",
    "too_many_rows",
]

Verb = Callable[[dict[str, Any], wire.Body], "dict[str, Any] | tuple[dict[str, Any], bytes] | None"]
"""Answers a request and its body with what the reply is to say; None says no more than ok."""

WAITING = 256
"""How many queries may wait for a thread before others are told `busy`."""
PATIENCE = 10.0
STUCK = 70
"""The exit code of a process that ended because a query would not, or its engine broke."""
_TICK = 0.05
_QUICK = 0.2
"""What runs shorter than this is not what takes the memory, or keeps others waiting."""
_STRAINED = 3.0
_OTHERS = 16


class Handler(Protocol):
    """What a worker knows how to do."""

    def query(self, request: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        """Answer a query: what the reply says (columns, count, ms, snapshots), and its body.

        Raises Failed, or any other of our errors; Broken ends the process. `request["id"]` names
        the query to `cancel`; it is not the id that the asker gave it, as two of them may have
        given the same.
        """

    def cancel(self, query: str) -> None:
        """Interrupt a query that runs in another thread. Called again until it has ended."""


def run(
    address: str,
    token: str,
    handler: Handler,
    *,
    threads: int,
    also: Mapping[str, Verb] | None = None,
    waiting: int = WAITING,
    patience: float = PATIENCE,
    short: Callable[[], bool] = lambda: False,
    at_end: Callable[[], None] = lambda: None,
) -> None:
    """Answer until standard input closes, then end the process without waiting for anything.

    Says "ready" on standard output when it listens. Verbs of `also` run side by side in threads
    of their own and may block: who needs an order waits for each reply. `short` says all the
    time whether memory is: then queries that may be the cause are ended as `memory`, and the
    process when that does not help.
    """
    _Worker(address, token, handler, threads, also or {}, waiting, patience, short)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while sys.stdin.buffer.read(4096):
        pass
    with contextlib.suppress(Exception):
        at_end()
    _end(0, address)


def told_token() -> str:
    """The token, which whoever starts a worker writes as the first line of its standard input."""
    return sys.stdin.buffer.readline().decode().strip()


def sent_settings() -> dict[str, str]:
    """The settings of the router's environment, on the second line for one that opens the lake.

    They are sent so because an environment can be read, by an engine or by other processes.
    """
    found: dict[str, str] = json.loads(sys.stdin.buffer.readline() or b"{}")
    return found


def resident() -> int:
    """How many bytes of memory this process really has."""
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - the hot path
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class _Worker:
    def __init__(
        self, address: str, token: str, handler: Handler, threads: int,
        also: Mapping[str, Verb], waiting: int, patience: float, short: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._address = address
        self._handler = handler
        self._also = also
        self._patience = patience
        self._short = short
        self._eased = time.monotonic()
        self._jobs = Jobs(threads + waiting)
        self._others = ThreadPoolExecutor(_OTHERS, "verb")
        self._numbers = itertools.count(1)
        listener = wire.listen(address)
        self._connections = Connections(listener, token, self._heard, self._left)
        for _ in range(threads):
            self._start_thread()
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        self._connections.start()

    def _heard(self, connection: Connection, frame: wire.Frame) -> None:
        """Called by the thread that reads a connection: it must not be held up."""
        request = frame.header
        match request.get("do"):
            case "query":
                key = f"{connection.number}-{next(self._numbers)}"
                job = Job(key, connection, request)
                if not self._jobs.add(job):
                    job.answer(Failed("busy", "Too many queries wait already.", "Ask again."))
            case "cancel":
                self._jobs.cancel(connection, request.get("query"))
                connection.reply(request, {})
            case "ping":
                counts = {"running": self._jobs.running, "waiting": self._jobs.waiting}
                connection.reply(request, {"rss": resident(), **counts})
            case verb if isinstance(verb, str) and verb in self._also:
                self._others.submit(self._other, connection, frame, self._also[verb])
            case verb:
                connection.fail(request, Failed("unknown", f"Nothing here does {verb!r}."[:200]))

    def _left(self, connection: Connection) -> None:
        self._jobs.cancel_all(connection)

    def _other(self, connection: Connection, frame: wire.Frame, verb: Verb) -> None:
        try:
            said = verb(frame.header, frame.body)
        except Exception as error:  # noqa: BLE001 - whatever it is, the asker waits for a reply
            connection.fail(frame.header, _reported(error))
            if isinstance(error, Broken):
                _end(STUCK, self._address)
            return
        header, body = said if isinstance(said, tuple) else (said or {}, b"")
        connection.reply(frame.header, header, body)

    def _work(self) -> None:
        while True:
            job = self._jobs.next()
            if job.mark is None:
                try:
                    job.answer(*self._handler.query({**job.request, "id": job.key}))
                except Exception as error:  # noqa: BLE001 - whatever it is, the asker waits
                    job.answer(_reported(error))
                    if isinstance(error, Broken):
                        _end(STUCK, self._address)
            else:
                job.answer(job.marked())
            self._jobs.done(job)
            if job.stepped_back:
                self._start_thread()  # which has not: none can come forward again
                return

    def _start_thread(self) -> None:
        threading.Thread(target=self._work, name="query", daemon=True).start()

    def _watch(self) -> None:
        """Interrupt what must end, again and again: one interrupt may come before the query ran."""
        while True:
            time.sleep(_TICK)
            self._connections.drop_strangers()
            self._relieve()
            self._jobs.step_back(_QUICK)
            now = time.monotonic()
            for job in self._jobs.overdue(now):
                with contextlib.suppress(Exception):
                    self._handler.cancel(job.key)
                if now - job.marked_at > 4 * _TICK:
                    job.answer(job.marked())
                if now - job.marked_at > self._patience:
                    telemetry.log("serve", "stuck", level="ERROR", seconds=now - job.began)
                    _end(STUCK, self._address)

    def _relieve(self) -> None:
        """End queries while memory is short, and the process when it stays so."""
        if not self._short():
            self._eased = time.monotonic()
            return
        self._jobs.end_large(_QUICK)
        if time.monotonic() - self._eased > _STRAINED:
            telemetry.log("serve", "memory", level="ERROR", resident=resident())
            for job in self._jobs.overdue(time.monotonic()):
                job.answer(job.marked())
            _end(STUCK, self._address)


def _reported(error: Exception) -> ThermoclineError:
    """An error as the asker may see it: ours as it is, another by its kind only."""
    if isinstance(error, ThermoclineError):
        return error
    telemetry.log("serve", "failed", level="ERROR", error=repr(error))
    return Failed("internal", f"The worker failed ({type(error).__name__}).", "Its log says more.")


def _end(code: int, address: str) -> None:
    """End at once: threads that run queries cannot be waited for."""
    if address.startswith("unix:"):
        with contextlib.suppress(OSError):
            os.unlink(address.removeprefix("unix:"))  # noqa: PTH108
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    os._exit(code)
