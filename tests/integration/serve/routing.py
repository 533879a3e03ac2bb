"""A router with real processes on the small lake, asked from tests."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.integration.serve.shop_lake import head

from thermocline.lake import Lake
from thermocline.serve.fleet.fleet import Fleet, FleetConfig
from thermocline.serve.read_recorder import ReadRecorder
from thermocline.serve.router import QueryLimits, Router
from thermocline.serve.values import Answer, Caller, QueryRequest

CALLER = Caller("tests")


class Serving:
    """A router with its processes, in a loop of its own that runs while somebody asks."""

    def __init__(self, project: Path, limits: QueryLimits) -> None:
        self.loop = asyncio.new_event_loop()
        self.router = self.run(self._made(project, limits))

    async def _made(self, project: Path, limits: QueryLimits) -> Router:
        plan = FleetConfig(project, nodes=2, node_memory=128 << 20, spark=False, direct=1)
        router = Router(Fleet(plan), limits, read_recorder=ReadRecorder(project))
        await router.start()
        return router

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 60))

    def ask(self, sql: str, **more: Any) -> Answer:
        return self.run(self.router.answer(QueryRequest(sql, **more), CALLER))

    def rows(self, sql: str, **more: Any) -> list[list[Any]]:
        return rows_of(self.ask(sql, **more))

    def until(self, true: Callable[[], bool], seconds: float = 30) -> None:
        """Let the loop run until something is true."""
        ends = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < ends, "it did not become true in time"
            self.run(asyncio.sleep(0.02))

    def engine(self, sql: str, **more: Any) -> str:
        return str(self.ask(sql, **more).provenance["engine"])

    def settled(self, lake: Lake, nodes: int = 2) -> None:
        """Wait until every node holds the newest snapshot of what it holds, and all is held."""

        def all_held() -> bool:
            held = self.router.lake_state().hot_copies
            copies = [it for copies in held.values() for it in copies.items()]
            tables = {table for table, _ in copies}
            fresh = all(copy.snapshot == head(lake, table) for table, copy in copies)
            return fresh and len(tables) == 3 and len([n for n in held if held[n]]) == nodes

        self.until(all_held)


def rows_of(answer: Answer) -> list[list[Any]]:
    return [json.loads(line) for line in answer.rows.body.splitlines()]
