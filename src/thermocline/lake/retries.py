"""Tables of ours in a catalog's database: made by whichever process needs them first."""

from __future__ import annotations

from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random


def retry_creation() -> Retrying:
    """Return what makes tables though others make them too: the loser finds them on a retry."""
    return Retrying(
        retry=retry_if_exception_type((IntegrityError, ProgrammingError, OperationalError)),
        stop=stop_after_attempt(10),
        wait=wait_random(0, 0.2),
        reraise=True,
    )
