"""A breaker: whoever failed several times in a row is left alone for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

FAILURES = 3
PAUSE = 5.0


class Breaker:
    """Closed at first; open after some failures in a row; after a pause one attempt may try."""

    def __init__(
        self,
        failures: int = FAILURES,
        pause: float = PAUSE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = failures
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether attempts are refused at the moment."""
        return self._failures >= self._most and self._clock() < self._until

    def allows(self) -> bool:
        """Whether an attempt may be made now. While open, one attempt a pause."""
        if self._failures < self._most:
            return True
        if self._clock() < self._until:
            return False
        self._until = self._clock() + self._pause
        return True

    def succeeded(self) -> None:
        """The attempt went well: closed again."""
        self._failures = 0

    def failed(self) -> None:
        """The attempt failed for a reason that is not the caller's."""
        self._failures += 1
        if self._failures >= self._most:
            self._until = self._clock() + self._pause
