"""The memory budget of answers that are being sent."""

from __future__ import annotations

import pytest

from thermocline.serve.failures import Unavailable
from thermocline.serve.http.send_budget import SMALL_BYTES, SendBudget

MB = 1 << 20


def body(size: int) -> bytes:
    return bytes(size)


def test_nobody_has_more_than_half_but_everybody_one() -> None:
    budget = SendBudget(10 * MB)
    first = budget.reserve("a", body(4 * MB))
    with pytest.raises(Unavailable) as refused:
        budget.reserve("a", body(2 * MB))
    assert refused.value.details["retry_after"] >= 1
    budget.reserve("b", body(6 * MB))
    with pytest.raises(Unavailable):
        budget.reserve("c", body(MB))
    assert budget.bytes == 10 * MB
    first()
    budget.reserve("c", body(MB))
    assert budget.bytes == 7 * MB


def test_one_answer_is_always_sent_however_large() -> None:
    budget = SendBudget(MB)
    release = budget.reserve("a", body(3 * MB))
    with pytest.raises(Unavailable):
        budget.reserve("b", body(MB))
    release()
    assert budget.bytes == 0


def test_what_several_are_sent_is_there_once() -> None:
    budget = SendBudget(10 * MB)
    shared = body(5 * MB)
    done = [budget.reserve(name, shared) for name in "abcd"]
    assert budget.bytes == 5 * MB
    for release in done:
        assert budget.bytes == 5 * MB
        release()
    assert budget.bytes == 0


def test_small_answers_are_sent_beside_any_number_of_large_ones() -> None:
    budget = SendBudget(MB)
    budget.reserve("a", body(MB))
    for _ in range(1000):
        budget.reserve("a", body(SMALL_BYTES))
    assert budget.bytes == MB
