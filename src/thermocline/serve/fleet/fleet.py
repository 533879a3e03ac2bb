"""Everybody the router can ask: hot nodes, direct workers, Spark, Trino; and the keeper's lookout.

The fleet knows who is up, how busy they are and what they hold; it sends a query to one of them
and sees to it that a query that will not end is ended.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from thermocline.config.scratch import Scratch
from thermocline.errors import BadInput, Transient
from thermocline.serve.failures import TooLate
from thermocline.serve.fleet.breaker import Breaker
from thermocline.serve.fleet.catalog_view import CatalogView
from thermocline.serve.fleet.messages import (
    Allowance,
    Away,
    EngineFailed,
    Moved,
    Reading,
    Spent,
    request,
    rows,
)
from thermocline.serve.fleet.processes import Child, Kept, NotRunning, Program, Remote
from thermocline.serve.fleet.turns import Turns
from thermocline.serve.route import Engines, Way
from thermocline.serve.terms import EngineName, Format, Lookout, Rows

GRACE = 1.0
"""How long after its time limit a worker may take to say so, before it is ended."""
SLOTS, SLOTS_EACH = 8, 2
"""How many queries an engine has running, and how many of one caller: there is room for others."""
WATCH_SECONDS = 1.0
QUICK = 0.25
"""A query that ran no longer when its engine failed is hardly what it failed of."""
REBUILD_SECONDS = 10.0
MOST_TOLD = 1_000
SPARK_START = 60.0
BEHIND_ROUTER = 3
"""How far nodes step back: an answer that is kept does not wait while others are counted anew."""
BEHIND_NODES = 12
"""How far those who read files step back: no hot answer waits for them, nor what makes it new."""


class Elsewhere(Protocol):
    """An engine that is not a process of ours: Trino."""

    async def query(
        self, sql: str, *, seconds: float, rows: int, bytes: int, format: Format
    ) -> Rows:
        """The rows of a query; raises ThermoclineError."""

    async def close(self) -> None:
        """Let go of its connections."""


@dataclass(frozen=True)
class Plan:
    """Which processes there are."""

    project: Path
    profile: str | None = None
    nodes: int = 2
    node_memory: int = 512 << 20
    node_threads: int = SLOTS
    remote: Sequence[tuple[str, str, str]] = ()
    """Name, address and token of nodes on other machines."""
    direct: int = 1
    direct_bytes: int = 256 << 20
    spark: bool = True
    seconds: float = 30.0
    keeper: Sequence[str] = ()
    """Further arguments of the keeper."""

    @property
    def of_project(self) -> tuple[str, ...]:
        """The arguments of whoever opens the lake."""
        profile = ("--profile", self.profile) if self.profile else ()
        return ("--project", str(self.project), *profile)


@dataclass
class _Load:
    """Who is asked how much at the moment, and whether they are worth asking."""

    running: int = 0
    breaker: Breaker = field(default_factory=Breaker)
    turns: Turns = field(default_factory=lambda: Turns(SLOTS, SLOTS_EACH))


class Fleet:
    """The processes behind the router, and what the keeper says of the lake."""

    def __init__(self, plan: Plan, trino: Elsewhere | None = None, catalog: str = "lake") -> None:
        self.plan = plan
        self.trino = trino
        self.catalog = catalog
        """The name under which Trino sees this lake."""
        self._folder = Scratch(Path(tempfile.gettempdir()), "thermo-serve-")
        folder = self._folder.path
        self.nodes: dict[str, Kept] = {
            kept.name: kept
            for kept in (
                *(Child(_node(plan, n), folder, self._heard) for n in range(plan.nodes)),
                *(Remote(*each, self._heard) for each in plan.remote),
            )
        }
        self.direct = [
            Child(
                Program(
                    f"direct-{n}",
                    "thermocline.serve.engines.direct",
                    plan.of_project,
                    opens_lake=True,
                    nice=BEHIND_NODES,
                ),
                folder,
            )
            for n in range(plan.direct)
        ]
        self.keeper = Child(
            Program(
                "keeper", "thermocline.serve.keeper", (*plan.of_project, *plan.keeper), True,
                nice=BEHIND_ROUTER,
            ),
            folder,
            self._heard,
        )  # fmt: skip
        self.spark = Child(
            Program(
                "spark",
                "thermocline.serve.engines.spark",
                plan.of_project,
                opens_lake=True,
                nice=BEHIND_NODES,
            ),
            folder,
        )
        self.view = CatalogView(self.keeper)
        self.memory: dict[str, int] = {}
        self._loads: dict[str, _Load] = {}
        self._asked: Counter[tuple[str, ...]] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    # Coming and going ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everybody who is needed at once; Spark waits for its first query."""
        for kept in (self.keeper, *self.nodes.values(), *self.direct):
            kept.start()
        self._tasks = [
            asyncio.create_task(self.view.follow(), name="follow the keeper"),
            asyncio.create_task(self._watch(), name="watch the workers"),
        ]

    async def stop(self) -> None:
        """End everybody."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        everybody = (self.keeper, self.spark, *self.nodes.values(), *self.direct)
        await asyncio.gather(*(kept.stop() for kept in everybody))
        if self.trino is not None:
            await self.trino.close()
        self._folder.close()

    def _heard(self, kept: Kept) -> None:
        """Tell the keeper who the nodes are now; and read no copies of one that is gone."""
        self._loads.pop(kept.name, None)
        if not kept.up:
            self.view.node_is_gone(kept.name)
        if self.keeper.up:
            up = [node for node in self.nodes.values() if node.up]
            nodes = [{"name": n.name, "address": n.address, "token": n.token} for n in up]
            self.keeper.channel.tell({"do": "nodes", "nodes": nodes})

    # What the keeper tells, and is told ----------------------------------------------------------

    @property
    def lookout(self) -> Lookout:
        """What is known of the lake and of what the nodes hold."""
        return self.view.lookout

    @property
    def left(self) -> Mapping[tuple[str, int], datetime]:
        """When a snapshot stopped being its table's newest."""
        return self.view.left

    async def look(self, seconds: float) -> Lookout:
        """What the catalog says now, not a moment ago. A keeper that just died is waited for."""
        return await self.view.look(seconds)

    async def change(self, seconds: float) -> None:
        """Wait for something new from the keeper, for a while."""
        await self.view.change(seconds)

    def asked(self, tables: tuple[str, ...]) -> None:
        """Note what is asked for: the keeper decides by that what is worth holding."""
        self._asked[tables] += 1

    def _tell_asked(self) -> None:
        """Tell the keeper what was asked for since it was told last."""
        if self._asked and self.keeper.up:
            told = [[list(tables), times] for tables, times in self._asked.most_common(MOST_TOLD)]
            self.keeper.channel.tell({"do": "asked", "questions": told})
            self._asked.clear()

    async def rebuild(self, tables: Sequence[str]) -> int:
        """Have copies made anew; says from which epoch on the copies are new ones."""
        frame = await self.keeper.channel.ask(
            {"do": "rebuild", "tables": list(tables)}, timeout=REBUILD_SECONDS
        )
        return int(frame.header["epoch"])

    # Asking --------------------------------------------------------------------------------------

    def engines(self) -> Engines:
        """Who can be asked now."""
        nodes = {
            name: self._load(name).running
            for name, node in self.nodes.items()
            if node.up and not self._load(name).breaker.is_open
        }
        cold: list[EngineName] = []
        if self.trino is not None and not self._load("trino").breaker.is_open:
            cold.append("trino")
        if self.plan.spark and not self._load("spark").breaker.is_open:
            cold.append("spark")
        direct = any(each.up for each in self.direct)
        return Engines(nodes, direct, tuple(cold), self.plan.direct_bytes)

    @property
    def configured(self) -> tuple[EngineName, ...]:
        """The engines that there are, whether they can be asked now or not."""
        trino: tuple[EngineName, ...] = ("trino",) if self.trino is not None else ()
        return ("direct", *trino, "spark") if self.plan.spark else ("direct", *trino)

    def busy(self, name: str) -> int:
        """How many queries somebody is answering."""
        load = self._loads.get(name)
        return 0 if load is None else load.running

    @property
    def files_are_read(self) -> bool:
        """Whether all direct workers are reading files for somebody."""
        return all(self.busy(each.name) for each in self.direct if each.up)

    @property
    def running(self) -> int:
        """How many queries are being answered by somebody."""
        return sum(load.running for load in self._loads.values())

    async def ask(
        self,
        way: Way,
        sql: str,
        views: Mapping[str, Reading],
        format: Format,
        allowed: Allowance,
    ) -> Rows:
        """The rows that an engine gives. Raises EngineFailed when another engine should be tried.

        The query is in the engine's dialect and names tables by the views.
        """
        name, kept = self._who(way)
        load = self._load(name)
        load.running += 1
        try:
            began = asyncio.get_running_loop().time()
            async with load.turns.turn(allowed.caller, allowed.patience or allowed.seconds):
                waited = asyncio.get_running_loop().time() - began
                left = replace(allowed, seconds=allowed.seconds - waited)
                if kept is None:
                    given = await self._elsewhere(sql, format, left)
                else:
                    given = await self._query(kept, sql, views, format, left)
        except Moved as error:
            table, held = str(error.details.get("table")), str(error.details.get("held"))
            self.view.copy_is_ahead(name, table, held)
            raise
        except (BadInput, TooLate, Away, Spent):
            raise  # which tells of the query, or of how much there is to do
        except (EngineFailed, TimeoutError):
            load.breaker.failed()
            raise
        finally:
            load.running -= 1
        load.breaker.succeeded()
        return given

    def _who(self, way: Way) -> tuple[str, Kept | None]:
        match way.engine:
            case "hot":
                assert way.node is not None
                return way.node, self.nodes[way.node]
            case "direct":
                up = [each for each in self.direct if each.up] or self.direct
                chosen = min(up, key=lambda each: self._load(each.name).running)
                return chosen.name, chosen
            case "spark":
                return "spark", self.spark
            case _:
                return way.engine, None

    async def _elsewhere(self, sql: str, format: Format, allowed: Allowance) -> Rows:
        assert self.trino is not None
        try:
            return await self.trino.query(
                sql, seconds=allowed.seconds, rows=allowed.rows, bytes=allowed.bytes, format=format
            )
        except TimeoutError:
            raise TooLate(
                "The query ran too long.", "Ask for less, or give it more time."
            ) from None
        except TooLate:
            raise
        except Transient as error:
            raise EngineFailed(error.cause) from error

    async def _query(
        self,
        kept: Kept,
        sql: str,
        views: Mapping[str, Reading],
        format: Format,
        allowed: Allowance,
    ) -> Rows:
        seconds = allowed.seconds
        if kept is self.spark and not kept.up:
            kept.start()
            began = asyncio.get_running_loop().time()
            await kept.ready(min(SPARK_START, seconds, allowed.patience or seconds))
            seconds -= asyncio.get_running_loop().time() - began
        told = request(sql, views, format, replace(allowed, seconds=seconds))
        began = asyncio.get_running_loop().time()
        try:
            reply = await kept.channel.ask(told, timeout=seconds + GRACE)
        except TimeoutError:
            # It was to stop at its time limit and did not: some calls ignore an interrupt.
            kept.kill("ignored its time limit")
            raise TooLate(
                "The query ran too long.", "Ask for less, or give it more time."
            ) from None
        except Transient as error:
            ran = asyncio.get_running_loop().time() - began
            kind = Away if isinstance(error, NotRunning) else Spent if ran > QUICK else EngineFailed
            raise kind(f"{kept.name}: {error.cause}") from error
        try:
            return rows(kept.name, reply)
        except Spent as error:
            if asyncio.get_running_loop().time() - began > QUICK:
                raise
            raise Away(error.cause) from error  # it had too much to do, for others

    def _load(self, name: str) -> _Load:
        return self._loads.setdefault(name, _Load())

    # Watching ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """End whoever takes more memory than it may, or does not answer at all."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._tell_asked()
            everybody = (*self.nodes.values(), *self.direct, self.spark)
            await asyncio.gather(*(self._examine(kept) for kept in everybody if kept.up))

    async def _examine(self, kept: Kept) -> None:
        try:
            frame = await kept.channel.ask({"do": "ping"}, timeout=5 * WATCH_SECONDS)
        except TimeoutError:
            kept.kill("does not answer")
            return
        except Transient:
            return
        self.memory[kept.name] = int(frame.header.get("rss", 0))
        limit = kept.program.memory if isinstance(kept, Child) else None
        if limit is not None and self.memory[kept.name] > limit:
            kept.kill(f"has {self.memory[kept.name] >> 20} MB, more than {limit >> 20}")


def _node(plan: Plan, number: int) -> Program:
    arguments = ("--memory", str(plan.node_memory), "--threads", str(plan.node_threads))
    # DuckDB may exceed its limit by what one operator needs; Python and the code are beside it.
    most = int(plan.node_memory * 1.5) + (256 << 20)
    name, module = f"node-{number}", "thermocline.serve.node"
    return Program(name, module, arguments, False, most, nice=BEHIND_ROUTER)
