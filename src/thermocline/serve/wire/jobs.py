"""Queries of a worker: those that wait for a thread, those that run, and which must end."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Any

from thermocline.errors import ThermoclineError
from thermocline.serve.wire.connection import Connection
from thermocline.serve.wire.wire import Body

LONGEST_SECONDS = 3600.0
GIVEN_BACK = 1.0
"""Seconds within which the memory of a query that ended is free again."""
BEHIND = 8
"""How far a thread steps back for others when its query takes long, in the words of `nice`."""


class Failed(ThermoclineError):
    """A query that has no answer. `code` says why, in the words that workers and router share."""

    def __init__(self, code: str, cause: str, next_step: str = "", **details: Any) -> None:
        super().__init__(cause, next_step, **details)
        self.code = code


class Broken(Exception):
    """The engine no longer does what it always does: the process can only be replaced."""


class Job:
    """One query: who asked, until when it may run, and whether it was answered."""

    def __init__(self, key: str, connection: Connection, request: dict[str, Any]) -> None:
        self.key = key
        self.connection = connection
        self.request = request
        self.began = time.monotonic()
        seconds = request.get("seconds")
        self.seconds = LONGEST_SECONDS
        if isinstance(seconds, int | float) and 0 <= seconds < LONGEST_SECONDS:
            self.seconds = float(seconds)
        patience = request.get("patience")
        self.patience = min(patience, self.seconds) if isinstance(patience, float) else self.seconds
        """How long it may wait for a thread, and run beside others."""
        self.crowded = False
        """Whether others ran beside or just before it, and may have the memory that it lacked."""
        most = request.get("bytes")
        self.bytes = most if isinstance(most, int) else None
        self.mark: str | None = None
        """Why it must end: `too-long`, `crowded`, `cancelled` or `memory`."""
        self.marked_at = 0.0
        self.started = False
        self.thread = 0
        """The system's id of the thread that runs it."""
        self.stepped_back = False
        self._answered = threading.Lock()

    def end(self, mark: str) -> None:
        """Say that it must end; the first reason stays."""
        if self.mark is None:
            self.marked_at = time.monotonic()
            self.mark = mark

    def marked(self) -> Failed:
        """The error of a query that had to end."""
        if self.mark == "cancelled":
            return Failed("cancelled", "The query was cancelled.")
        if not self.started and self.mark != "memory":
            return Failed("busy", f"No thread was free for {self.patience:g} s.", "Ask again.")
        if self.mark == "crowded":
            return Failed("crowded", f"It took {self.patience:g} s beside others.", "Ask again.")
        if self.mark == "memory":  # which others may have taken before it
            return Failed("crowded", "Memory was short while the query ran.", "Ask again.")
        return Failed("too-long", f"The query ran longer than {self.seconds:g} s.",
                      "Ask for less, or allow more time.")  # fmt: skip

    def answer(self, said: dict[str, Any] | ThermoclineError, body: Body = b"") -> None:
        """Reply, once: what comes later is dropped."""
        if not self._answered.acquire(blocking=False):
            return
        if isinstance(said, ThermoclineError):
            failed = self.marked() if self.mark else said
            if failed.code == "memory" and self.crowded:
                failed = Failed(
                    "crowded", "Memory ran out while several queries ran.", "Ask again."
                )
            self.connection.fail(self.request, failed)
        elif self.bytes is not None and len(body) > self.bytes:
            self.connection.fail(self.request, too_large(self.bytes))
        else:
            self.connection.reply(self.request, said, body)


def too_large(most: int) -> Failed:
    """The error of a result with more bytes than were allowed."""
    return Failed("too-large", f"The result has more than {most} bytes.",
                  "Ask for fewer rows or columns.", bytes=most)  # fmt: skip


def too_many_rows(most: int) -> Failed:
    """The error of a result with more rows than were allowed."""
    return Failed("too-many-rows", f"The result has more than {most} rows.",
                  "Aggregate, filter, or add a LIMIT.", rows=most)  # fmt: skip


class Jobs:
    """All queries of a worker: at most so many at a time, those that run among them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._waiting: deque[Job] = deque()
        self._running: dict[str, Job] = {}
        self._changed = threading.Condition()
        self._ended = -GIVEN_BACK

    @property
    def running(self) -> int:
        """How many run now."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return len(self._waiting)

    def add(self, job: Job) -> bool:
        """Take a query in, unless there are too many."""
        with self._changed:
            if len(self._waiting) + len(self._running) >= self._most:
                return False
            self._waiting.append(job)
            self._changed.notify()
            return True

    def next(self) -> Job:
        """Wait for a query to run; it counts as running until `done`."""
        with self._changed:
            while not self._waiting:
                self._changed.wait()
            job = self._waiting.popleft()
            job.started = job.mark is None
            job.thread = threading.get_native_id()
            self._running[job.key] = job
            job.crowded = time.monotonic() - self._ended < GIVEN_BACK
            if len(self._running) > 1:
                for each in self._running.values():
                    each.crowded = True
            return job

    def done(self, job: Job) -> None:
        """It runs no more."""
        with self._changed:
            del self._running[job.key]
            self._ended = time.monotonic()

    def cancel(self, connection: Connection, asked: Any) -> None:
        """Cancel the query that has this id on this connection; nobody can cancel another's."""
        for job in self._all():
            if job.connection is connection and job.request.get("id") == asked:
                job.end("cancelled")

    def cancel_all(self, connection: Connection) -> None:
        """Cancel what nobody waits for any more."""
        for job in self._all():
            if job.connection is connection:
                job.end("cancelled")

    def end_large(self, longer: float) -> None:
        """Memory is short: end what has been running for so long that it may be the cause."""
        late = time.monotonic() - longer
        with self._changed:
            for job in self._running.values():
                if job.began < late:
                    job.end("memory")

    def step_back(self, longer: float) -> None:
        """Have what runs longer than that let others go before it."""
        late = time.monotonic() - longer
        with self._changed:
            for job in self._running.values():
                if job.began < late and not job.stepped_back:
                    job.stepped_back = True
                    with contextlib.suppress(OSError, AttributeError):  # Linux only
                        os.setpriority(os.PRIO_PROCESS, job.thread, os.nice(0) + BEHIND)

    def overdue(self, now: float) -> list[Job]:
        """Running queries that must end. Those that waited too long are answered and dropped."""
        every = self._all()
        for job in every:
            if now - job.began > job.seconds:
                job.end("too-long")
            elif now - job.began > job.patience and (job.crowded or not job.started):
                job.end("crowded")  # somebody else may have room for it
        with self._changed:
            dropped = [job for job in self._waiting if job.mark]
            for job in dropped:
                self._waiting.remove(job)
            running = [job for job in self._running.values() if job.mark]
        for job in dropped:
            job.answer(job.marked())
        return running

    def _all(self) -> list[Job]:
        with self._changed:
            return [*self._waiting, *self._running.values()]
