"""Answers that were given already, kept until they no longer fit in memory.

What an answer depends on is its key: the question with its format and what the caller may see, and
the version, which is the snapshots it was read from. A commit makes a new version, so nothing is
ever invalidated; a dashboard that many people look at costs one execution a commit, also when they
all ask at once, and nobody need wait for it where the answer before still will do. When there is
too much to do, answers get older rather than fail.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

from thermocline.errors import Transient

T = TypeVar("T")
_Key = tuple[Hashable, Hashable]

NEW_RESULT_SECONDS = 1.0
SLOWER_FACTOR = 3
"""So many seconds, or times what it once took, a new answer is waited for; then an old one does."""
STUCK_FACTOR = 5
"""After so many times that long, a newer version is made beside the one that does not get done."""


def _never(_: object) -> bool:
    return False


class ResultCache(Generic[T]):
    """The most recently used answers, up to a number of bytes; one execution a key at a time."""

    def __init__(self, max_bytes: int, size: Callable[[Hashable, Hashable, T], int]) -> None:
        """`size` says how much memory an answer takes with its question and version."""
        self._most = max_bytes
        self._size = size
        self._kept: OrderedDict[_Key, tuple[T, int]] = OrderedDict()
        self._newest: dict[Hashable, Hashable] = {}
        """Of which version the answer to a question is that was made last."""
        self._seconds_taken: dict[Hashable, float] = {}
        """How many seconds its quickest making took."""
        self._running: dict[_Key, _SharedExecution[T]] = {}
        self._making: dict[Hashable, list[_SharedExecution[T]]] = {}
        """Which versions of an answer are being made, in the order in which they were begun."""
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

    async def get_or_compute(
        self,
        question: Hashable,
        version: Hashable,
        compute: Callable[[], Coroutine[Any, Any, T]],
        is_fresh: Callable[[T], bool] = _never,
        is_acceptable: Callable[[T], bool] = _never,
    ) -> tuple[T, bool]:
        """The answer to a question, and whether it was there or on its way already.

        Whoever asks while it is being made waits for it, unless the answer that was made last, of
        another version, still will do: then that is given, and the new one is made meanwhile.
        When all who wait have gone, the making is cancelled. A failure is everybody's who waits,
        and is not kept.

        Where the last answer may be given at worst, it is when the new one fails for a while or
        takes far longer than it once did; and of such a question only one version is made at a
        time. So work does not pile up while there is more of it than can be done.
        """
        found = self.get(question, version)
        if found is not None:
            return found, True
        before = self.get(question, self._newest.get(question))
        spare = before if before is not None and is_acceptable(before) else None
        shared = self._running.get((question, version))
        if shared is not None and shared.cancelled:
            shared = None  # all who waited have just gone
        if shared is None and spare is not None:
            shared = self._find_running(question)
        joined = shared is not None
        if shared is None:
            shared = self._start((question, version), compute)
        if before is not None and is_fresh(before):
            return before, True
        if spare is None:
            return await shared.wait(), joined
        made = await shared.result_within(self._wait_seconds(question))
        if made is not None:
            return made, joined
        last = self.get(question, self._newest.get(question))
        return (spare if last is None else last), True

    def _wait_seconds(self, question: Hashable) -> float:
        return max(NEW_RESULT_SECONDS, SLOWER_FACTOR * self._seconds_taken.get(question, 0.0))

    def _find_running(self, question: Hashable) -> _SharedExecution[T] | None:
        """The making of another version, unless it takes so long that a new one may be quicker."""
        begun = [each for each in self._making.get(question, ()) if not each.cancelled]
        stuck = STUCK_FACTOR * self._wait_seconds(question)
        return begun[-1] if begun and begun[-1].seconds < stuck else None

    def _start(
        self, key: _Key, compute: Callable[[], Coroutine[Any, Any, T]]
    ) -> _SharedExecution[T]:
        shared = self._running[key] = _SharedExecution(asyncio.ensure_future(compute()))
        self._making.setdefault(key[0], []).append(shared)
        shared.task.add_done_callback(lambda _: self._finish(key, shared))
        return shared

    def clear(self) -> None:
        """Forget everything that is kept, and keep nothing of what is being made."""
        self._kept.clear()
        self._newest.clear()
        self._seconds_taken.clear()
        self._running.clear()
        self._making.clear()
        self.bytes = 0

    def _finish(self, key: _Key, shared: _SharedExecution[T]) -> None:
        question, task = key[0], shared.task
        failed = task.cancelled() or task.exception() is not None
        if self._running.get(key) is shared:
            del self._running[key]
        making = self._making.get(question, [])
        if shared not in making:
            return  # forgotten meanwhile
        before = making[: making.index(shared)]
        making.remove(shared)
        if not making:
            del self._making[question]
        if failed:
            return
        for each in before:
            each.leave()
        size = self._size(*key, task.result())
        if size > self._most // 8:
            return  # one large answer would push out many small ones
        self._kept[key] = (task.result(), size)
        self._newest[question] = key[1]
        self._seconds_taken[question] = min(
            shared.seconds, self._seconds_taken.get(question, shared.seconds)
        )
        self.bytes += size
        while self.bytes > self._most:
            (question, version), (_, gone) = self._kept.popitem(last=False)
            self.bytes -= gone
            if self._newest.get(question) == version:
                del self._newest[question], self._seconds_taken[question]


def estimate_key_bytes(key: Hashable) -> int:
    """How much memory a question or a version takes."""
    size = sys.getsizeof(key)
    return size + sum(map(estimate_key_bytes, key)) if isinstance(key, tuple | frozenset) else size


class _SharedExecution(Generic[T]):
    """One execution that several wait for."""

    def __init__(self, task: asyncio.Future[T]) -> None:
        self.task = task
        self.cancelled = False
        self._began = time.perf_counter()
        self._waiting = 0

    @property
    def seconds(self) -> float:
        """How long it has been going on."""
        return time.perf_counter() - self._began

    async def result_within(self, seconds: float) -> T | None:
        """What is made within so many seconds; None if nothing is, which may be for a while."""
        await asyncio.wait({self.task}, timeout=seconds)
        if not self.task.done() or self.task.cancelled():
            return None
        if isinstance(self.task.exception(), Transient):
            return None
        return self.task.result()

    async def wait(self) -> T:
        self._waiting += 1
        try:
            # Shielded: one who leaves does not take the answer away from the others.
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            self.leave()

    def leave(self) -> None:
        """Somebody no longer needs it: unless others wait for it, it is cancelled."""
        if not self._waiting and not self.task.done():
            self.cancelled = True
            self.task.cancel()
