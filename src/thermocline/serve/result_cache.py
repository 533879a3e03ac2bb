"""The cache of results, bounded by memory.

The key of a result is the query with its format and the caller's policy, and its version, the
snapshots that it was read from. A commit makes a new version, so nothing is ever invalidated. A
dashboard with many users costs one execution per commit, also for concurrent requests, and no
request waits for it while the previous result is fresh enough. Under overload, results get staler
instead of failing.
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
"""After this time, or this multiple of the fastest execution, an old result is returned."""
STUCK_FACTOR = 5
"""After this multiple of that time, a newer version is computed beside the stuck one."""


def _never(_: object) -> bool:
    return False


class ResultCache(Generic[T]):
    """The most recently used results, up to a number of bytes; one execution per key at a time."""

    def __init__(self, max_bytes: int, size: Callable[[Hashable, Hashable, T], int]) -> None:
        """`size` returns the memory of a result with its query and version."""
        self._max_bytes = max_bytes
        self._size = size
        self._entries: OrderedDict[_Key, tuple[T, int]] = OrderedDict()
        self._newest: dict[Hashable, Hashable] = {}
        """The version of the last computed result of each query."""
        self._seconds_taken: dict[Hashable, float] = {}
        """The seconds of the fastest execution of each query."""
        self._running: dict[_Key, _SharedExecution[T]] = {}
        self._executions_by_query: dict[Hashable, list[_SharedExecution[T]]] = {}
        """The running executions of each query, over all versions, in order of their start."""
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, query: Hashable, version: Hashable) -> T | None:
        """Return the cached result, or None."""
        found = self._entries.get((query, version))
        if found is None:
            return None
        self._entries.move_to_end((query, version))
        return found[0]

    async def get_or_compute(
        self,
        query: Hashable,
        version: Hashable,
        compute: Callable[[], Coroutine[Any, Any, T]],
        is_fresh: Callable[[T], bool] = _never,
        is_acceptable: Callable[[T], bool] = _never,
    ) -> tuple[T, bool]:
        """Return the result of a query, and whether it was cached or already being computed.

        Concurrent requests share one execution, unless the last result, of another version, is
        fresh: then that is returned, and the new one is computed meanwhile. When all waiting
        requests are cancelled, so is the execution. All waiting requests get its error, which is
        not cached.

        If the last result is acceptable, it is returned when the new one fails with a transient
        error or takes far longer than before; and only one version of such a query is computed at
        a time. So work does not pile up under overload.
        """
        found = self.get(query, version)
        if found is not None:
            return found, True
        before = self.get(query, self._newest.get(query))
        fallback = before if before is not None and is_acceptable(before) else None
        shared = self._running.get((query, version))
        if shared is not None and shared.cancelled:
            shared = None  # all waiting requests were just cancelled
        if shared is None and fallback is not None:
            shared = self._find_running(query)
        is_shared = shared is not None
        if shared is None:
            shared = self._start((query, version), compute)
        if before is not None and is_fresh(before):
            return before, True
        if fallback is None:
            return await shared.wait(), is_shared
        result = await shared.result_within(self._wait_seconds(query))
        if result is not None:
            return result, is_shared
        latest = self.get(query, self._newest.get(query))
        return (fallback if latest is None else latest), True

    def _wait_seconds(self, query: Hashable) -> float:
        return max(NEW_RESULT_SECONDS, SLOWER_FACTOR * self._seconds_taken.get(query, 0.0))

    def _find_running(self, query: Hashable) -> _SharedExecution[T] | None:
        """Return a running execution of another version, unless it seems stuck."""
        executions = [
            each for each in self._executions_by_query.get(query, ()) if not each.cancelled
        ]
        stuck = STUCK_FACTOR * self._wait_seconds(query)
        return executions[-1] if executions and executions[-1].seconds < stuck else None

    def _start(
        self, key: _Key, compute: Callable[[], Coroutine[Any, Any, T]]
    ) -> _SharedExecution[T]:
        shared = self._running[key] = _SharedExecution(asyncio.ensure_future(compute()))
        self._executions_by_query.setdefault(key[0], []).append(shared)
        shared.task.add_done_callback(lambda _: self._finish(key, shared))
        return shared

    def clear(self) -> None:
        """Remove all results, and do not cache those of running executions."""
        self._entries.clear()
        self._newest.clear()
        self._seconds_taken.clear()
        self._running.clear()
        self._executions_by_query.clear()
        self.bytes = 0

    def _finish(self, key: _Key, shared: _SharedExecution[T]) -> None:
        query, task = key[0], shared.task
        failed = task.cancelled() or task.exception() is not None
        if self._running.get(key) is shared:
            del self._running[key]
        executions = self._executions_by_query.get(query, [])
        if shared not in executions:
            return  # cleared meanwhile
        before = executions[: executions.index(shared)]
        executions.remove(shared)
        if not executions:
            del self._executions_by_query[query]
        if failed:
            return
        for each in before:
            each.leave()
        size = self._size(*key, task.result())
        if size > self._max_bytes // 8:
            return  # one large result would evict many small ones
        self._entries[key] = (task.result(), size)
        self._newest[query] = key[1]
        self._seconds_taken[query] = min(
            shared.seconds, self._seconds_taken.get(query, shared.seconds)
        )
        self.bytes += size
        while self.bytes > self._max_bytes:
            (query, version), (_, gone) = self._entries.popitem(last=False)
            self.bytes -= gone
            if self._newest.get(query) == version:
                del self._newest[query], self._seconds_taken[query]


def estimate_key_bytes(key: Hashable) -> int:
    """Return the memory of a query or a version."""
    size = sys.getsizeof(key)
    return size + sum(map(estimate_key_bytes, key)) if isinstance(key, tuple | frozenset) else size


class _SharedExecution(Generic[T]):
    """One execution, shared by several requests."""

    def __init__(self, task: asyncio.Future[T]) -> None:
        self.task = task
        self.cancelled = False
        self._began = time.perf_counter()
        self._waiting = 0

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.perf_counter() - self._began

    async def result_within(self, seconds: float) -> T | None:
        """Return the result, or None after `seconds` or on a transient error."""
        await asyncio.wait({self.task}, timeout=seconds)
        if not self.task.done() or self.task.cancelled():
            return None
        if isinstance(self.task.exception(), Transient):
            return None
        return self.task.result()

    async def wait(self) -> T:
        self._waiting += 1
        try:
            # Shielded: a cancelled request does not cancel the execution for the others.
            return await asyncio.shield(self.task)
        finally:
            self._waiting -= 1
            self.leave()

    def leave(self) -> None:
        """Cancel the execution unless other requests wait for it."""
        if not self._waiting and not self.task.done():
            self.cancelled = True
            self.task.cancel()
