"""Cached results, shared executions, and circuit breakers."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from thermocline.errors import BadInput, Transient
from thermocline.serve import result_cache
from thermocline.serve.fleet.circuit_breaker import CircuitBreaker
from thermocline.serve.result_cache import ResultCache, estimate_key_bytes


def of_value(question: object, version: object, value: bytes) -> int:
    return len(value)


def test_an_answer_is_made_once_however_many_ask() -> None:
    async def trial() -> tuple[list[tuple[bytes, bool]], int]:
        result_cache = ResultCache[bytes](1000, of_value)
        made = 0

        async def make() -> bytes:
            nonlocal made
            made += 1
            await asyncio.sleep(0.01)
            return b"x"

        given = await asyncio.gather(
            *(result_cache.get_or_compute("k", 1, make) for _ in range(50))
        )
        return [*given, await result_cache.get_or_compute("k", 1, make)], made

    given, made = asyncio.run(trial())
    assert made == 1
    assert [value for value, _ in given] == [b"x"] * 51
    assert [shared for _, shared in given] == [False] + [True] * 50


def test_one_who_leaves_does_not_take_the_answer_away() -> None:
    async def trial() -> bytes:
        result_cache = ResultCache[bytes](1000, of_value)

        async def make() -> bytes:
            await asyncio.sleep(0.02)
            return b"x"

        first = asyncio.create_task(result_cache.get_or_compute("k", 1, make))
        second = asyncio.create_task(result_cache.get_or_compute("k", 1, make))
        await asyncio.sleep(0)
        first.cancel()
        return (await second)[0]

    assert asyncio.run(trial()) == b"x"


def test_when_all_have_left_the_work_is_cancelled() -> None:
    async def trial() -> bool:
        result_cache = ResultCache[bytes](1000, of_value)
        cancelled = asyncio.Event()

        async def make() -> bytes:
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError:
                cancelled.set()
                raise
            return b""

        asked = [asyncio.create_task(result_cache.get_or_compute("k", 1, make)) for _ in range(2)]
        await asyncio.sleep(0.01)
        for each in asked:
            each.cancel()
        await asyncio.wait_for(cancelled.wait(), 1)
        return True

    assert asyncio.run(trial())


def test_failures_are_not_kept() -> None:
    async def trial() -> bytes:
        result_cache = ResultCache[bytes](1000, of_value)
        tries = iter([ValueError("no"), b"x"])

        async def make() -> bytes:
            given = next(tries)
            if isinstance(given, Exception):
                raise given
            return given

        with pytest.raises(ValueError, match="no"):
            await result_cache.get_or_compute("k", 1, make)
        return (await result_cache.get_or_compute("k", 1, make))[0]

    assert asyncio.run(trial()) == b"x"


def test_the_least_recently_used_goes_first_and_large_ones_are_not_kept() -> None:
    async def trial() -> tuple[list[bool], int]:
        result_cache = ResultCache[bytes](800, of_value)

        async def made(size: int) -> bytes:
            return b"x" * size

        for key in range(8):
            await result_cache.get_or_compute(key, 1, lambda: made(100))
        result_cache.get(0, 1)
        await result_cache.get_or_compute("one more", 1, lambda: made(100))
        await result_cache.get_or_compute("large", 1, lambda: made(101))
        return [
            result_cache.get(key, 1) is not None for key in (0, 1, 2, "one more", "large")
        ], result_cache.bytes

    kept, size = asyncio.run(trial())
    assert kept == [True, False, True, True, False]
    assert size == 800


class Makers:
    """Answers that are made when they may be, or fail."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.may_end: dict[int, asyncio.Future[bytes]] = {}
        self.results = ResultCache[bytes](1000, of_value)

    async def make(self, version: int) -> bytes:
        self.begun.append(version)
        return await self.may_end.setdefault(version, asyncio.get_running_loop().create_future())

    def ask(self, version: int, is_acceptable: bool = True) -> asyncio.Task[tuple[bytes, bool]]:
        asked = self.results.get_or_compute(
            "k", version, lambda: self.make(version), is_acceptable=lambda _: is_acceptable
        )
        return asyncio.create_task(asked)

    async def first(self) -> None:
        """The answer of version 1."""
        asked = self.ask(1)
        await asyncio.sleep(0.001)
        self.may_end[1].set_result(b"1")
        assert await asked == (b"1", False)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(result_cache, "NEW_RESULT_SECONDS", 0.05)


def test_when_a_new_answer_takes_long_the_last_is_given_and_the_new_one_is_still_made() -> None:
    async def trial() -> None:
        makers = Makers()
        await makers.first()
        assert await makers.ask(2) == (b"1", True)
        makers.may_end[2].set_result(b"2")
        await asyncio.sleep(0.001)
        assert await makers.ask(2) == (b"2", True)
        assert makers.begun == [1, 2]

    asyncio.run(trial())


def test_who_is_content_with_nothing_older_waits_for_the_new_answer() -> None:
    async def trial() -> None:
        makers = Makers()
        await makers.first()
        asked = makers.ask(2, is_acceptable=False)
        await asyncio.sleep(0.1)
        assert not asked.done()
        makers.may_end[2].set_result(b"2")
        assert await asked == (b"2", False)

    asyncio.run(trial())


def test_what_takes_longer_always_is_waited_for_longer() -> None:
    async def trial() -> None:
        makers = Makers()
        asked = makers.ask(1)
        await asyncio.sleep(0.1)
        makers.may_end[1].set_result(b"1")
        await asked
        asked = makers.ask(2)
        await asyncio.sleep(0.15)
        makers.may_end[2].set_result(b"2")
        assert await asked == (b"2", False)

    asyncio.run(trial())


def test_one_version_is_made_at_a_time_until_that_takes_too_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(result_cache, "STUCK_FACTOR", 1e6)

    async def trial() -> None:
        makers = Makers()
        await makers.first()
        for version in (2, 3, 4):
            assert await makers.ask(version) == (b"1", True)
        assert makers.begun == [1, 2]
        monkeypatch.setattr(result_cache, "STUCK_FACTOR", 0)  # now version 2 takes too long
        assert await makers.ask(5) == (b"1", True)
        assert makers.begun == [1, 2, 5]
        monkeypatch.setattr(result_cache, "STUCK_FACTOR", 1e6)
        monkeypatch.setattr(result_cache, "NEW_RESULT_SECONDS", 60)
        assert not makers.may_end[2].cancelled()
        waiting = makers.ask(6)
        await asyncio.sleep(0.001)
        makers.may_end[5].set_result(b"5")
        assert await waiting == (b"5", True)
        await asyncio.sleep(0.001)
        assert makers.may_end[2].cancelled(), "there is a newer one"
        assert await makers.ask(5) == (b"5", True)

    asyncio.run(trial())


def test_what_is_done_late_is_given_when_the_newer_is_not_done_either() -> None:
    async def trial() -> None:
        makers = Makers()
        await makers.first()
        await makers.ask(2)
        await asyncio.sleep(0.25)
        waiting = makers.ask(3)
        await asyncio.sleep(0.001)
        makers.may_end[2].set_result(b"2")
        assert await waiting == (b"2", True)

    asyncio.run(trial())


def test_what_somebody_else_waits_for_is_not_given_up() -> None:
    async def trial() -> None:
        makers = Makers()
        await makers.first()
        strict = makers.ask(2, is_acceptable=False)
        await asyncio.sleep(0.25)
        assert await makers.ask(3) == (b"1", True)
        makers.may_end[2].set_result(b"2")
        assert await strict == (b"2", False)

    asyncio.run(trial())


def test_who_comes_while_what_nobody_waited_for_is_cancelled_is_given_an_answer() -> None:
    async def trial() -> bytes:
        kept = ResultCache[bytes](1000, of_value)
        ending = asyncio.Event()

        async def slow() -> bytes:
            try:
                await asyncio.sleep(10)
            finally:
                await ending.wait()  # a worker is told, which takes a moment
            return b""

        async def make() -> bytes:
            return b"x"

        left = asyncio.create_task(kept.get_or_compute("k", 1, slow))
        await asyncio.sleep(0.001)
        left.cancel()
        await asyncio.sleep(0.001)
        given, _ = await kept.get_or_compute("k", 1, make)
        ending.set()
        await asyncio.sleep(0.001)
        assert kept.get("k", 1) == b"x"
        return given

    assert asyncio.run(trial()) == b"x"


@pytest.mark.parametrize(
    ("error", "given"), [(Transient("no"), b"1"), (BadInput("no"), None), (ValueError("no"), None)]
)
def test_an_older_answer_stands_in_for_a_failure_that_passes_and_for_no_other(
    error: Exception, given: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        result_cache, "NEW_RESULT_SECONDS", 60
    )  # it is the failure that counts, however late

    async def trial() -> bytes | None:
        makers = Makers()
        await makers.first()
        asked = makers.ask(2)
        await asyncio.sleep(0.001)
        makers.may_end[2].set_exception(error)
        try:
            return (await asked)[0]
        except type(error):
            return None

    assert asyncio.run(trial()) == given


def test_an_answer_that_still_will_do_is_given_while_the_new_one_is_made() -> None:
    async def trial() -> list[tuple[bytes, bool]]:
        result_cache = ResultCache[bytes](1000, of_value)
        may_end = asyncio.Event()

        async def make(text: bytes) -> bytes:
            if text == b"new":
                await may_end.wait()
            return text

        def of(version: int, text: bytes, *old: bytes) -> Coroutine[Any, Any, tuple[bytes, bool]]:
            return result_cache.get_or_compute(
                "k", version, lambda: make(text), lambda kept: kept in old
            )

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
        result_cache = ResultCache[bytes](1000, of_value)
        may_end = asyncio.Event()

        async def doubtful() -> bytes:
            await may_end.wait()
            return b"wrong"

        async def right() -> bytes:
            return b"right"

        waiting = asyncio.create_task(result_cache.get_or_compute("k", 1, doubtful))
        await asyncio.sleep(0)
        result_cache.clear()
        may_end.set()
        return (await waiting)[0], (await result_cache.get_or_compute("k", 1, right))[0]

    assert asyncio.run(trial()) == (b"wrong", b"right")


def test_a_breaker_opens_after_failures_in_a_row_and_lets_one_try_after_a_pause() -> None:
    now = [0.0]
    breaker = CircuitBreaker(failures=2, pause=5, clock=lambda: now[0])
    breaker.record_failure()
    breaker.record_success()
    breaker.record_failure()
    assert breaker.allows()
    breaker.record_failure()
    assert not breaker.allows()
    now[0] = 5.1
    assert [breaker.allows(), breaker.allows()] == [True, False]
    breaker.record_success()
    assert [breaker.allows(), breaker.allows()] == [True, True]


def test_what_an_answer_is_kept_under_counts_as_well() -> None:
    async def trial() -> None:
        kept = ResultCache[bytes](
            10_000, lambda question, version, value: estimate_key_bytes(question)
        )

        async def make() -> bytes:
            return b""

        for number in range(100):
            await kept.get_or_compute(("x" * 900, number), 1, make)
        assert 5 <= len(kept) <= 11
        assert kept.bytes <= 10_000

    asyncio.run(trial())
    assert estimate_key_bytes(("a", ("b" * 1000, 7), frozenset({"c" * 1000}))) > 2000
