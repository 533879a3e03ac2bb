"""Queries of a worker: queued, running, and those that have to end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from thermocline.errors import ThermoclineError
from thermocline.serve.wire.connection import Connection
from thermocline.serve.wire.protocol import Body

MAX_QUERY_SECONDS = 3600.0
MEMORY_RELEASE_SECONDS = 1.0
"""Seconds within which the memory of a query that ended is free again."""
SLOW_QUERY_NICE = 8
"""How much is added to the nice value of a thread whose query takes long."""


class WorkerError(ThermoclineError):
    """The error that a worker replies.

    `code` is the reason, one of those that workers and router share.
    """

    def __init__(self, code: str, cause: str, next_step: str = "", **details: Any) -> None:
        super().__init__(cause, next_step, **details)
        self.code = code


class EngineBroken(Exception):
    """The engine is in a state that only a new process can repair."""


class QueryJob:
    """One query: its connection, its deadline, and whether it was answered."""

    def __init__(self, key: str, connection: Connection, request: dict[str, Any]) -> None:
        self.key = key
        self.connection = connection
        self.request = request
        self.began_at = time.monotonic()
        seconds = request.get("seconds")
        self.seconds = MAX_QUERY_SECONDS
        if isinstance(seconds, int | float) and 0 <= seconds < MAX_QUERY_SECONDS:
            self.seconds = float(seconds)
        crowded_seconds = request.get("crowded_seconds")
        self.crowded_seconds = (
            min(crowded_seconds, self.seconds)
            if isinstance(crowded_seconds, float)
            else self.seconds
        )
        """How long it may wait for a thread, and run beside others."""
        self.ran_concurrently = False
        """Whether others ran beside or just before it, and may hold the memory that it lacked."""
        limit = request.get("bytes")
        self.bytes = limit if isinstance(limit, int) else None
        self.end_reason: str | None = None
        """Why it must end: `too-long`, `crowded`, `cancelled` or `memory`."""
        self.end_requested_at = 0.0
        self.is_started = False
        self.thread = 0
        """The operating system's id of the thread that runs it."""
        self.is_deprioritized = False
        self._answered = threading.Lock()

    def request_end(self, end_reason: str) -> None:
        """Request that it end; the first reason stays."""
        if self.end_reason is None:
            self.end_requested_at = time.monotonic()
            self.end_reason = end_reason

    def end_error(self) -> WorkerError:
        """Return the error of a query that had to end."""
        if self.end_reason == "cancelled":
            return WorkerError("cancelled", "The query was cancelled.")
        if not self.is_started and self.end_reason != "memory":
            return WorkerError(
                "busy", f"No thread was free for {self.crowded_seconds:g} s.", "Retry later."
            )
        if self.end_reason == "crowded":
            return WorkerError(
                "crowded", f"It took {self.crowded_seconds:g} s beside others.", "Retry later."
            )
        if self.end_reason == "memory":  # others may have taken it before
            return WorkerError("crowded", "Memory was short while the query ran.", "Retry later.")
        return WorkerError("too-long", f"The query ran longer than {self.seconds:g} s.",
                      "Read less data, or allow more time.")  # fmt: skip

    def answer(self, reply: dict[str, Any] | ThermoclineError, body: Body = b"") -> None:
        """Reply once; later replies are dropped."""
        if not self._answered.acquire(blocking=False):
            return
        if isinstance(reply, ThermoclineError):
            failed = self.end_error() if self.end_reason else reply
            if failed.code == "memory" and self.ran_concurrently:
                failed = WorkerError(
                    "crowded", "Memory ran out while several queries ran.", "Retry later."
                )
            self.connection.fail(self.request, failed)
        elif self.bytes is not None and len(body) > self.bytes:
            self.connection.fail(self.request, too_large(self.bytes))
        else:
            self.connection.reply(self.request, reply, body)


def too_large(limit: int) -> WorkerError:
    """Return the error of a result with more bytes than allowed."""
    return WorkerError("too-large", f"The result has more than {limit} bytes.",
                  "Select fewer rows or columns.", bytes=limit)  # fmt: skip


def too_many_rows(limit: int) -> WorkerError:
    """Return the error of a result with more rows than allowed."""
    return WorkerError("too-many-rows", f"The result has more than {limit} rows.",
                  "Aggregate, filter, or add a LIMIT.", rows=limit)  # fmt: skip


class JobQueue:
    """All queries of a worker, queued and running: together at most `capacity`."""

    def __init__(self, limit: int) -> None:
        self._capacity = limit
        self._waiting: deque[QueryJob] = deque()
        self._running: dict[str, QueryJob] = {}
        self._changed = threading.Condition()
        self._last_finished_at = -MEMORY_RELEASE_SECONDS

    @property
    def running(self) -> int:
        """How many run now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return len(self._waiting)

    def add(self, job: QueryJob) -> bool:
        """Queue a query. Returns False when the queue is full."""
        with self._changed:
            if len(self._waiting) + len(self._running) >= self._capacity:
                return False
            self._waiting.append(job)
            self._changed.notify()
            return True

    def next(self) -> QueryJob:
        """Wait for a query to run; it counts as running until `finish`."""
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            job = self._waiting.popleft()
            job.is_started = job.end_reason is None
            job.thread = threading.get_native_id()
            self._running[job.key] = job
            job.ran_concurrently = (
                time.monotonic() - self._last_finished_at < MEMORY_RELEASE_SECONDS
            )
            if len(self._running) > 1:
                for each in self._running.values():
                    each.ran_concurrently = True
            return job

    def finish(self, job: QueryJob) -> None:
        """Remove a query that has run."""
        with self._changed:
            del self._running[job.key]
            self._last_finished_at = time.monotonic()

    def cancel(self, connection: Connection, query_id: Any) -> None:
        """Cancel the query with this id on this connection; queries of other connections are not
        affected.
        """
        for job in self._all():
            if job.connection is connection and job.request.get("id") == query_id:
                job.request_end("cancelled")

    def cancel_all(self, connection: Connection) -> None:
        """Cancel the queries of a connection that ended."""
        for job in self._all():
            if job.connection is connection:
                job.request_end("cancelled")

    def end_long_running(self, seconds: float) -> None:
        """End queries that have run longer than `seconds`: they may be why memory is short."""
        late = time.monotonic() - seconds
        with self._changed:
            for job in self._running.values():
                if job.began_at < late:
                    job.request_end("memory")

    def deprioritize_slow(self, seconds: float) -> None:
        """Raise the nice value of queries that have run longer than `seconds`, so that others go
        first.
        """
        late = time.monotonic() - seconds
        with self._changed:
            for job in self._running.values():
                if job.began_at < late and not job.is_deprioritized:
                    job.is_deprioritized = True
                    with contextlib.suppress(OSError, AttributeError):  # Linux only
                        os.setpriority(os.PRIO_PROCESS, job.thread, os.nice(0) + SLOW_QUERY_NICE)

    def expire(self, now: float) -> list[QueryJob]:
        """Return running queries that must end.

        Queued ones past their limit are answered and removed.
        """
        every = self._all()
        for job in every:
            if now - job.began_at > job.seconds:
                job.request_end("too-long")
            elif now - job.began_at > job.crowded_seconds and (
                job.ran_concurrently or not job.is_started
            ):
                job.request_end("crowded")  # another engine may be free
        with self._changed:
            dropped = [job for job in self._waiting if job.end_reason]
            for job in dropped:
                self._waiting.remove(job)
            running = [job for job in self._running.values() if job.end_reason]
        for job in dropped:
            job.answer(job.end_error())
        return running

    def _all(self) -> list[QueryJob]:
        with self._changed:
            return [*self._waiting, *self._running.values()]
