"""Failed attempts of engines, and the error that results for the caller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from thermocline.errors import ThermoclineError
from thermocline.serve.failures import BothFailed, TooLate, Unavailable
from thermocline.serve.fleet.messages import QueryAborted, QueryNotStarted

if TYPE_CHECKING:
    from thermocline.serve.route import AccessPath

MAX_ABORTED = 2
"""After so many engines that a query may have brought down, no other is tried."""


class FailedAttempt(NamedTuple):
    """An engine that did not answer, and why.

    `kind` is `failed`, or `unfaithful` when the query cannot be translated for that engine, `away`
    when the query was not started, and `spent` when the query may have caused the failure.
    """

    engine: str
    cause: str
    kind: str = "failed"


def to_failed_attempt(access_path: AccessPath, error: BaseException) -> FailedAttempt:
    """Return the failed attempt for an engine's error."""
    cause = error.cause if isinstance(error, ThermoclineError) else "it took too long"
    kind = (
        "away"
        if isinstance(error, QueryNotStarted)
        else "spent"
        if isinstance(error, QueryAborted)
        else "failed"
    )
    return FailedAttempt(access_path.node or access_path.engine, cause, kind)


def should_give_up(failures: Sequence[FailedAttempt]) -> bool:
    """Return whether to try no other engine, because the query may bring that down too."""
    return [each.kind for each in failures].count("spent") >= MAX_ABORTED


def all_engines_failed(failures: Sequence[FailedAttempt]) -> BothFailed:
    """Return the error of a query that no engine answered."""
    if not failures:
        return Unavailable("No engine is available at the moment.")
    causes = [f"{each.engine}: {each.cause}" for each in failures]
    if any(each.kind in ("away", "spent") for each in failures):
        return Unavailable("; ".join(causes[:4]), tried=causes)
    return BothFailed(
        "; ".join(causes[:4]), "Retry; if it persists, see the server's log.", tried=causes
    )


def deadline_passed(failures: Sequence[FailedAttempt]) -> ThermoclineError:
    """Return the error of a query whose deadline has passed."""
    if failures and failures[-1].kind == "away":
        return all_engines_failed(failures)
    return TooLate(
        "The deadline passed before there was an answer.",
        "Allow more time, or read less data.",
        causes=[f"{each.engine}: {each.cause}" for each in failures],
    )
