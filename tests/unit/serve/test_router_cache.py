"""Cached routes, slightly stale answers, and the choice between two nodes."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import Counter
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from tests.unit.serve.fixed_router import SNAPSHOT, head

from thermocline.errors import NotFound
from thermocline.serve import result_cache, route_planner
from thermocline.serve.failures import BothFailed, Unavailable
from thermocline.serve.fleet.messages import EngineFailed, EngineQuery
from thermocline.serve.route import AccessPath, Engines
from thermocline.serve.router import QueryLimits, Router
from thermocline.serve.values import (
    Answer,
    Caller,
    EncodedRows,
    EngineName,
    HotCopy,
    LakeState,
    QueryRequest,
    ResultColumn,
)
from thermocline.sql.translate import Untranslatable

T = TypeVar("T")
TABLE = "silver.orders"
NEXT = SNAPSHOT + 1


class FixedFleet:
    """Two nodes that hold one table, and answer with the snapshot that they are asked for."""

    def __init__(self) -> None:
        self.catalog = "lake"
        self.superseded_at: dict[tuple[str, int], datetime] = {}
        self.loads = Counter[str]()
        self.asked_of: list[tuple[str, int]] = []
        self.down: set[str] = set()
        self.away: set[str] = set()
        self.lies = False
        self.held = {"node-0": SNAPSHOT, "node-1": SNAPSHOT}
        self.answering = asyncio.Event()
        self.answering.set()
        self.reading = 0
        self.direct = True
        self.cold: tuple[EngineName, ...] = ()
        self.configured_engines: tuple[EngineName, ...] = ("direct", "spark")
        self.changed = asyncio.Event()
        self.see(SNAPSHOT)

    def see(self, newest: int, seconds_ago: float = 0.0) -> None:
        """A look at the catalog, after a commit so long ago."""
        now = datetime.now(UTC)
        at = now - timedelta(seconds=seconds_ago)
        if newest != SNAPSHOT:
            self.superseded_at[TABLE, SNAPSHOT] = at
        known = head(snapshot=newest, snapshots=(newest, SNAPSHOT)[: 1 + (newest != SNAPSHOT)])
        held = {name: {TABLE: HotCopy(each, None, 3, 9)} for name, each in self.held.items()}
        self.lake_state = LakeState(newest, now, {TABLE: known}, held)
        self.changed.set()

    def advance(self, *nodes: str) -> None:
        """These nodes have the newest."""
        self.held.update(dict.fromkeys(nodes, NEXT))

    def available_engines(self) -> Engines:
        up = {name: self.loads[name] for name in self.held if name not in self.down}
        return Engines(up, self.direct, self.cold, 1 << 30)

    def count_running(self, name: str) -> int:
        return self.loads[name]

    def record_query(self, tables: tuple[str, ...]) -> None:
        pass

    async def poll(self, seconds: float) -> LakeState:
        return self.lake_state

    async def wait_for_change(self, seconds: float) -> None:
        self.changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), seconds)

    @property
    def are_direct_workers_busy(self) -> bool:
        return self.reading > 0

    async def execute(self, way: AccessPath, query: EngineQuery) -> EncodedRows:
        (reading,) = query.views.values()
        self.asked_of.append((way.node or way.engine, reading.snapshot))
        self.reading += way.engine == "direct"
        try:
            await self.answering.wait()
        finally:
            self.reading -= way.engine == "direct"
        if way.node in self.away:
            raise EngineFailed(f"{way.node} died.")
        counted = 0 if self.lies and way.engine == "hot" else reading.snapshot
        return EncodedRows((ResultColumn("n", "int64", "bigint"),), 1, b"[%d]\n" % counted)

    async def rebuild(self, tables: Sequence[str]) -> int:
        return self.lake_state.epoch + 1


@pytest.fixture
def decisions(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a route was decided."""
    counted = Counter[str]()
    decide_route = route_planner.decide_route

    def counting(*given: Any, **more: Any) -> Any:
        counted["route"] += 1
        return decide_route(*given, **more)

    monkeypatch.setattr(route_planner, "decide_route", counting)
    return counted


class World:
    def __init__(self, verify_share: float = 0.0) -> None:
        self.fleet = FixedFleet()
        fleet: Any = self.fleet
        self.router = Router(fleet, QueryLimits(verify_share=verify_share))

    async def execute(
        self, sql: str = "select count(*) as n from silver.orders", **more: Any
    ) -> str:
        return said(await self.router.answer(QueryRequest(sql, **more), Caller("tests")))

    async def made(self) -> None:
        """Let what is being made be made."""
        for _ in range(10):
            await asyncio.sleep(0)


def run(trial: Coroutine[Any, Any, T]) -> T:
    """What a trial gives. One that waits for what never comes has failed."""
    return asyncio.run(asyncio.wait_for(trial, 30))


def said(answer: Answer) -> str:
    """Engine and snapshot; that the rows are of that snapshot is checked here."""
    snapshot = answer.provenance["tables"][TABLE]["snapshot"]
    assert answer.rows.body == f"[{snapshot}]\n".encode()
    name = {str(SNAPSHOT): "old", str(NEXT): "new"}[snapshot]
    return f"{answer.provenance['engine']} {name}"


def test_a_route_is_decided_once_as_long_as_nothing_changes(decisions: Counter[str]) -> None:
    async def trial() -> None:
        world = World()
        for _ in range(5):
            await world.execute()
        assert decisions["route"] == 1
        world.fleet.down.add("node-0")
        await world.execute()
        assert decisions["route"] == 2, "somebody is gone"
        world.fleet.advance("node-1")
        world.fleet.see(NEXT)
        await world.execute()
        assert decisions["route"] == 3, "there was a commit"

    run(trial())


def test_a_route_is_of_its_own_tables_only(decisions: Counter[str]) -> None:
    async def trial() -> None:
        world = World()
        await world.execute()
        for number in range(5):
            seen = world.fleet.lake_state
            other = head("gold.daily", snapshot=number, snapshots=(number,))
            copies = {node: {**held, "gold.daily": HotCopy(number, None)} for node, held in
                      seen.hot_copies.items()}  # fmt: skip
            heads = {**seen.table_heads, "gold.daily": other}
            world.fleet.lake_state = replace(
                seen, epoch=seen.epoch + 1, table_heads=heads, hot_copies=copies
            )
            await world.execute()
        assert decisions["route"] == 1, "others' commits are none of its own"
        seen = world.fleet.lake_state
        less = {"node-0": {}, "node-1": seen.hot_copies["node-1"]}
        world.fleet.lake_state = replace(seen, epoch=seen.epoch + 1, hot_copies=less)
        await world.execute()
        assert decisions["route"] == 2, "a copy is gone"
        swapped = {"node-0": seen.hot_copies["node-0"], "node-1": {}}
        world.fleet.lake_state = replace(seen, epoch=seen.epoch + 2, hot_copies=swapped)
        await world.execute()
        assert decisions["route"] == 3, "another node holds the same"

    run(trial())


def test_a_text_that_is_remembered_holds_no_head_that_is_no_longer_the_newest() -> None:
    async def trial() -> None:
        world = World()
        gone = weakref.ref(world.fleet.lake_state.table_heads[TABLE])
        for sql in counted(1, 2, 3):
            await world.execute(sql)
        assert gone() is not None
        world.fleet.advance("node-0", "node-1")
        world.fleet.see(NEXT)
        gc.collect()
        assert gone() is None

    run(trial())


def test_a_route_over_a_copy_that_is_behind_is_not_remembered() -> None:
    async def trial() -> list[str]:
        world = World()
        world.fleet.see(NEXT, seconds_ago=1.9)
        first = await world.execute()
        world.fleet.superseded_at[TABLE, SNAPSHOT] -= timedelta(seconds=0.2)
        return [first, await world.execute(), *(name for name, _ in world.fleet.asked_of)]

    # Nobody told of anything new in between: the copy is too old by the clock alone.
    assert run(trial()) == ["hot old", "direct new", "node-0", "direct"]


def test_after_a_commit_nobody_waits_for_the_new_answer_while_the_old_is_tolerated() -> None:
    async def trial() -> list[str]:
        world = World()
        seen = [await world.execute()]
        world.fleet.advance("node-0", "node-1")
        world.fleet.see(NEXT, seconds_ago=0.5)
        world.fleet.answering.clear()
        seen += [await world.execute(), await world.execute()]
        world.fleet.answering.set()
        await world.made()
        seen.append(await world.execute())
        assert [snapshot for _, snapshot in world.fleet.asked_of] == [SNAPSHOT, NEXT]
        return seen

    assert run(trial()) == ["hot old", "cache old", "cache old", "cache new"]


@pytest.mark.parametrize(
    ("more", "seconds_ago"),
    [({}, 2.5), ({"max_staleness": 0.2}, 0.5), ({"min_snapshot": NEXT}, 0.1)],
)
def test_an_answer_of_before_is_not_given_to_who_asks_for_newer(
    more: dict[str, Any], seconds_ago: float
) -> None:
    async def trial() -> str:
        world = World()
        await world.execute()
        world.fleet.advance("node-0", "node-1")
        world.fleet.see(NEXT, seconds_ago)
        return await world.execute(**more)

    assert run(trial()) == "hot new"


def test_the_node_that_is_newer_is_asked_first_and_then_the_one_less_busy() -> None:
    async def trial() -> list[str]:
        world = World()
        world.fleet.loads.update({"node-0": 3})
        await world.execute()
        world.fleet.loads.update({"node-1": 4})
        await world.execute(format="arrow")
        world.fleet.loads.clear()
        world.fleet.loads.update({"node-0": 3})
        world.fleet.advance("node-0")
        world.fleet.see(NEXT)
        await world.execute(max_staleness=1.0, format="csv")
        return [name for name, _ in world.fleet.asked_of]

    assert run(trial()) == ["node-1", "node-0", "node-0"]


def test_when_a_node_dies_the_other_answers() -> None:
    async def trial() -> Answer:
        world = World()
        world.fleet.away.add("node-0")
        return await world.router.answer(
            QueryRequest("select count(*) as n from silver.orders"), Caller()
        )

    answer = run(trial())
    assert said(answer) == "hot old" and answer.provenance["node"] == "node-1"
    assert [each["from"] for each in answer.provenance["fallback"]] == ["node-0"]


def test_what_a_wrong_copy_answered_is_not_given_again() -> None:
    async def trial() -> tuple[bytes, str]:
        world = World(verify_share=1.0)
        world.fleet.lies = True
        sql = "select count(*) as n from silver.orders"
        wrong = await world.router.answer(QueryRequest(sql), Caller("tests"))
        await world.router.verifier.wait()
        return wrong.rows.body, await world.execute(sql)

    assert run(trial()) == (b"[0]\n", "direct old")


def counted(*numbers: int) -> list[str]:
    """Different questions, so that each has to be answered."""
    return [f"select count(*) as n from silver.orders where id <> {each}" for each in numbers]


def test_while_one_reads_files_the_others_wait_for_a_node_that_is_about_to_catch_up() -> None:
    async def trial() -> list[str]:
        world = World()
        world.fleet.see(NEXT, seconds_ago=5)
        world.fleet.answering.clear()
        asked = [asyncio.create_task(world.execute(sql)) for sql in counted(1, 2, 3, 4)]
        await world.made()
        assert world.fleet.asked_of == [("direct", NEXT)]
        world.fleet.advance("node-1")
        world.fleet.see(NEXT, seconds_ago=5)
        await world.made()
        assert world.fleet.asked_of == [("direct", NEXT), *[("node-1", NEXT)] * 3]
        world.fleet.answering.set()
        return list(await asyncio.gather(*asked))

    assert run(trial()) == ["direct new", "hot new", "hot new", "hot new"]


def test_a_node_that_does_not_catch_up_is_not_waited_for() -> None:
    async def trial() -> list[tuple[str, int]]:
        world = World()
        world.fleet.see(NEXT, seconds_ago=11)
        world.fleet.answering.clear()
        asked = [asyncio.create_task(world.execute(sql)) for sql in counted(1, 2, 3)]
        await world.made()
        world.fleet.answering.set()
        await asyncio.gather(*asked)
        return world.fleet.asked_of

    assert run(trial()) == [("direct", NEXT)] * 3


def test_nobody_waits_for_a_node_longer_than_half_the_time_there_is() -> None:
    async def trial() -> list[str]:
        world = World()
        world.fleet.see(NEXT, seconds_ago=5)
        world.fleet.reading = 1  # for somebody who takes long
        began = asyncio.get_running_loop().time()
        found = [await world.execute(timeout=1.0)]
        assert 0.45 < asyncio.get_running_loop().time() - began < 1.0
        return found

    assert run(trial()) == ["direct new"]


def test_when_a_node_dies_the_other_is_waited_for_rather_than_files_read_by_many() -> None:
    async def trial() -> list[tuple[str, int]]:
        world = World()
        world.fleet.advance("node-0")
        world.fleet.see(NEXT, seconds_ago=5)
        world.fleet.away.add("node-0")
        world.fleet.reading = 1
        asking = asyncio.create_task(world.execute())
        await world.made()
        assert world.fleet.asked_of == [("node-0", NEXT)]
        world.fleet.down.add("node-0")
        world.fleet.advance("node-1")
        world.fleet.see(NEXT, seconds_ago=5)
        assert await asking == "hot new"
        return world.fleet.asked_of

    assert run(trial()) == [("node-0", NEXT), ("node-1", NEXT)]


@pytest.mark.parametrize(
    ("more", "seconds_ago", "given"),
    [
        ({}, 20, "cache old"),
        ({}, 31, "hot new"),
        ({"max_staleness": 5.0}, 20, "hot new"),
        ({"min_snapshot": NEXT}, 20, "hot new"),
    ],
)
def test_when_the_newest_is_not_to_be_had_an_older_answer_is_given_and_says_so(
    more: dict[str, Any], seconds_ago: float, given: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(result_cache, "NEW_RESULT_SECONDS", 0.05)

    async def trial() -> None:
        world = World()
        sql = "select count(*) as n from silver.orders"
        assert await world.execute(sql) == "hot old"
        world.fleet.advance("node-0", "node-1")
        world.fleet.see(NEXT, seconds_ago)
        world.fleet.answering.clear()
        asking = asyncio.create_task(
            world.router.answer(QueryRequest(sql, **more), Caller("tests"))
        )
        await asyncio.wait({asking}, timeout=0.2)
        assert asking.done() is (given == "cache old")
        world.fleet.answering.set()
        answer = await asking
        assert said(answer) == given
        late = [why for why in answer.provenance["because"] if "newer" in why]
        assert bool(late) is (given == "cache old")
        assert await world.execute(sql) == "cache new"

    run(trial())


def test_a_table_that_is_dropped_while_a_node_is_waited_for_is_not_found() -> None:
    async def trial() -> None:
        world = World()
        world.fleet.see(NEXT, seconds_ago=5)
        world.fleet.reading = 1
        asking = asyncio.create_task(world.execute())
        await world.made()
        world.fleet.lake_state = replace(world.fleet.lake_state, table_heads={}, hot_copies={})
        world.fleet.changed.set()
        with pytest.raises(NotFound, match="There is no table"):
            await asking

    run(trial())


def test_who_is_just_being_started_is_waited_for() -> None:
    async def trial() -> str:
        world = World()
        world.fleet.down.update(world.fleet.held)
        world.fleet.direct = False
        asking = asyncio.create_task(world.execute())
        await world.made()
        world.fleet.direct = True
        return await asking

    assert run(trial()) == "direct old"


ONLY_DUCKDB = "select list_transform([1], x -> x) as n from silver.orders"


def test_what_only_an_engine_that_is_away_can_answer_is_not_the_callers_mistake() -> None:
    async def trial() -> None:
        world = World()
        world.fleet.down.update(world.fleet.held)
        world.fleet.direct, world.fleet.cold = False, ("spark",)
        with pytest.raises(Unavailable) as away:
            await world.execute(ONLY_DUCKDB, timeout=2)
        assert away.value.details["retry_after"] >= 1
        world.fleet.configured_engines = ("spark",)
        with pytest.raises(Untranslatable):  # where there is nobody else, it stays a mistake
            await world.execute(ONLY_DUCKDB, timeout=2)

    run(trial())


def test_when_nobody_comes_that_is_said_in_time() -> None:
    async def trial() -> None:
        world = World()
        world.fleet.down.update(world.fleet.held)
        world.fleet.direct = False
        with pytest.raises(BothFailed, match="No engine is available"):
            await world.execute(timeout=0.5)

    run(trial())
