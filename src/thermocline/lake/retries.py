"""Retry with back-off: commits that lose against concurrent writers, and the creation of tables."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tenacity import (
    Retrying,
    retry_if_exception_type,
    stop_after_attempt,
    stop_after_delay,
    wait_random,
    wait_random_exponential,
)

from thermocline.lake.commit_failures import MainMoved

T = TypeVar("T")

COMMIT_RETRY_SECONDS = 60.0
"""Seconds for which a commit is retried while concurrent commits win."""
MAX_PUBLISH_ATTEMPTS = 8
"""Attempts to publish a draft; each sees a main that moved once more."""
PUBLISH_PAUSE_SECONDS = 0.1
MAX_CREATION_ATTEMPTS = 10
MAX_CONNECT_ATTEMPTS = 5


def retry_on(error: type[Exception], seconds: float | None = None) -> Retrying:
    """Return attempts with jittered exponential back-off that end with the last error."""
    return Retrying(
        retry=retry_if_exception_type(error),
        wait=wait_random_exponential(multiplier=0.05, max=2.0),
        stop=stop_after_delay(COMMIT_RETRY_SECONDS if seconds is None else seconds),
        reraise=True,
    )


def retry_moved_main(
    attempt: Callable[[], T], recover: Callable[[MainMoved], None] | None = None
) -> T:
    """Return what an attempt that publishes returns. Retry it when main moved meanwhile.

    `recover` brings what the next attempt publishes onto the new main. Without it the attempt
    itself starts from there.
    """
    for number in range(1, MAX_PUBLISH_ATTEMPTS):
        try:
            return attempt()
        except MainMoved as moved:
            if recover is not None:
                recover(moved)
            else:
                time.sleep(PUBLISH_PAUSE_SECONDS * number)
    return attempt()


def retry_table_creation() -> Retrying:
    """Return attempts to create tables of our own in a catalog's database.

    Several processes may create them at once: the losers find the tables on a retry.
    """
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    return _retry_race((IntegrityError, ProgrammingError, OperationalError), MAX_CREATION_ATTEMPTS)


def retry_connect(catalog_type: str) -> Retrying:
    """Return attempts to connect to a catalog, which creates the catalog's tables if needed.

    Of several processes that connect for the first time one creates the tables; the others find
    them on a retry.
    """
    from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

    lost: tuple[type[Exception], ...] = (IntegrityError, ProgrammingError)
    if catalog_type == "sqlite":
        lost = (*lost, OperationalError)
    return _retry_race(lost, MAX_CONNECT_ATTEMPTS)


def _retry_race(lost: tuple[type[Exception], ...], attempts: int) -> Retrying:
    return Retrying(
        retry=retry_if_exception_type(lost),
        stop=stop_after_attempt(attempts),
        wait=wait_random(0, 0.2),
        reraise=True,
    )
