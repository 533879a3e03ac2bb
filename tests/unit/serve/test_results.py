"""Answers kept, executions shared, and engines left alone for a while."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from thermocline.serve.fleet.breaker import Breaker
from thermocline.serve.results import Results


def test_an_answer_is_made_once_however_many_ask() -> None:
    async def trial() -> tuple[list[tuple[bytes, bool]], int]:
        results = Results[bytes](1000, len)
        made = 0

        async def make() -> bytes:
            nonlocal made
            made += 1
            await asyncio.sleep(0.01)
            return b"x"

        given = await asyncio.gather(*(results.of("k", 1, make) for _ in range(50)))
        return [*given, await results.of("k", 1, make)], made

    given, made = asyncio.run(trial())
    assert made == 1
    assert [value for value, _ in given] == [b"x"] * 51
    assert [shared for _, shared in given] == [False] + [True] * 50


def test_one_who_leaves_does_not_take_the_answer_away() -> None:
    async def trial() -> bytes:
        results = Results[bytes](1000, len)

        async def make() -> bytes:
            await asyncio.sleep(0.02)
            return b"x"

        first = asyncio.create_task(results.of("k", 1, make))
        second = asyncio.create_task(results.of("k", 1, make))
        await asyncio.sleep(0)
        first.cancel()
        return (await second)[0]

    assert asyncio.run(trial()) == b"x"


def test_when_all_have_left_the_work_is_cancelled() -> None:
    async def trial() -> bool:
        results = Results[bytes](1000, len)
        cancelled = asyncio.Event()

        async def make() -> bytes:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return b""

        asked = [asyncio.create_task(results.of("k", 1, make)) for _ in range(2)]
        await asyncio.sleep(0.01)
        for each in asked:
            each.cancel()
        await asyncio.wait_for(cancelled.wait(), 1)
        return True

    assert asyncio.run(trial())


def test_failures_are_not_kept() -> None:
    async def trial() -> bytes:
        results = Results[bytes](1000, len)
        tries = iter([ValueError("no"), b"x"])

        async def make() -> bytes:
            given = next(tries)
            if isinstance(given, Exception):
                raise given
            return given

        with pytest.raises(ValueError, match="no"):
            await results.of("k", 1, make)
        return (await results.of("k", 1, make))[0]

    assert asyncio.run(trial()) == b"x"


def test_the_least_recently_used_goes_first_and_large_ones_are_not_kept() -> None:
    async def trial() -> tuple[list[bool], int]:
        results = Results[bytes](800, len)

        async def made(size: int) -> bytes:
            return b"x" * size

        for key in range(8):
            await results.of(key, 1, lambda: made(100))
        results.get(0, 1)
        await results.of("one more", 1, lambda: made(100))
        await results.of("large", 1, lambda: made(101))
        return [
            results.get(key, 1) is not None for key in (0, 1, 2, "one more", "large")
        ], results.bytes

    kept, size = asyncio.run(trial())
    assert kept == [True, False, True, True, False]
    assert size == 800


def test_an_answer_that_still_will_do_is_given_while_the_new_one_is_made() -> None:
    async def trial() -> list[tuple[bytes, bool]]:
        results = Results[bytes](1000, len)
        may_end = asyncio.Event()

        async def make(text: bytes) -> bytes:
            if text == b"new":
                await may_end.wait()
            return text

        def of(version: int, text: bytes, *old: bytes) -> Coroutine[Any, Any, tuple[bytes, bool]]:
            return results.of("k", version, lambda: make(text), lambda kept: kept in old)

        seen = [await of(1, b"old")]
        seen.append(await of(2, b"new", b"old"))
        refused = asyncio.create_task(of(2, b"never made: new is on its way"))
        await asyncio.sleep(0)
        assert not refused.done(), "what does not do is not given"
        may_end.set()
        seen.append(await refused)
        seen.append(await of(2, b"never made", b"old"))
        return seen

    assert asyncio.run(trial()) == [
        (b"old", False), (b"old", True), (b"new", True), (b"new", True),
    ]  # fmt: skip


def test_what_is_forgotten_is_not_kept_when_it_comes() -> None:
    async def trial() -> tuple[bytes, bytes]:
        results = Results[bytes](1000, len)
        may_end = asyncio.Event()

        async def doubtful() -> bytes:
            await may_end.wait()
            return b"wrong"

        async def right() -> bytes:
            return b"right"

        waiting = asyncio.create_task(results.of("k", 1, doubtful))
        await asyncio.sleep(0)
        results.clear()
        may_end.set()
        return (await waiting)[0], (await results.of("k", 1, right))[0]

    assert asyncio.run(trial()) == (b"wrong", b"right")


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_try_after_a_pause() -> None:
    now = [0.0]
    breaker = Breaker(failures=2, pause=5, clock=lambda: now[0])
    breaker.failed()
    breaker.succeeded()
    breaker.failed()
    assert breaker.allows()
    breaker.failed()
    assert not breaker.allows()
    now[0] = 5.1
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.succeeded()
    assert [breaker.allows(), breaker.allows()] == [True, True]
