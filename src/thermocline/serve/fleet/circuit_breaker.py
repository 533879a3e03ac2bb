"""A circuit breaker: after several failures in a row an engine gets no queries for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

MAX_FAILURES = 3
PAUSE_SECONDS = 5.0


class CircuitBreaker:
    """Closed at first; open after several failures in a row; allows one attempt per pause."""

    def __init__(
        self,
        failures: int = MAX_FAILURES,
        pause: float = PAUSE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_failures = failures
        self._pause = pause
        self._clock = clock
        self._failures = 0
        self._until = 0.0

    @property
    def is_open(self) -> bool:
        """Whether attempts are refused now."""
        return self._failures >= self._max_failures and self._clock() < self._until

    def allows(self) -> bool:
        """Return whether an attempt may be made now. While open, one attempt per pause."""
        if self._failures < self._max_failures:
            return True
        if self._clock() < self._until:
            return False
        self._until = self._clock() + self._pause
        return True

    def record_success(self) -> None:
        """Close the breaker."""
        self._failures = 0

    def record_failure(self) -> None:
        """Count a failure that is not the query's."""
        self._failures += 1
        if self._failures >= self._max_failures:
            self._until = self._clock() + self._pause
