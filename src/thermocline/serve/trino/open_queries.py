"""Open queries, whose pages clients fetch one by one.

Their number and memory are bounded. A client that opens queries and abandons them loses its own
older queries first, not those of others; a query that is not fetched any more is cancelled.
"""

from __future__ import annotations

import asyncio
import secrets
import string
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, replace
from typing import Any

from thermocline.errors import NotFound
from thermocline.serve.failures import Busy
from thermocline.serve.trino.error_codes import TrinoError
from thermocline.serve.trino.statement_result import StatementResult


@dataclass(frozen=True)
class PagingLimits:
    """Limits of open queries.

    `first_wait_seconds` is how long the request that posts a statement waits for its end,
    `poll_seconds` how long the following requests wait.
    """

    max_queries: int = 2_000
    max_queries_per_owner: int = 200
    max_bytes: int = 64 << 20
    page_bytes: int = 1 << 20
    first_wait_seconds: float = 0.1
    poll_seconds: float = 1.0
    idle_seconds: float = 300.0
    evictable_seconds: float = 10.0
    """A query that was idle for so long is dropped when its owner opens too many."""


class PageGone(NotFound):
    """An earlier page than the last one."""

    code = "gone"


@dataclass(frozen=True)
class ResultPage:
    """One response to a client: its rows, if any, and whether more pages follow."""

    token: int
    state: str
    result: StatementResult | None
    rows: bytes
    error: BaseException | None
    has_more: bool


class OpenQuery:
    """A statement of one owner, from its start until its last page is forgotten."""

    def __init__(
        self, owner: str, user: str, work: Coroutine[Any, Any, StatementResult], page: int
    ):
        self.id = _id()
        self.slug = secrets.token_urlsafe(24)
        self.owner = owner
        self.user = user
        self.started_at = self.last_used_at = time.monotonic()
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._on_done)
        self._size = page
        self._pages: deque[bytes] = deque()
        self._result: StatementResult | None = None
        self._error: BaseException | None = None
        self._last: ResultPage | None = None
        self._page_lock = asyncio.Lock()

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return not self._task.done()

    @property
    def bytes(self) -> int:
        """How many bytes of rows it keeps in memory."""
        last = len(self._last.rows) if self._last else 0
        return last + sum(len(page) for page in self._pages)

    @property
    def elapsed(self) -> int:
        """Milliseconds since it was sent."""
        return int((time.monotonic() - self.started_at) * 1000)

    async def page(self, token: int, wait: float) -> ResultPage:
        """Return the page with this number: the next one, or the last one again."""
        self.last_used_at = time.monotonic()
        async with self._page_lock:
            at = self._last.token if self._last else -1
            if self._last is not None and token == at:
                return self._last
            is_finished = self._last is not None and not self._last.has_more and self._error is None
            if token < at or token > at + 1 or is_finished:
                kind = PageGone if token < at else NotFound
                raise kind("There is no such page of the query.", "Follow nextUri.")
            if self.is_running:
                await asyncio.wait({self._task}, timeout=wait)
            self._last = self._next_page(token)
            self.last_used_at = time.monotonic()
            return self._last

    def stop(self, error: BaseException) -> None:
        """End it with an error, which its next page returns."""
        if self.is_running:
            self._task.cancel()
        if self._error is None:
            self._error = error
        self._pages.clear()
        if self._last is not None and self._last.rows:
            # The rows are dropped; a request for them returns the error.
            self._last = ResultPage(self._last.token, "FAILED", None, b"", error, False)

    def _on_done(self, task: asyncio.Task[StatementResult]) -> None:
        if task.cancelled():
            self._error = self._error or _cancelled_error()
        elif task.exception() is not None:
            self._error = self._error or task.exception()
        elif self._error is None:
            found = task.result()
            self._pages.extend(_split_pages(found.body, self._size))
            self._result = replace(found, body=b"")  # the pages have it

    def _next_page(self, token: int) -> ResultPage:
        if self._error is not None:
            return ResultPage(token, "FAILED", None, b"", self._error, False)
        if self._result is None:
            return ResultPage(token, "RUNNING" if token else "QUEUED", None, b"", None, True)
        rows = self._pages.popleft() if self._pages else b""
        more = bool(self._pages)
        return ResultPage(token, "RUNNING" if more else "FINISHED", self._result, rows, None, more)


class OpenQueries:
    """All queries whose pages clients may still fetch."""

    def __init__(self, limits: PagingLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._open: dict[str, OpenQuery] = {}
        self._sweep_timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def bytes(self) -> int:
        """How many bytes of rows all of them keep in memory."""
        return sum(query.bytes for query in self._open.values())

    def start(self, owner: str, user: str, work: Coroutine[Any, Any, StatementResult]) -> OpenQuery:
        """Start a query. Raises Busy when there are too many."""
        try:
            self._make_room(owner)
        except Busy:
            work.close()
            raise
        query = OpenQuery(owner, user, work, self._limits.page_bytes)
        self._open[query.id] = query
        if self._sweep_timer is None:
            self._schedule_sweep()
        return query

    def find(self, id: str, slug: str, owner: str, user: str | None) -> OpenQuery:
        """Return the query with this id. Raises NotFound for a wrong slug, owner or user."""
        query = self._open.get(id)
        is_known = query is not None and secrets.compare_digest(query.slug.encode(), slug.encode())
        if query is None or not is_known or query.owner != owner:
            raise NotFound("There is no such query.", "Send the statement again.")
        if user is not None and user != query.user:
            raise NotFound("There is no such query.", "Send the statement again.")
        return query

    def forget(self, query: OpenQuery) -> None:
        """Remove a query whose last page was returned."""
        self._open.pop(query.id, None)

    def trim(self) -> None:
        """Drop the least recently fetched results until the rest fits in memory."""
        kept_bytes = self.bytes
        for query in sorted(self._open.values(), key=lambda each: each.last_used_at):
            if kept_bytes <= self._limits.max_bytes:
                return
            kept_bytes -= query.bytes
            query.stop(_results_dropped_error())

    def sweep(self) -> None:
        """Cancel and remove abandoned queries."""
        for query in self._idle(self._limits.idle_seconds):
            self._abandon(query)

    def _make_room(self, owner: str) -> None:
        own_queries = [query for query in self._open.values() if query.owner == owner]
        full = len(self._open) >= self._limits.max_queries
        if len(own_queries) < self._limits.max_queries_per_owner and not full:
            return
        idle = [
            query
            for query in self._idle(self._limits.evictable_seconds)
            if full or query in own_queries
        ]
        if not idle:
            raise Busy(
                f"There are {len(own_queries):,} queries of yours that are not finished.",
                "Fetch their rows or cancel them.",
                retry_after=1,
            )
        self._abandon(min(idle, key=lambda each: each.last_used_at))

    def _idle(self, seconds: float) -> list[OpenQuery]:
        now = self._clock()
        return [query for query in self._open.values() if now - query.last_used_at > seconds]

    def _abandon(self, query: OpenQuery) -> None:
        query.stop(_abandoned_error())
        self._open.pop(query.id, None)

    def _schedule_sweep(self) -> None:
        def sweep_again() -> None:
            self._sweep_timer = None
            self.sweep()
            if self._open:
                self._schedule_sweep()

        pause = max(self._limits.idle_seconds / 10, 0.01)
        self._sweep_timer = asyncio.get_running_loop().call_later(pause, sweep_again)


def _split_pages(body: bytes, size: int) -> Iterator[bytes]:
    """Split rows into pages of comma-separated JSON arrays; a row is never split."""
    body = body.strip(b"\n")
    start = 0
    while start < len(body):
        end = len(body)
        if end - start > size:
            cut = body.rfind(b"\n", start, start + size)
            if cut < 0:
                cut = body.find(b"\n", start + size)
            end = cut if cut >= 0 else end
        yield body[start:end].replace(b"\n", b",")
        start = end + 1


def _id() -> str:
    letters = string.ascii_lowercase + string.digits
    end = "".join(secrets.choice(letters) for _ in range(5))
    return f"{time.strftime('%Y%m%d_%H%M%S', time.gmtime())}_{secrets.randbelow(100_000):05}_{end}"


def _cancelled_error() -> TrinoError:
    return TrinoError("USER_CANCELED", "Query was canceled.")


def _abandoned_error() -> TrinoError:
    return TrinoError("ABANDONED_QUERY", "The query was abandoned by its client.", "Send it again.")


def _results_dropped_error() -> Busy:
    return Busy("The server keeps too many results.", "Fetch rows sooner, or select fewer.")
