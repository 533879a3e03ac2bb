"""Engines that did not give an answer, and what that means for the question and for who asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from thermocline.errors import ThermoclineError
from thermocline.serve.failures import BothFailed, TooLate, Unavailable
from thermocline.serve.fleet.messages import Away, Spent

if TYPE_CHECKING:
    from thermocline.serve.route import Way

MOST_SPENT = 2
"""After so many engines that a question may have brought to an end, no other is asked."""


class Failure(NamedTuple):
    """Who did not give an answer, and why.

    `kind` is `failed`, or `unfaithful` when the question cannot be put to that engine, `away` when
    it was not asked, and `spent` when the question may have been what it failed of.
    """

    who: str
    cause: str
    kind: str = "failed"


def failure_of(way: Way, error: BaseException) -> Failure:
    """Return an engine's failure as it is noted."""
    cause = error.cause if isinstance(error, ThermoclineError) else "it took too long"
    kind = "away" if isinstance(error, Away) else "spent" if isinstance(error, Spent) else "failed"
    return Failure(way.node or way.engine, cause, kind)


def have_spent_enough(failures: Sequence[Failure]) -> bool:
    """Return whether no other engine is to be asked, lest the question end that, too."""
    return [each.kind for each in failures].count("spent") >= MOST_SPENT


def failed(failures: Sequence[Failure]) -> BothFailed:
    """Return the error of a question that nobody answered."""
    if not failures:
        return Unavailable("No engine can be asked at the moment.")
    tried = [f"{each.who}: {each.cause}" for each in failures]
    if any(each.kind in ("away", "spent") for each in failures):
        return Unavailable("; ".join(tried[:4]), tried=tried)
    return BothFailed(
        "; ".join(tried[:4]), "Ask again; if it goes on, the server's log says more.", tried=tried
    )


def late(failures: Sequence[Failure]) -> ThermoclineError:
    """Return the error of a question whose deadline has passed."""
    if failures and failures[-1].kind == "away":
        return failed(failures)
    return TooLate(
        "The deadline passed before there was an answer.",
        "Give it more time, or ask for less.",
        tried=[f"{each.who}: {each.cause}" for each in failures],
    )
