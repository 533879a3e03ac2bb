"""The answers that are being sent: one budget of memory for all of them.

An answer is held until its reader has it. Those who read slowly cannot have the router hold more
than that: whoever asks for more meanwhile is told to come again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from thermocline.serve.failures import Unavailable

SMALL = 64 * 1024
"""Answers up to this size fit into the buffers of a connection, and count for nothing."""


class Outgoing:
    """Bytes of answers that are being sent, of all callers and of each.

    One caller may have half of them, and always one answer. Bodies that several are sent at once,
    such as a kept answer's, are there once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._readers: Counter[int] = Counter()
        self._held: dict[int, bytes] = {}
        """So that no other body has the same id meanwhile."""
        self._of: Counter[str] = Counter()
        self.bytes = 0

    def hold(self, caller: str, body: bytes) -> Callable[[], None]:
        """Hold an answer while it is sent; the call that is returned lets go of it.

        Raises Unavailable when there is no room for it.
        """
        size = len(body)
        if size <= SMALL:
            return lambda: None
        more = 0 if self._readers[id(body)] else size
        mine = self._of[caller]
        too_much_of_one = mine > 0 and mine + size > self._most // 2
        if too_much_of_one or (self.bytes > 0 and self.bytes + more > self._most):
            raise Unavailable(
                "Too many answers are being sent that their readers have not taken yet.",
                "Read those that were asked for, and ask again.",
            )
        self._readers[id(body)] += 1
        self._held[id(body)] = body
        self._of[caller] += size
        self.bytes += more
        return lambda: self._let_go(caller, body)

    def _let_go(self, caller: str, body: bytes) -> None:
        self._of[caller] -= len(body)
        if not self._of[caller]:
            del self._of[caller]
        self._readers[id(body)] -= 1
        if not self._readers[id(body)]:
            del self._readers[id(body)], self._held[id(body)]
            self.bytes -= len(body)
