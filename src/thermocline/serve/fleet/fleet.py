"""All engines of the router: hot nodes, direct workers, Spark, Trino; and the replicator.

The fleet knows which are up, how busy they are and which copies they have. It sends a query to one
of them and kills a worker whose query does not end.
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
    EngineQuery,
    QueryAborted,
    QueryNotStarted,
    decode_rows,
    encode_query,
)
from thermocline.serve.fleet.processes import (
    NotRunning,
    RemoteNode,
    SupervisedProcess,
    WorkerHandle,
    WorkerProgram,
)
from thermocline.serve.route import AccessPath, Engines
from thermocline.serve.values import EncodedRows, EngineName, Format, LakeState

GRACE_SECONDS = 1.0
"""How long after a query's time limit a worker may take to reply, before it is killed."""
MAX_RUNNING, MAX_RUNNING_PER_CALLER = 8, 2
"""How many queries run on an engine at a time, and how many of one caller."""
WATCH_SECONDS = 1.0
QUICK_SECONDS = 0.25
"""A query that ran for less time is hardly the cause of its engine's failure."""
REBUILD_SECONDS = 10.0
MAX_REPORTED_QUERIES = 1_000
SPARK_START_SECONDS = 60.0
NODE_NICE = 3
"""The nice value of nodes, so that cached results never wait for recomputation."""
FILE_READER_NICE = 12
"""The nice value of workers that read files, so that nodes and replicator never wait for them."""


class ExternalEngine(Protocol):
    """An engine that is not a child process: Trino."""

    async def query(
        self, sql: str, *, seconds: float, rows: int, bytes: int, format: Format
    ) -> EncodedRows:
        """Return the rows of a query. Raises ThermoclineError."""

    async def close(self) -> None:
        """Close its connections."""


@dataclass(frozen=True)
class FleetConfig:
    """Which processes the fleet has."""

    project: Path
    profile: str | None = None
    nodes: int = 2
    node_memory: int = 512 << 20
    node_threads: int = MAX_RUNNING
    remote: Sequence[tuple[str, str, str]] = ()
    """Name, address and token of nodes on other machines."""
    direct: int = 1
    direct_bytes: int = 256 << 20
    spark: bool = True
    seconds: float = 30.0
    replicator: Sequence[str] = ()
    """Further arguments of the replicator."""

    @property
    def project_arguments(self) -> tuple[str, ...]:
        """The arguments of processes that open the lake."""
        profile = ("--profile", self.profile) if self.profile else ()
        return ("--project", str(self.project), *profile)


@dataclass
class _EngineLoad:
    """The running queries of an engine, its circuit breaker and its scheduler."""

    running: int = 0
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    scheduler: FairScheduler = field(
        default_factory=lambda: FairScheduler(MAX_RUNNING, MAX_RUNNING_PER_CALLER)
    )


class Fleet:
    """The processes behind the router, and the state of the lake."""

    def __init__(
        self, config: FleetConfig, trino: ExternalEngine | None = None, catalog: str = "lake"
    ) -> None:
        self.config = config
        self.trino = trino
        self.catalog = catalog
        """The name of this lake's catalog in Trino."""
        self._folder = ScratchFolder(Path(tempfile.gettempdir()), "thermo-serve-")
        folder = self._folder.path
        self.nodes: dict[str, WorkerHandle] = {
            worker.name: worker
            for worker in (
                *(
                    SupervisedProcess(_node_program(config, n), folder, self._on_status_change)
                    for n in range(config.nodes)
                ),
                *(RemoteNode(*each, self._on_status_change) for each in config.remote),
            )
        }
        self.direct = [
            SupervisedProcess(
                WorkerProgram(
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
        self.replicator = SupervisedProcess(
            WorkerProgram(
                "replicator",
                "thermocline.serve.replicator",
                (*config.project_arguments, *config.replicator),
                True,
                nice=NODE_NICE,
            ),
            folder,
            self._on_status_change,
        )
        self.spark = SupervisedProcess(
            WorkerProgram(
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

    # Start and stop ------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start all processes but Spark, which starts at its first query."""
        for worker in (self.replicator, *self.nodes.values(), *self.direct):
            worker.start()
        self._tasks = [
            asyncio.create_task(self.watcher.follow(), name="follow the replicator"),
            asyncio.create_task(self._watch(), name="watch the workers"),
        ]

    async def stop(self) -> None:
        """Stop all processes and close connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        workers = (self.replicator, self.spark, *self.nodes.values(), *self.direct)
        await asyncio.gather(*(worker.stop() for worker in workers))
        if self.trino is not None:
            await self.trino.close()
        self._folder.close()

    def _on_status_change(self, worker: WorkerHandle) -> None:
        """Send the replicator the current nodes; drop the copies of a node that is down."""
        self._loads.pop(worker.name, None)
        if not worker.is_up:
            self.watcher.drop_node(worker.name)
        if self.replicator.is_up:
            up = [node for node in self.nodes.values() if node.is_up]
            nodes = [{"name": n.name, "address": n.address, "token": n.token} for n in up]
            self.replicator.channel.notify({"do": "nodes", "nodes": nodes})

    # Replicator -----------------------------------------------------------------------------------

    @property
    def lake_state(self) -> LakeState:
        """The current state of the lake and of the hot copies."""
        return self.watcher.lake_state

    @property
    def superseded_at(self) -> Mapping[tuple[str, int], datetime]:
        """When a snapshot stopped being its table's newest."""
        return self.watcher.superseded_at

    async def poll(self, seconds: float) -> LakeState:
        """Poll the catalog now and return its state. Wait for a replicator that is restarting."""
        return await self.watcher.poll(seconds)

    async def wait_for_change(self, seconds: float) -> None:
        """Wait up to `seconds` for a change."""
        await self.watcher.wait_for_change(seconds)

    def record_query(self, tables: tuple[str, ...]) -> None:
        """Count a query: the replicator decides by these counts which tables are worth holding."""
        self._query_counts[tables] += 1

    def _report_queries(self) -> None:
        """Send the replicator the counts since the last report."""
        if self._query_counts and self.replicator.is_up:
            message = [
                [list(tables), times]
                for tables, times in self._query_counts.most_common(MAX_REPORTED_QUERIES)
            ]
            self.replicator.channel.notify({"do": "record_queries", "queries": message})
            self._query_counts.clear()

    async def rebuild(self, tables: Sequence[str]) -> int:
        """Have copies rebuilt; return the epoch from which on only new copies are reported."""
        frame = await self.replicator.channel.ask(
            {"do": "rebuild", "tables": list(tables)}, timeout=REBUILD_SECONDS
        )
        return int(frame.header["epoch"])

    # Queries -------------------------------------------------------------------------------------

    def available_engines(self) -> Engines:
        """Return the engines that accept queries now."""
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
        """All cold engines, whether they accept queries now or not."""
        trino: tuple[EngineName, ...] = ("trino",) if self.trino is not None else ()
        return ("direct", *trino, "spark") if self.config.spark else ("direct", *trino)

    def count_running(self, name: str) -> int:
        """Return how many queries run on an engine."""
        load = self._loads.get(name)
        return 0 if load is None else load.running

    @property
    def are_direct_workers_busy(self) -> bool:
        """Whether all direct workers have a query running."""
        return all(self.count_running(each.name) for each in self.direct if each.is_up)

    @property
    def running(self) -> int:
        """How many queries run on all engines."""
        return sum(load.running for load in self._loads.values())

    async def execute(self, access_path: AccessPath, query: EngineQuery) -> EncodedRows:
        """Execute a query on one engine. Raises EngineFailed when another engine should be tried.

        The query is in the dialect of the access path's engine.
        """
        budget = query.budget
        name, worker = self._resolve_worker(access_path)
        load = self._get_load(name)
        load.running += 1
        try:
            began = asyncio.get_running_loop().time()
            async with load.scheduler.slot(budget.caller, budget.patience or budget.seconds):
                waited = asyncio.get_running_loop().time() - began
                left = replace(query, budget=replace(budget, seconds=budget.seconds - waited))
                if worker is None:
                    result = await self._execute_external(left)
                else:
                    result = await self._execute_on_worker(worker, left)
        except CopyMoved as error:
            table, held = str(error.details.get("table")), str(error.details.get("held"))
            self.watcher.advance_copy(name, table, held)
            raise
        except (BadInput, TooLate, QueryNotStarted, QueryAborted):
            raise  # caused by the query or by load, not by the engine
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

    async def _execute_external(self, query: EngineQuery) -> EncodedRows:
        assert self.trino is not None
        budget = query.budget
        try:
            return await self.trino.query(
                query.sql,
                seconds=budget.seconds,
                rows=budget.rows,
                bytes=budget.bytes,
                format=query.format,
            )
        except TimeoutError:
            raise TooLate(
                "The query ran too long.", "Read less data, or allow more time."
            ) from None
        except TooLate:
            raise
        except Transient as error:
            raise EngineFailed(error.cause) from error

    async def _execute_on_worker(self, worker: WorkerHandle, query: EngineQuery) -> EncodedRows:
        budget, seconds = query.budget, query.budget.seconds
        if worker is self.spark and not worker.is_up:
            worker.start()
            began = asyncio.get_running_loop().time()
            await worker.wait_until_up(
                min(SPARK_START_SECONDS, seconds, budget.patience or seconds)
            )
            seconds -= asyncio.get_running_loop().time() - began
        message = encode_query(replace(query, budget=replace(budget, seconds=seconds)))
        began = asyncio.get_running_loop().time()
        try:
            reply = await worker.channel.ask(message, timeout=seconds + GRACE_SECONDS)
        except TimeoutError:
            # It did not stop at its time limit: some calls ignore an interrupt.
            worker.kill("ignored its time limit")
            raise TooLate(
                "The query ran too long.", "Read less data, or allow more time."
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
            raise QueryNotStarted(error.cause) from error  # the load of other queries was the cause

    def _get_load(self, name: str) -> _EngineLoad:
        return self._loads.setdefault(name, _EngineLoad())

    # Watching ------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Kill workers that exceed their memory limit or do not reply to pings."""
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
        limit = worker.program.memory if isinstance(worker, SupervisedProcess) else None
        if limit is not None and self.memory[worker.name] > limit:
            worker.kill(f"has {self.memory[worker.name] >> 20} MB, more than {limit >> 20}")


def _node_program(config: FleetConfig, number: int) -> WorkerProgram:
    arguments = ("--memory", str(config.node_memory), "--threads", str(config.node_threads))
    # DuckDB may exceed its limit by what one operator needs; Python and its libraries come on top.
    max_memory = int(config.node_memory * 1.5) + (256 << 20)
    name, module = f"node-{number}", "thermocline.serve.node"
    return WorkerProgram(name, module, arguments, False, max_memory, nice=NODE_NICE)
