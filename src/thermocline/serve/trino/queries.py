"""What is under way: queries that clients come back for, page by page.

All of it is bounded. Whoever opens queries and never comes back costs first their own other
queries, and nobody else's; a query that nobody asks for any more is cancelled.
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
from thermocline.serve.trino.faults import Faulty
from thermocline.serve.trino.outcome import Outcome


@dataclass(frozen=True)
class Limits:
    """How much is kept for clients. Seconds and bytes.

    `first` is how long a statement's own request waits for its end, `poll` how long the others.
    """

    most: int = 2_000
    most_each: int = 200
    bytes: int = 64 << 20
    page: int = 1 << 20
    first: float = 0.1
    poll: float = 1.0
    idle: float = 300.0
    pressed: float = 10.0
    """A query not asked for so long goes when its owner's new ones need the room."""


class Gone(NotFound):
    """A page that was left behind."""

    code = "gone"


@dataclass(frozen=True)
class Page:
    """One answer to a client: its rows if there are any, and whether there are more pages."""

    token: int
    state: str
    outcome: Outcome | None
    rows: bytes
    error: BaseException | None
    more: bool


class Query:
    """A statement of one owner, from its start until its last page is forgotten."""

    def __init__(self, owner: str, user: str, work: Coroutine[Any, Any, Outcome], page: int):
        self.id = _id()
        self.slug = secrets.token_urlsafe(24)
        self.owner = owner
        self.user = user
        self.started = self.touched = time.monotonic()
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._ended)
        self._size = page
        self._pages: deque[bytes] = deque()
        self._outcome: Outcome | None = None
        self._error: BaseException | None = None
        self._last: Page | None = None
        self._turn = asyncio.Lock()

    @property
    def running(self) -> bool:
        """Whether its end is not known yet."""
        return not self._task.done()

    @property
    def bytes(self) -> int:
        """What it keeps in memory."""
        last = len(self._last.rows) if self._last else 0
        return last + sum(len(page) for page in self._pages)

    @property
    def elapsed(self) -> int:
        """Milliseconds since it was sent."""
        return int((time.monotonic() - self.started) * 1000)

    async def page(self, token: int, wait: float) -> Page:
        """The page of a number: the next one, or the last one once more."""
        self.touched = time.monotonic()
        async with self._turn:
            at = self._last.token if self._last else -1
            if self._last is not None and token == at:
                return self._last
            over = self._last is not None and not self._last.more and self._error is None
            if token < at or token > at + 1 or over:
                kind = Gone if token < at else NotFound
                raise kind("There is no such page of the query.", "Follow nextUri.")
            if self.running:
                await asyncio.wait({self._task}, timeout=wait)
            self._last = self._made(token)
            self.touched = time.monotonic()
            return self._last

    def stop(self, error: BaseException) -> None:
        """End it for a reason, which is what its next page says."""
        if self.running:
            self._task.cancel()
        if self._error is None:
            self._error = error
        self._pages.clear()
        if self._last is not None and self._last.rows:
            # The rows go; who asks for them again is told why there are none.
            self._last = Page(self._last.token, "FAILED", None, b"", error, False)

    def _ended(self, task: asyncio.Task[Outcome]) -> None:
        if task.cancelled():
            self._error = self._error or _cancelled()
        elif task.exception() is not None:
            self._error = self._error or task.exception()
        elif self._error is None:
            found = task.result()
            self._pages.extend(_cut(found.body, self._size))
            self._outcome = replace(found, body=b"")  # which the pages hold

    def _made(self, token: int) -> Page:
        if self._error is not None:
            return Page(token, "FAILED", None, b"", self._error, False)
        if self._outcome is None:
            return Page(token, "RUNNING" if token else "QUEUED", None, b"", None, True)
        rows = self._pages.popleft() if self._pages else b""
        more = bool(self._pages)
        return Page(token, "RUNNING" if more else "FINISHED", self._outcome, rows, None, more)


class Queries:
    """All queries that clients may come back for."""

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._limits = limits
        self._clock = clock
        self._open: dict[str, Query] = {}
        self._sweeping: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._open)

    @property
    def bytes(self) -> int:
        """What all of them keep in memory."""
        return sum(query.bytes for query in self._open.values())

    def start(self, owner: str, user: str, work: Coroutine[Any, Any, Outcome]) -> Query:
        """Begin a query, if there is room for it. Busy if there is none."""
        try:
            self._make_room(owner)
        except Busy:
            work.close()
            raise
        query = Query(owner, user, work, self._limits.page)
        self._open[query.id] = query
        if self._sweeping is None:
            self._sweep_later()
        return query

    def find(self, id: str, slug: str, owner: str, user: str | None) -> Query:
        """The query of an id, for those who know its slug and own it; for others there is none."""
        query = self._open.get(id)
        known = query is not None and secrets.compare_digest(query.slug.encode(), slug.encode())
        if query is None or not known or query.owner != owner:
            raise NotFound("There is no such query.", "Send the statement again.")
        if user is not None and user != query.user:
            raise NotFound("There is no such query.", "Send the statement again.")
        return query

    def forget(self, query: Query) -> None:
        """Keep nothing more of a query, whose last page was given."""
        self._open.pop(query.id, None)

    def trim(self) -> None:
        """Give up the results that were longest not asked for until the rest fits in memory."""
        kept = self.bytes
        for query in sorted(self._open.values(), key=lambda each: each.touched):
            if kept <= self._limits.bytes:
                return
            kept -= query.bytes
            query.stop(_dropped())

    def sweep(self) -> None:
        """Cancel and forget what nobody came back for."""
        for query in self._idle(self._limits.idle):
            self._drop(query)

    def _make_room(self, owner: str) -> None:
        mine = [query for query in self._open.values() if query.owner == owner]
        full = len(self._open) >= self._limits.most
        if len(mine) < self._limits.most_each and not full:
            return
        idle = [query for query in self._idle(self._limits.pressed) if full or query in mine]
        if not idle:
            raise Busy(
                f"There are {len(mine):,} queries of yours that are not finished.",
                "Fetch their rows or cancel them.",
                retry_after=1,
            )
        self._drop(min(idle, key=lambda each: each.touched))

    def _idle(self, seconds: float) -> list[Query]:
        now = self._clock()
        return [query for query in self._open.values() if now - query.touched > seconds]

    def _drop(self, query: Query) -> None:
        query.stop(_abandoned())
        self._open.pop(query.id, None)

    def _sweep_later(self) -> None:
        def swept() -> None:
            self._sweeping = None
            self.sweep()
            if self._open:
                self._sweep_later()

        pause = max(self._limits.idle / 10, 0.01)
        self._sweeping = asyncio.get_running_loop().call_later(pause, swept)


def _cut(body: bytes, size: int) -> Iterator[bytes]:
    """Pages of whole lines, as JSON lists them; a row is never cut, however long it is."""
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


def _cancelled() -> Faulty:
    return Faulty("USER_CANCELED", "Query was canceled.")


def _abandoned() -> Faulty:
    return Faulty("ABANDONED_QUERY", "The query was not asked for any more.", "Send it again.")


def _dropped() -> Busy:
    return Busy("The server keeps too many results.", "Fetch rows sooner, or ask for fewer.")
