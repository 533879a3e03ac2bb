"""Why a question was not answered, when it was not the question's fault alone.

What is wrong with a question itself is said by the guard (`Refused`) or by `NotFound`.
"""

from __future__ import annotations

from typing import Any

from thermocline.errors import BadInput, Permanent, Transient
from thermocline.sql.guard import DIVISION_BY_ZERO


class TooMuch(BadInput):
    """The request or its answer is larger than this server allows."""

    code = "too-much"


class Busy(Transient):
    """The caller, or everybody together, asks more than can be answered now.

    `details["retry_after"]` is in how many seconds asking again makes sense.
    """

    code = "busy"


class DivisionByZero(BadInput):
    """A number was divided by zero, in a dialect in which that fails the query."""

    code = "division-by-zero"

    def __init__(self) -> None:
        super().__init__(f"{DIVISION_BY_ZERO}.", "Divide by nullif(…, 0) to get null instead.")


class TooLate(Transient):
    """The caller's deadline passed before there was an answer."""

    code = "too-late"


class BothFailed(Transient):
    """The engine that was to answer failed, and so did the one behind it."""

    code = "both-failed"


class Unavailable(BothFailed):
    """Engines that could answer are away or have too much to do: asking again soon makes sense."""

    code = "unavailable"

    def __init__(self, cause: str, next_step: str = "", **details: Any) -> None:
        super().__init__(cause, next_step or "Ask again in a moment.", retry_after=1, **details)


class FilesMissing(Transient):
    """A file that the query reads is not there: removed by hand, or since the last poll."""

    code = "file-missing"


class Unauthenticated(Permanent):
    """Who asks is not known: no token, or one that is wrong, expired or revoked."""

    code = "unauthenticated"
    exit_code = 2


class Forbidden(Permanent):
    """A request that this server takes from nobody, such as one made by another web page."""

    code = "forbidden"
    exit_code = 2
