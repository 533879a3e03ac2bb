"""Retry reads: a file that was just committed may not be visible yet, or the store may fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from thermocline.errors import NotFound

PAUSE = 0.2
TRIES = 5

_Found = TypeVar("_Found")


def retry_reads(read: Callable[[], _Found]) -> _Found:
    """Return what `read` returns; retry a few times when a file cannot be read."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

    attempts = Retrying(
        retry=retry_if_exception_type((OSError, NotFound)),
        wait=wait_fixed(PAUSE),
        stop=stop_after_attempt(TRIES),
        reraise=True,
    )
    return attempts(read)
