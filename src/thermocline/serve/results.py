"""Answers that were given already, kept until they no longer fit in memory.

What an answer depends on is its key: the question with its format and what the caller may see, and
the version, which is the snapshots it was read from. A commit makes a new version, so nothing is
ever invalidated; a dashboard that many people look at costs one execution a commit, also when they
all ask at once, and nobody need wait for it where the answer before still will do.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")
_Key = tuple[Hashable, Hashable]


class Results(Generic[T]):
    """The most recently used answers, up to a number of bytes; one execution a key at a time."""

    def __init__(self, most_bytes: int, size: Callable[[T], int]) -> None:
        self._most = most_bytes
        self._size = size
        self._kept: OrderedDict[_Key, tuple[T, int]] = OrderedDict()
        self._newest: dict[Hashable, Hashable] = {}
        """Of which version the answer to a question is that was made last."""
        self._running: dict[_Key, _Shared[T]] = {}
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, question: Hashable, version: Hashable) -> T | None:
        """The answer that is kept."""
        found = self._kept.get((question, version))
        if found is None:
            return None
        self._kept.move_to_end((question, version))
        return found[0]

    async def of(
        self,
        question: Hashable,
        version: Hashable,
        make: Callable[[], Coroutine[Any, Any, T]],
        will_do: Callable[[T], bool] = lambda _: False,
    ) -> tuple[T, bool]:
        """The answer to a question, and whether it was there or on its way already.

        Whoever asks while it is being made waits for it, unless the answer that was made last, of
        another version, still will do: then that is given, and the new one is made meanwhile.
        When all who wait have gone, the making is cancelled. A failure is everybody's who waits,
        and is not kept.
        """
        found = self.get(question, version)
        if found is not None:
            return found, True
        key = (question, version)
        shared = self._running.get(key)
        joined = shared is not None
        if shared is None:
            shared = self._running[key] = _Shared(asyncio.ensure_future(make()))
            shared.task.add_done_callback(lambda task: self._done(key, task))
        before = self.get(question, self._newest.get(question))
        if before is not None and will_do(before):
            return before, True
        return await shared.wait(), joined

    def clear(self) -> None:
        """Forget everything that is kept, and keep nothing of what is being made."""
        self._kept.clear()
        self._newest.clear()
        self._running.clear()
        self.bytes = 0

    def _done(self, key: _Key, task: asyncio.Future[T]) -> None:
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
        self._newest[key[0]] = key[1]
        self.bytes += size
        while self.bytes > self._most:
            (question, version), (_, gone) = self._kept.popitem(last=False)
            self.bytes -= gone
            if self._newest.get(question) == version:
                del self._newest[question]


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
