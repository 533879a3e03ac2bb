"""A file that was just committed may not be there yet, or its store may stumble: look again."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from thermocline.errors import NotFound

PAUSE = 0.2
TRIES = 5

_Found = TypeVar("_Found")


def retry_reads(read: Callable[[], _Found]) -> _Found:
    """What `read` gives; where it cannot have a file it is called again, a few times."""
    from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_fixed

    attempts = Retrying(
        retry=retry_if_exception_type((OSError, NotFound)),
        wait=wait_fixed(PAUSE),
        stop=stop_after_attempt(TRIES),
        reraise=True,
    )
    return attempts(read)
