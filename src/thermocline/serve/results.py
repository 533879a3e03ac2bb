"""Answers that were given already, kept until they no longer fit in memory.

What an answer depends on is its key: the question, the snapshots, the format and what the caller
may see. A commit makes a new key, so nothing is ever invalidated; a dashboard that many people
look at costs one execution a commit, also when they all ask at once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T")


class Results(Generic[T]):
    """The most recently used answers, up to a number of bytes; one execution a key at a time."""

    def __init__(self, most_bytes: int, size: Callable[[T], int]) -> None:
        self._most = most_bytes
        self._size = size
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._running: dict[Hashable, _Shared[T]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> T | None:
        """The answer that is kept under a key."""
        found = self._kept.get(key)
        if found is None:
            return None
        self._kept.move_to_end(key)
        return found[0]

    async def of(self, key: Hashable, make: Callable[[], Awaitable[T]]) -> tuple[T, bool]:
        """The answer under a key, and whether it was there or on its way already.

        Whoever asks while it is being made waits for it. When all who wait have gone, the making
        is cancelled. A failure is everybody's who waits, and is not kept.
        """
        found = self.get(key)
        if found is not None:
            return found, True
        shared = self._running.get(key)
        joined = shared is not None
        if shared is None:
            shared = self._running[key] = _Shared(asyncio.ensure_future(make()))
            shared.task.add_done_callback(lambda task: self._done(key, task))
        return await shared.wait(), joined

    def clear(self) -> None:
        """Forget everything that is kept, and keep nothing of what is being made."""
        self._kept.clear()
        self._running.clear()
        self.bytes = 0

    def _done(self, key: Hashable, task: asyncio.Future[T]) -> None:
        failed = task.cancelled() or task.exception() is not None
        shared = self._running.get(key)
        if shared is None or shared.task is not task:
            return  # forgotten meanwhile
        del self._running[key]
        if failed:
            return
        size = self._size(task.result())
        if size > self._most // 8:
            return  # one large answer would push out many small ones
        self._kept[key] = (task.result(), size)
        self.bytes += size
        while self.bytes > self._most:
            _, (_, gone) = self._kept.popitem(last=False)
            self.bytes -= gone


class _Shared(Generic[T]):
    """One execution that several wait for."""

    def __init__(self, task: asyncio.Future[T]) -> None:
        self.task = task
        self._waiting = 0

    async def wait(self) -> T:
        self._waiting += 1
        try:
            # Shielded: one who leaves does not take the answer away from the others.
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            if not self._waiting and not self.task.done():
                self.task.cancel()
