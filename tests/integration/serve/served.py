"""The router with its real processes, asked by whoever waits for an answer: hot, or direct."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.serve.awkward import EDGE

from thermocline.errors import ThermoclineError
from thermocline.serve.fleet.fleet import Fleet, FleetConfig
from thermocline.serve.fleet.messages import EngineFailed, EngineQuery, QueryBudget
from thermocline.serve.query_preparation import QueryPreparer
from thermocline.serve.route import AccessPath
from thermocline.serve.router import QueryLimits, Router
from thermocline.serve.values import Caller, EncodedRows, QueryRequest
from thermocline.serve.wire.protocol import Frame
from thermocline.sql.guard import QueryRefused

if TYPE_CHECKING:
    from thermocline.lake import Lake

CALLER = Caller("tests")
TRIES = 5
ALLOWED = QueryBudget(rows=100_000, bytes=64 << 20, seconds=60)


class Served:
    """A hot node that a replicator feeds, and a direct worker. Any thread may ask.

    Tables that have a time are held from EDGE on, others whole.
    """

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="router", daemon=True).start()
        self._preparer = QueryPreparer()
        self.heads: dict[str, int] = {}
        """The snapshots that are asked for, since `settled`."""
        self._router: Router = self._run(self._started(lake.settings.project))

    async def _started(self, project: Path) -> Router:
        window = str(int((datetime.now(UTC) - EDGE.replace(tzinfo=UTC)).total_seconds()))
        plan = FleetConfig(project, nodes=1, node_memory=256 << 20, spark=False, direct=1,
                    seconds=ALLOWED.seconds, replicator=("--window", window))  # fmt: skip
        # Nothing is kept: the same question asked again is answered again.
        limits = QueryLimits(
            rows=ALLOWED.rows, seconds=ALLOWED.seconds, cache_bytes=0, verify_share=0
        )
        router = Router(Fleet(plan), limits)
        await router.start()
        return router

    def settled(self, seconds: float = 60) -> None:
        """Wait until the node holds every table at its newest snapshot."""
        self.heads = {table: self._lake.state(table).head() or 0 for table in self._lake.tables()}
        until = time.monotonic() + seconds
        while self._held() != self.heads:
            assert time.monotonic() < until, "the node does not hold all tables"
            time.sleep(0.05)

    def hot(self, sql: str) -> Frame | None:
        """The node's answer; None when the question is not for it."""
        return _frame(lambda: self._hot(sql))

    def direct(self, sql: str) -> Frame | None:
        """The direct worker's answer."""
        return _frame(lambda: self._direct(sql))

    def stop(self) -> None:
        """End all processes."""
        self._run(self._router.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _hot(self, sql: str) -> EncodedRows | None:
        for _ in range(TRIES):
            answer = self._run(self._router.answer(QueryRequest(sql), CALLER))
            told = answer.provenance
            for table, read in told["tables"].items():
                assert read["snapshot"] == str(self.heads[table]), f"{table} at another snapshot"
            if told["node"]:
                rows: EncodedRows = answer.rows
                return rows
            if not told["fallback"] and self._held() == self.heads:
                return None
            self.settled()  # a node that was too slow for its watch is being filled anew
        raise EngineFailed("The node does not stay.")

    def _direct(self, sql: str) -> EncodedRows:
        prepared = self._preparer(
            QueryRequest(sql), self._router.lake_state().table_heads, datetime.now(UTC)
        )
        way = AccessPath(
            "direct", None, {table: self.heads[table] for table in prepared.tables}, ()
        )
        said, views = self._router.translate_for(prepared, way)
        query = EngineQuery(said, views, "json", ALLOWED)
        rows: EncodedRows = self._run(self._router.fleet.execute(way, query))
        return rows

    def _held(self) -> dict[str, int]:
        copies = self._router.lake_state().hot_copies.get("node-0", {})
        return {table: copy.snapshot for table, copy in copies.items()}

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(2 * ALLOWED.seconds)


@contextlib.contextmanager
def serving(lake: Lake) -> Iterator[Served]:
    """A served lake for the time of the block."""
    served = Served(lake)
    try:
        served.settled()
        yield served
    finally:
        served.stop()


def _frame(ask: Callable[[], EncodedRows | None]) -> Frame | None:
    """An answer, or an error that is the question's own, as a worker gives it."""
    try:
        rows = ask()
    except QueryRefused:
        raise
    except ThermoclineError as error:
        return Frame({"ok": False, "error": error.as_dict()["error"]}, b"")
    if rows is None:
        return None
    told = [[each.name, each.type, each.trino] for each in rows.columns]
    return Frame({"ok": True, "columns": told, "count": rows.count}, rows.body)
