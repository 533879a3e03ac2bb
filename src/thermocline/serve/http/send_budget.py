"""One memory budget for all answers that are being sent.

An answer stays in memory until its caller has read it. Slow readers cannot exceed the budget: a
further answer is refused with 503 meanwhile.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from thermocline.serve.failures import Unavailable

SMALL_BYTES = 64 * 1024
"""Answers up to this size fit into the buffers of a connection, and are not counted."""


class SendBudget:
    """Bytes of answers that are being sent, in total and per caller.

    One caller may have half of the budget, and always one answer. A body that is sent to several
    callers, such as a cached result, counts once.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._reader_counts: Counter[int] = Counter()
        self._bodies: dict[int, bytes] = {}
        """Keeps the bodies alive, so that no other body gets the same id."""
        self._bytes_of_caller: Counter[str] = Counter()
        self.bytes = 0

    def reserve(self, caller: str, body: bytes) -> Callable[[], None]:
        """Reserve the memory of an answer; call the returned function to release it.

        Raises Unavailable when it exceeds the budget.
        """
        size = len(body)
        if size <= SMALL_BYTES:
            return lambda: None
        more = 0 if self._reader_counts[id(body)] else size
        mine = self._bytes_of_caller[caller]
        too_much_of_one = mine > 0 and mine + size > self._max_bytes // 2
        if too_much_of_one or (self.bytes > 0 and self.bytes + more > self._max_bytes):
            raise Unavailable(
                "Too many answers have not been read yet.",
                "Read the pending answers, then retry.",
            )
        self._reader_counts[id(body)] += 1
        self._bodies[id(body)] = body
        self._bytes_of_caller[caller] += size
        self.bytes += more
        return lambda: self._release(caller, body)

    def _release(self, caller: str, body: bytes) -> None:
        self._bytes_of_caller[caller] -= len(body)
        if not self._bytes_of_caller[caller]:
            del self._bytes_of_caller[caller]
        self._reader_counts[id(body)] -= 1
        if not self._reader_counts[id(body)]:
            del self._reader_counts[id(body)], self._bodies[id(body)]
            self.bytes -= len(body)
