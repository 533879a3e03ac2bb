"""Fair scheduling: many queries of one caller do not delay the few of another."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from thermocline.serve.fleet.fair_scheduler import FairScheduler
from thermocline.serve.fleet.messages import QueryNotStarted


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 20))


class Crowd:
    """Callers whose queries end when they are told to."""

    def __init__(self, turns: FairScheduler) -> None:
        self.turns = turns
        self.begun: list[str] = []
        self._ends: list[tuple[str, asyncio.Event]] = []
        self.tasks: list[asyncio.Task[None]] = []

    def ask(self, caller: str, seconds: float = 10) -> asyncio.Task[None]:
        async def query() -> None:
            async with self.turns.slot(caller, seconds):
                self.begun.append(caller)
                end = asyncio.Event()
                self._ends.append((caller, end))
                await end.wait()

        task = asyncio.create_task(query())
        self.tasks.append(task)
        return task

    async def end(self, caller: str) -> None:
        entry = next(each for each in self._ends if each[0] == caller)
        self._ends.remove(entry)
        entry[1].set()
        await settled()

    async def gone(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_one_caller_never_has_all_of_an_engine() -> None:
    async def trial() -> None:
        crowd = Crowd(FairScheduler(4, 2))
        for _ in range(10):
            crowd.ask("many")
        await settled()
        assert crowd.begun == ["many"] * 2
        crowd.ask("few")
        await settled()
        assert crowd.begun == ["many", "many", "few"]
        await crowd.end("many")
        assert crowd.begun == ["many", "many", "few", "many"]
        await crowd.gone()
        assert crowd.turns.running == 0

    run(trial())


def test_who_has_the_fewest_running_is_next() -> None:
    async def trial() -> None:
        crowd = Crowd(FairScheduler(2, 2))
        for caller in ("a", "a", "a", "a", "b"):
            crowd.ask(caller)
        await settled()
        assert crowd.begun == ["a", "a"]
        await crowd.end("a")
        assert crowd.begun == ["a", "a", "b"], "b had none, though a came before"
        await crowd.end("b")
        assert crowd.begun == ["a", "a", "b", "a"]
        await crowd.gone()

    run(trial())


def test_a_turn_that_does_not_come_is_said_and_one_that_is_given_up_is_anothers() -> None:
    async def trial() -> None:
        crowd = Crowd(FairScheduler(1, 1, max_waiting=2))
        crowd.ask("a")
        late = crowd.ask("b", seconds=0.05)
        with pytest.raises(QueryNotStarted, match="No slot"):
            await late
        leaving, staying = crowd.ask("b"), crowd.ask("c")
        await settled()
        leaving.cancel()
        await settled()
        await crowd.end("a")
        assert crowd.begun == ["a", "c"]
        assert not staying.done()
        for _ in range(2):
            crowd.ask("c")
        await settled()
        with pytest.raises(QueryNotStarted, match="Too many"):
            await crowd.ask("c")
        await crowd.end("c")
        assert crowd.turns.running == 1
        await crowd.gone()
        assert crowd.turns.running == 0

    run(trial())
