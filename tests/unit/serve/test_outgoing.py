"""The budget of answers that are being sent."""

from __future__ import annotations

import pytest

from thermocline.serve.failures import Unavailable
from thermocline.serve.http.outgoing import SMALL, Outgoing

MB = 1 << 20


def body(size: int) -> bytes:
    return bytes(size)


def test_nobody_has_more_than_half_but_everybody_one() -> None:
    outgoing = Outgoing(10 * MB)
    first = outgoing.hold("a", body(4 * MB))
    with pytest.raises(Unavailable) as refused:
        outgoing.hold("a", body(2 * MB))
    assert refused.value.details["retry_after"] >= 1
    outgoing.hold("b", body(6 * MB))
    with pytest.raises(Unavailable):
        outgoing.hold("c", body(MB))
    assert outgoing.bytes == 10 * MB
    first()
    outgoing.hold("c", body(MB))
    assert outgoing.bytes == 7 * MB


def test_one_answer_is_always_sent_however_large() -> None:
    outgoing = Outgoing(MB)
    let_go = outgoing.hold("a", body(3 * MB))
    with pytest.raises(Unavailable):
        outgoing.hold("b", body(MB))
    let_go()
    assert outgoing.bytes == 0


def test_what_several_are_sent_is_there_once() -> None:
    outgoing = Outgoing(10 * MB)
    shared = body(5 * MB)
    done = [outgoing.hold(name, shared) for name in "abcd"]
    assert outgoing.bytes == 5 * MB
    for let_go in done:
        assert outgoing.bytes == 5 * MB
        let_go()
    assert outgoing.bytes == 0


def test_small_answers_are_sent_beside_any_number_of_large_ones() -> None:
    outgoing = Outgoing(MB)
    outgoing.hold("a", body(MB))
    for _ in range(1000):
        outgoing.hold("a", body(SMALL))
    assert outgoing.bytes == MB
