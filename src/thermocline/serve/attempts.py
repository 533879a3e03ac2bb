"""Engines that did not give an answer, and what that means for the question and for who asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from thermocline.errors import ThermoclineError
from thermocline.serve.failures import BothFailed, TooLate, Unavailable
from thermocline.serve.fleet.messages import QueryAborted, QueryNotStarted

if TYPE_CHECKING:
    from thermocline.serve.route import AccessPath

MAX_ABORTED = 2
"""After so many engines that a question may have brought to an end, no other is asked."""


class FailedAttempt(NamedTuple):
    """Who did not give an answer, and why.

    `kind` is `failed`, or `unfaithful` when the question cannot be put to that engine, `away` when
    it was not asked, and `spent` when the question may have been what it failed of.
    """

    engine: str
    cause: str
    kind: str = "failed"


def to_failed_attempt(access_path: AccessPath, error: BaseException) -> FailedAttempt:
    """Return an engine's failure as it is noted."""
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
    """Return whether no other engine is to be asked, lest the question end that, too."""
    return [each.kind for each in failures].count("spent") >= MAX_ABORTED


def all_engines_failed(failures: Sequence[FailedAttempt]) -> BothFailed:
    """Return the error of a question that nobody answered."""
    if not failures:
        return Unavailable("No engine can be asked at the moment.")
    tried = [f"{each.engine}: {each.cause}" for each in failures]
    if any(each.kind in ("away", "spent") for each in failures):
        return Unavailable("; ".join(tried[:4]), tried=tried)
    return BothFailed(
        "; ".join(tried[:4]), "Ask again; if it goes on, the server's log says more.", tried=tried
    )


def deadline_passed(failures: Sequence[FailedAttempt]) -> ThermoclineError:
    """Return the error of a question whose deadline has passed."""
    if failures and failures[-1].kind == "away":
        return all_engines_failed(failures)
    return TooLate(
        "The deadline passed before there was an answer.",
        "Give it more time, or ask for less.",
        tried=[f"{each.engine}: {each.cause}" for each in failures],
    )
