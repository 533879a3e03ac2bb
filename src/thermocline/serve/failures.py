"""Errors of serving: limits, load, deadlines, engines and authentication.

Invalid queries raise the guard's `QueryRefused` or `NotFound`.
"""

from __future__ import annotations

from typing import Any

from thermocline.errors import BadInput, Permanent, Transient
from thermocline.sql.guard import DIVISION_BY_ZERO


class TooMuch(BadInput):
    """The request or its answer is larger than this server allows."""

    code = "too-much"


class Busy(Transient):
    """The caller, or all callers together, send more queries than can be answered now.

    `details["retry_after"]` is the number of seconds after which to retry.
    """

    code = "busy"


class DivisionByZero(BadInput):
    """A division by zero, in a dialect in which it fails the query."""

    code = "division-by-zero"

    def __init__(self) -> None:
        super().__init__(f"{DIVISION_BY_ZERO}.", "Divide by nullif(…, 0) to get null instead.")


class TooLate(Transient):
    """The caller's deadline passed before there was an answer."""

    code = "too-late"


class BothFailed(Transient):
    """All engines that could answer failed."""

    code = "both-failed"


class Unavailable(BothFailed):
    """The engines that could answer are down or overloaded: a retry soon may succeed."""

    code = "unavailable"

    def __init__(self, cause: str, next_step: str = "", **details: Any) -> None:
        super().__init__(cause, next_step or "Retry in a moment.", retry_after=1, **details)


class FilesMissing(Transient):
    """A file that the query reads is missing: deleted by hand, or since the last poll."""

    code = "file-missing"


class Unauthenticated(Permanent):
    """The caller is unknown: no token, or one that is wrong, expired or revoked."""

    code = "unauthenticated"
    exit_code = 2


class Forbidden(Permanent):
    """A request that is never allowed, such as one made by another site's web page."""

    code = "forbidden"
    exit_code = 2
