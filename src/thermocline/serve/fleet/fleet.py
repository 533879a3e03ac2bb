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

from thermocline.config.scratch import ScratchFolder
from thermocline.errors import BadInput, Transient
from thermocline.serve.failures import TooLate
from thermocline.serve.fleet.catalog_watcher import CatalogWatcher
from thermocline.serve.fleet.circuit_breaker import CircuitBreaker
from thermocline.serve.fleet.fair_scheduler import FairScheduler
from thermocline.serve.fleet.messages import (
    CopyMoved,
    EngineFailed,
    QueryAborted,
    QueryBudget,
    QueryNotStarted,
    TableVersion,
    decode_rows,
    encode_query,
)
from thermocline.serve.fleet.processes import (
    ChildProcess,
    ChildProgram,
    NotRunning,
    RemoteNode,
    WorkerHandle,
)
from thermocline.serve.route import AccessPath, Engines
from thermocline.serve.values import EncodedRows, EngineName, Format, LakeState

GRACE_SECONDS = 1.0
"""How long after its time limit a worker may take to say so, before it is ended."""
SLOTS, SLOTS_PER_CALLER = 8, 2
"""How many queries an engine has running, and how many of one caller: there is room for others."""
WATCH_SECONDS = 1.0
QUICK_SECONDS = 0.25
"""A query that ran no longer when its engine failed is hardly what it failed of."""
REBUILD_SECONDS = 10.0
MAX_REPORTED_QUERIES = 1_000
SPARK_START_SECONDS = 60.0
NODE_NICE = 3
"""How far nodes step back: an answer that is kept does not wait while others are counted anew."""
FILE_READER_NICE = 12
"""How far those who read files step back: no hot answer waits for them, nor what makes it new."""


class ExternalEngine(Protocol):
    """An engine that is not a process of ours: Trino."""

    async def query(
        self, sql: str, *, seconds: float, rows: int, bytes: int, format: Format
    ) -> EncodedRows:
        """The rows of a query; raises ThermoclineError."""

    async def close(self) -> None:
        """Let go of its connections."""


@dataclass(frozen=True)
class FleetConfig:
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
    replicator: Sequence[str] = ()
    """Further arguments of the keeper."""

    @property
    def project_arguments(self) -> tuple[str, ...]:
        """The arguments of whoever opens the lake."""
        profile = ("--profile", self.profile) if self.profile else ()
        return ("--project", str(self.project), *profile)


@dataclass
class _EngineLoad:
    """Who is asked how much at the moment, and whether they are worth asking."""

    running: int = 0
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    scheduler: FairScheduler = field(default_factory=lambda: FairScheduler(SLOTS, SLOTS_PER_CALLER))


class Fleet:
    """The processes behind the router, and what the keeper says of the lake."""

    def __init__(
        self, config: FleetConfig, trino: ExternalEngine | None = None, catalog: str = "lake"
    ) -> None:
        self.config = config
        self.trino = trino
        self.catalog = catalog
        """The name under which Trino sees this lake."""
        self._folder = ScratchFolder(Path(tempfile.gettempdir()), "thermo-serve-")
        folder = self._folder.path
        self.nodes: dict[str, WorkerHandle] = {
            worker.name: worker
            for worker in (
                *(
                    ChildProcess(_node(config, n), folder, self._on_status_change)
                    for n in range(config.nodes)
                ),
                *(RemoteNode(*each, self._on_status_change) for each in config.remote),
            )
        }
        self.direct = [
            ChildProcess(
                ChildProgram(
                    f"direct-{n}",
                    "thermocline.serve.engines.direct",
                    config.project_arguments,
                    opens_lake=True,
                    nice=FILE_READER_NICE,
                ),
                folder,
            )
            for n in range(config.direct)
        ]
        self.replicator = ChildProcess(
            ChildProgram(
                "replicator",
                "thermocline.serve.replicator",
                (*config.project_arguments, *config.replicator),
                True,
                nice=NODE_NICE,
            ),
            folder,
            self._on_status_change,
        )
        self.spark = ChildProcess(
            ChildProgram(
                "spark",
                "thermocline.serve.engines.spark",
                config.project_arguments,
                opens_lake=True,
                nice=FILE_READER_NICE,
            ),
            folder,
        )
        self.watcher = CatalogWatcher(self.replicator)
        self.memory: dict[str, int] = {}
        self._loads: dict[str, _EngineLoad] = {}
        self._query_counts: Counter[tuple[str, ...]] = Counter()
        self._tasks: list[asyncio.Task[None]] = []

    # Coming and going ----------------------------------------------------------------------------

    async def start(self) -> None:
        """Start everybody who is needed at once; Spark waits for its first query."""
        for worker in (self.replicator, *self.nodes.values(), *self.direct):
            worker.start()
        self._tasks = [
            asyncio.create_task(self.watcher.follow(), name="follow the keeper"),
            asyncio.create_task(self._watch(), name="watch the workers"),
        ]

    async def stop(self) -> None:
        """End everybody."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        workers = (self.replicator, self.spark, *self.nodes.values(), *self.direct)
        await asyncio.gather(*(worker.stop() for worker in workers))
        if self.trino is not None:
            await self.trino.close()
        self._folder.close()

    def _on_status_change(self, worker: WorkerHandle) -> None:
        """Tell the keeper who the nodes are now; and read no copies of one that is gone."""
        self._loads.pop(worker.name, None)
        if not worker.is_up:
            self.watcher.drop_node(worker.name)
        if self.replicator.is_up:
            up = [node for node in self.nodes.values() if node.is_up]
            nodes = [{"name": n.name, "address": n.address, "token": n.token} for n in up]
            self.replicator.channel.notify({"do": "nodes", "nodes": nodes})

    # What the keeper tells, and is told ----------------------------------------------------------

    @property
    def lake_state(self) -> LakeState:
        """What is known of the lake and of what the nodes hold."""
        return self.watcher.lake_state

    @property
    def superseded_at(self) -> Mapping[tuple[str, int], datetime]:
        """When a snapshot stopped being its table's newest."""
        return self.watcher.superseded_at

    async def poll(self, seconds: float) -> LakeState:
        """What the catalog says now, not a moment ago. A keeper that just died is waited for."""
        return await self.watcher.poll(seconds)

    async def wait_for_change(self, seconds: float) -> None:
        """Wait for something new from the keeper, for a while."""
        await self.watcher.wait_for_change(seconds)

    def record_query(self, tables: tuple[str, ...]) -> None:
        """Note what is asked for: the keeper decides by that what is worth holding."""
        self._query_counts[tables] += 1

    def _report_queries(self) -> None:
        """Tell the keeper what was asked for since it was told last."""
        if self._query_counts and self.replicator.is_up:
            message = [
                [list(tables), times]
                for tables, times in self._query_counts.most_common(MAX_REPORTED_QUERIES)
            ]
            self.replicator.channel.notify({"do": "asked", "questions": message})
            self._query_counts.clear()

    async def rebuild(self, tables: Sequence[str]) -> int:
        """Have copies made anew; says from which epoch on the copies are new ones."""
        frame = await self.replicator.channel.ask(
            {"do": "rebuild", "tables": list(tables)}, timeout=REBUILD_SECONDS
        )
        return int(frame.header["epoch"])

    # Asking --------------------------------------------------------------------------------------

    def available_engines(self) -> Engines:
        """Who can be asked now."""
        nodes = {
            name: self._get_load(name).running
            for name, node in self.nodes.items()
            if node.is_up and not self._get_load(name).breaker.is_open
        }
        cold: list[EngineName] = []
        if self.trino is not None and not self._get_load("trino").breaker.is_open:
            cold.append("trino")
        if self.config.spark and not self._get_load("spark").breaker.is_open:
            cold.append("spark")
        direct = any(each.is_up for each in self.direct)
        return Engines(nodes, direct, tuple(cold), self.config.direct_bytes)

    @property
    def configured_engines(self) -> tuple[EngineName, ...]:
        """The engines that there are, whether they can be asked now or not."""
        trino: tuple[EngineName, ...] = ("trino",) if self.trino is not None else ()
        return ("direct", *trino, "spark") if self.config.spark else ("direct", *trino)

    def count_running(self, name: str) -> int:
        """How many queries somebody is answering."""
        load = self._loads.get(name)
        return 0 if load is None else load.running

    @property
    def are_direct_workers_busy(self) -> bool:
        """Whether all direct workers are reading files for somebody."""
        return all(self.count_running(each.name) for each in self.direct if each.is_up)

    @property
    def running(self) -> int:
        """How many queries are being answered by somebody."""
        return sum(load.running for load in self._loads.values())

    async def execute(
        self,
        access_path: AccessPath,
        sql: str,
        views: Mapping[str, TableVersion],
        format: Format,
        budget: QueryBudget,
    ) -> EncodedRows:
        """The rows that an engine gives. Raises EngineFailed when another engine should be tried.

        The query is in the engine's dialect and names tables by the views.
        """
        name, worker = self._resolve_worker(access_path)
        load = self._get_load(name)
        load.running += 1
        try:
            began = asyncio.get_running_loop().time()
            async with load.scheduler.slot(budget.caller, budget.patience or budget.seconds):
                waited = asyncio.get_running_loop().time() - began
                left = replace(budget, seconds=budget.seconds - waited)
                if worker is None:
                    result = await self._execute_external(sql, format, left)
                else:
                    result = await self._execute_on_worker(worker, sql, views, format, left)
        except CopyMoved as error:
            table, held = str(error.details.get("table")), str(error.details.get("held"))
            self.watcher.advance_copy(name, table, held)
            raise
        except (BadInput, TooLate, QueryNotStarted, QueryAborted):
            raise  # which tells of the query, or of how much there is to do
        except (EngineFailed, TimeoutError):
            load.breaker.record_failure()
            raise
        finally:
            load.running -= 1
        load.breaker.record_success()
        return result

    def _resolve_worker(self, access_path: AccessPath) -> tuple[str, WorkerHandle | None]:
        match access_path.engine:
            case "hot":
                assert access_path.node is not None
                return access_path.node, self.nodes[access_path.node]
            case "direct":
                up = [each for each in self.direct if each.is_up] or self.direct
                chosen = min(up, key=lambda each: self._get_load(each.name).running)
                return chosen.name, chosen
            case "spark":
                return "spark", self.spark
            case _:
                return access_path.engine, None

    async def _execute_external(self, sql: str, format: Format, budget: QueryBudget) -> EncodedRows:
        assert self.trino is not None
        try:
            return await self.trino.query(
                sql, seconds=budget.seconds, rows=budget.rows, bytes=budget.bytes, format=format
            )
        except TimeoutError:
            raise TooLate(
                "The query ran too long.", "Ask for less, or give it more time."
            ) from None
        except TooLate:
            raise
        except Transient as error:
            raise EngineFailed(error.cause) from error

    async def _execute_on_worker(
        self,
        worker: WorkerHandle,
        sql: str,
        views: Mapping[str, TableVersion],
        format: Format,
        budget: QueryBudget,
    ) -> EncodedRows:
        seconds = budget.seconds
        if worker is self.spark and not worker.is_up:
            worker.start()
            began = asyncio.get_running_loop().time()
            await worker.wait_until_up(
                min(SPARK_START_SECONDS, seconds, budget.patience or seconds)
            )
            seconds -= asyncio.get_running_loop().time() - began
        message = encode_query(sql, views, format, replace(budget, seconds=seconds))
        began = asyncio.get_running_loop().time()
        try:
            reply = await worker.channel.ask(message, timeout=seconds + GRACE_SECONDS)
        except TimeoutError:
            # It was to stop at its time limit and did not: some calls ignore an interrupt.
            worker.kill("ignored its time limit")
            raise TooLate(
                "The query ran too long.", "Ask for less, or give it more time."
            ) from None
        except Transient as error:
            ran = asyncio.get_running_loop().time() - began
            kind = (
                QueryNotStarted
                if isinstance(error, NotRunning)
                else QueryAborted
                if ran > QUICK_SECONDS
                else EngineFailed
            )
            raise kind(f"{worker.name}: {error.cause}") from error
        try:
            return decode_rows(worker.name, reply)
        except QueryAborted as error:
            if asyncio.get_running_loop().time() - began > QUICK_SECONDS:
                raise
            raise QueryNotStarted(error.cause) from error  # it had too much to do, for others

    def _get_load(self, name: str) -> _EngineLoad:
        return self._loads.setdefault(name, _EngineLoad())

    # Watching ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """End whoever takes more memory than it may, or does not answer at all."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            self._report_queries()
            workers = (*self.nodes.values(), *self.direct, self.spark)
            await asyncio.gather(
                *(self._check_worker(worker) for worker in workers if worker.is_up)
            )

    async def _check_worker(self, worker: WorkerHandle) -> None:
        try:
            frame = await worker.channel.ask({"do": "ping"}, timeout=5 * WATCH_SECONDS)
        except TimeoutError:
            worker.kill("does not answer")
            return
        except Transient:
            return
        self.memory[worker.name] = int(frame.header.get("rss", 0))
        limit = worker.program.memory if isinstance(worker, ChildProcess) else None
        if limit is not None and self.memory[worker.name] > limit:
            worker.kill(f"has {self.memory[worker.name] >> 20} MB, more than {limit >> 20}")


def _node(config: FleetConfig, number: int) -> ChildProgram:
    arguments = ("--memory", str(config.node_memory), "--threads", str(config.node_threads))
    # DuckDB may exceed its limit by what one operator needs; Python and the code are beside it.
    most = int(config.node_memory * 1.5) + (256 << 20)
    name, module = f"node-{number}", "thermocline.serve.node"
    return ChildProgram(name, module, arguments, False, most, nice=NODE_NICE)
