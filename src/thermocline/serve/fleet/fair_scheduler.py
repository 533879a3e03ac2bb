"""Fair scheduling: which caller's query an engine starts next.

A caller's running queries on one engine are limited, so that others find free slots. Of the waiting
queries, the next one is of the caller with the fewest running.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import AsyncIterator

from thermocline.serve.fleet.messages import QueryNotStarted


class FairScheduler:
    """The running queries of one engine by caller, and those that wait for a slot."""

    def __init__(self, max_running: int, max_per_caller: int, max_waiting: int = 256) -> None:
        self._max_running = max_running
        self._max_per_caller = max_per_caller
        self._max_waiting = max_waiting
        self._running: Counter[str] = Counter()
        self._waiting: deque[tuple[str, asyncio.Future[None]]] = deque()

    @property
    def running(self) -> int:
        """How many run now."""
        return self._running.total()

    @contextlib.asynccontextmanager
    async def slot(self, caller: str, seconds: float) -> AsyncIterator[None]:
        """Wait up to `seconds` for a slot. Raises QueryNotStarted when none is free."""
        if self.running < self._max_running and self._running[caller] < self._max_per_caller:
            self._running[caller] += 1
        else:
            await self._wait(caller, seconds)
        try:
            yield
        finally:
            self._running[caller] -= 1
            if not self._running[caller]:
                del self._running[caller]
            self._start_waiting()

    async def _wait(self, caller: str, seconds: float) -> None:
        if sum(name == caller for name, _ in self._waiting) >= self._max_waiting:
            raise QueryNotStarted("Too many queries wait already.", "Retry.")
        turn = asyncio.get_running_loop().create_future()
        entry = caller, turn
        self._waiting.append(entry)
        try:
            await asyncio.wait_for(asyncio.shield(turn), seconds)
        except BaseException as error:
            if turn.done() and not turn.cancelled():  # it got its slot meanwhile
                self._running[caller] -= 1
                self._start_waiting()
            else:
                self._waiting.remove(entry)
            if isinstance(error, TimeoutError):
                raise QueryNotStarted(f"No slot was free for {seconds:.3g} s.", "Retry.") from None
            raise

    def _start_waiting(self) -> None:
        """Start waiting queries: the oldest of the caller with the fewest running."""
        while self.running < self._max_running and self._waiting:
            fits = [each for each in self._waiting if self._running[each[0]] < self._max_per_caller]
            if not fits:
                return
            chosen = min(fits, key=lambda each: self._running[each[0]])
            self._waiting.remove(chosen)
            self._running[chosen[0]] += 1
            chosen[1].set_result(None)
