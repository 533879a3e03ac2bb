"""The router: answer a query, with the provenance of the answer.

guard → prepare → route → execute along the route, within the caller's deadline → answer. It holds
no rows but cached results, and imports no engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from thermocline.serve import incremental_results
from thermocline.serve.analysis.clock import Clock
from thermocline.serve.attempts import (
    FailedAttempt,
    all_engines_failed,
    deadline_passed,
    should_give_up,
    to_failed_attempt,
)
from thermocline.serve.failures import TooLate, Unavailable
from thermocline.serve.fleet.fleet import Fleet
from thermocline.serve.fleet.messages import (
    CopyMoved,
    EngineFailed,
    EngineQuery,
    QueryBudget,
    TableVersion,
)
from thermocline.serve.freshness import Freshness
from thermocline.serve.provenance import EngineResult, build_provenance, to_milliseconds
from thermocline.serve.query_preparation import PreparedQuery, QueryPreparer
from thermocline.serve.query_translation import Translatable, translate_query
from thermocline.serve.result_cache import ResultCache, estimate_key_bytes
from thermocline.serve.route import AccessPath, Route
from thermocline.serve.route_cache import order_paths
from thermocline.serve.route_planner import RoutePlanner
from thermocline.serve.table_access import TableAccess
from thermocline.serve.values import Answer, Caller, EncodedRows, LakeState, QueryRequest
from thermocline.serve.verify import Verifier
from thermocline.sql.guard import SyntaxLimits
from thermocline.sql.translate import Untranslatable

if TYPE_CHECKING:
    from sqlglot import exp

    from thermocline.serve.read_recorder import ReadRecorder

LONG_QUERY = 2_000
"""Texts with more characters are prepared in a thread, so that they do not block the event loop."""
MAX_ROUNDS = 3
RESULT_BYTES, COLUMN_BYTES = 1_000, 300
"""The approximate memory of a result besides its rows, and of each of its columns."""
CATCH_UP_SECONDS = 0.3
COPY_MOVED_SECONDS = 0.1
_NO_CALLER = Caller("")
"""For work that all callers share: it counts for none of them in scheduling."""


@dataclass(frozen=True)
class QueryLimits:
    """What a query may cost, and how stale an answer may be."""

    rows: int = 100_000
    bytes: int = 64 << 20
    seconds: float = 30.0
    tolerance: float = 2.0
    overdue: float = 30.0
    """How many seconds a stale answer may be returned when no newer one is available."""
    cache_bytes: int = 64 << 20
    verify_share: float = 0.01
    split_rows: int = incremental_results.MIN_OLDER_ROWS
    dollars_per_second: float = 0.05 / 3600
    bounds: SyntaxLimits | None = None


@dataclass(frozen=True)
class _QueryRun:
    """One run of a query: for whom, and until when."""

    prepared: PreparedQuery
    request: QueryRequest
    caller: Caller
    deadline: float


class Router:
    """Answers queries from the fastest engine with the required data."""

    def __init__(
        self,
        fleet: Fleet,
        limits: QueryLimits | None = None,
        table_access: TableAccess | None = None,
        read_recorder: ReadRecorder | None = None,
    ) -> None:
        self.fleet = fleet
        self.table_access = table_access or TableAccess()
        self.limits = limits or QueryLimits()
        self._preparer = QueryPreparer(self.limits.bounds)
        self._result_cache = ResultCache[EngineResult](self.limits.cache_bytes, _result_bytes)
        self._freshness = Freshness(fleet, self.limits.tolerance, self.limits.overdue)
        self.verifier = Verifier(fleet, self._result_cache.clear)
        self._planner = RoutePlanner(fleet, self.table_access, self._freshness, self.verifier)
        self._incremental = incremental_results.IncrementalResults(
            fleet, self._result_cache, self._execute_older_part, self.translate_for
        )
        self._read_recorder = read_recorder
        self._chance = random.Random()  # noqa: S311  (selects the answers to verify)

    async def start(self) -> None:
        """Start the fleet."""
        await self.fleet.start()

    async def stop(self) -> None:
        """Stop the verifier and the fleet."""
        await self.verifier.stop()
        await self.fleet.stop()
        if self._read_recorder is not None:
            self._read_recorder.close()

    def lake_state(self, caller: Caller | None = None) -> LakeState:
        """Return the state of the lake, or the part that a caller may see."""
        whole = self.fleet.lake_state
        return whole if caller is None else self.table_access.visible_state(whole, caller)

    def is_ready(self) -> bool:
        """Return whether the catalog was polled and a cold engine is available."""
        engines = self.fleet.available_engines()
        return self.fleet.lake_state.epoch > 0 and (engines.direct or bool(engines.cold))

    def nodes(self, caller: Caller | None = None) -> list[dict[str, Any]]:
        """Return the hot nodes, and their copies that a caller may see."""
        hot_copies = self.lake_state(caller).hot_copies
        return [
            {
                "name": node.name,
                "up": node.is_up,
                "restarts": max(node.restarts, 0),
                "memory_bytes": self.fleet.memory.get(node.name, 0),
                "tables": {
                    table: {
                        "snapshot": str(copy.snapshot),
                        "since": copy.since.isoformat() if copy.since else None,
                        "rows": copy.rows,
                        "bytes": copy.bytes,
                    }
                    for table, copy in hot_copies.get(node.name, {}).items()
                },
            }
            for node in self.fleet.nodes.values()
        ]

    def node_memory(self) -> dict[str, int]:
        """Return the resident memory of each hot node."""
        return {name: self.fleet.memory.get(name, 0) for name in self.fleet.nodes}

    # Queries -------------------------------------------------------------------------------------

    async def answer(self, request: QueryRequest, caller: Caller) -> Answer:
        """Answer a query. Raises ThermoclineError; cancelling the task cancels the query."""
        began = time.perf_counter()
        prepared = await self._prepare(request)
        return await self._answer_prepared(prepared, request, caller, began)

    async def answer_tree(self, tree: exp.Query, request: QueryRequest, caller: Caller) -> Answer:
        """Answer a query that a protocol built, without stored tables, in DuckDB's dialect."""
        from thermocline.sql.guard import GuardedQuery

        now = datetime.now(UTC)
        query = GuardedQuery(tree, "duckdb", {})
        prepared = PreparedQuery(query, tree.sql("duckdb"), Clock.INSTANT, now.date(), now)
        return await self._answer_prepared(prepared, request, caller, time.perf_counter())

    async def explain(self, request: QueryRequest, caller: Caller) -> dict[str, Any]:
        """Return the route of a query and the reasons, without executing it."""
        prepared = await self._prepare(request)
        lake_state = await self._planner.wait_for_fresh_state(prepared, request, caller)
        prepared.check_names(lake_state.table_heads)
        _, route = self._planner.plan_route(prepared, request, lake_state)
        time_ranges = prepared.time_ranges(lake_state.table_heads)
        boundary = self._find_boundary(prepared, request, lake_state)
        return {
            "ways": [
                {
                    "engine": access_path.engine,
                    "node": access_path.node,
                    "because": list(access_path.because),
                }
                for access_path in route.access_paths
            ],
            "tables": {
                table: {
                    "snapshot": str(lake_state.table_heads[table].snapshot),
                    "from": time_range.start.isoformat() if time_range.start else None,
                    "to": time_range.end.isoformat() if time_range.end else None,
                }
                for table, time_range in time_ranges.items()
            },
            "scan": {"files": route.files, "bytes": route.bytes},
            # When the query is repeated, only newer rows are recomputed.
            "split_at": boundary.at.isoformat()
            if boundary and incremental_results.split_at(prepared, boundary)
            else None,
        }

    async def _prepare(self, request: QueryRequest) -> PreparedQuery:
        now, heads = datetime.now(UTC), self.fleet.lake_state.table_heads
        if len(request.sql) > LONG_QUERY:
            return await asyncio.to_thread(self._preparer, request, heads, now)
        return self._preparer(request, heads, now)

    async def _answer_prepared(
        self, prepared: PreparedQuery, request: QueryRequest, caller: Caller, began: float
    ) -> Answer:
        seconds = min(request.timeout or self.limits.seconds, self.limits.seconds)
        parsed = time.perf_counter()
        lake_state = await self._planner.wait_for_fresh_state(prepared, request, caller)
        prepared.check_names(lake_state.table_heads)
        self.fleet.record_query(prepared.tables)
        requirements, route = self._planner.plan_route(prepared, request, lake_state)
        if requirements.at_least and route.access_paths and route.access_paths[0].engine != "hot":
            await self.fleet.wait_for_change(CATCH_UP_SECONDS)  # a node may be about to receive it
            requirements, route = self._planner.plan_route(prepared, request, self.fleet.lake_state)
        routed = time.perf_counter()
        result, cached = await self._get_result(
            _QueryRun(prepared, request, caller, began + seconds), route
        )
        done = time.perf_counter()
        if self._read_recorder is not None and not cached:
            self._read_recorder.record(prepared, result, self.fleet.lake_state.table_heads)
        ms = {
            "parse": to_milliseconds(parsed - began),
            "route": to_milliseconds(routed - parsed),
            "wait": to_milliseconds(done - routed),
            **({} if cached else result.rows.ms),
        }
        overdue = cached and self._freshness.is_overdue(result, request)
        provenance = build_provenance(result, self.fleet, cached=cached, overdue=overdue, ms=ms)
        provenance["cost_usd"] = round(
            0.0 if cached else sum(result.rows.ms.values()) / 1000 * self.limits.dollars_per_second,
            10,
        )
        return Answer(result.rows, request.format, provenance)

    async def _get_result(self, run: _QueryRun, route: Route) -> tuple[EngineResult, bool]:
        """Return the rows from the result cache or from an engine."""
        prepared, request = run.prepared, run.request
        if prepared.clock is Clock.INSTANT or not prepared.tables:
            return await self._execute_with_retries(run, route), False
        # Requests that name a snapshot share no entry with others: while a result is computed for
        # those that want the newest snapshot, a newer one may be committed.
        query = (
            prepared.text,
            request.dialect,
            request.format,
            run.caller.policy,
            request.snapshot,
        )
        snapshots = (
            tuple(sorted(route.access_paths[0].snapshots.items())) if route.access_paths else None
        )
        try:
            return await self._result_cache.get_or_compute(
                query,
                snapshots,
                lambda: self._execute_with_retries(run, route),
                lambda result: self._freshness.is_fresh(result, request),
                lambda result: self._freshness.is_acceptable(result, request),
            )
        except TooLate:
            if time.perf_counter() >= run.deadline - 0.01:
                raise
            # The shared execution had the shorter deadline of another request.
            return await self._execute_with_retries(run, route), False

    async def _execute_with_retries(self, run: _QueryRun, route: Route) -> EngineResult:
        """Execute along the route until an engine answers; incrementally for a repeated query."""
        failures: list[FailedAttempt] = []
        for left in reversed(range(MAX_ROUNDS)):
            route = await self._wait_for_node(run, route)
            known = self.fleet.lake_state
            try:
                result = await self._execute_incrementally(run) if left else None
                if result is None:
                    access_path, rows = await self._execute_first_available(run, route, failures)
                    result = EngineResult(
                        rows, access_path, tuple(failures), _count_scanned(access_path, route)
                    )
            except CopyMoved as error:
                if self.fleet.lake_state is known:
                    await self.fleet.wait_for_change(COPY_MOVED_SECONDS)
                route = self._plan_route(run)
                if left == 1:  # the copies keep moving: fall back to the files
                    failures.append(FailedAttempt("hot", error.cause))
                    cold = tuple(
                        access_path
                        for access_path in route.access_paths
                        if access_path.engine != "hot"
                    )
                    route = replace(route, access_paths=cold, is_node_catching_up=False)
                continue
            run.prepared.was_answered = True
            if (
                result.access_path.engine == "hot"
                and self._chance.random() < self.limits.verify_share
            ):
                self._verify_in_background(run, result)
            return result
        raise all_engines_failed(failures)

    def _plan_route(self, run: _QueryRun) -> Route:
        """Return the route in the current state of the lake."""
        return self._planner.plan_route(run.prepared, run.request, self.fleet.lake_state)[1]

    async def _wait_for_node(self, run: _QueryRun, route: Route) -> Route:
        """Wait until an engine is available and no node is worth waiting for; return the route.

        When all nodes are behind for a moment, all queries of a dashboard would read files at once,
        at many times the cost, which would keep the nodes behind.
        """
        until = (time.perf_counter() + run.deadline) / 2
        while not route.access_paths or self._should_wait(route, route.access_paths[0]):
            left = until - time.perf_counter()
            if left <= 0:
                break
            await self.fleet.wait_for_change(min(left, CATCH_UP_SECONDS))
            route = self._plan_route(run)
        return route

    def _should_wait(self, route: Route, access_path: AccessPath) -> bool:
        """Return whether waiting for a node is better than this access path."""
        slow = access_path.engine != "direct" or self.fleet.are_direct_workers_busy
        return route.is_node_catching_up and access_path.engine != "hot" and slow

    async def _execute_incrementally(self, run: _QueryRun) -> EngineResult | None:
        """Answer a repeated query from its cached older part and the rows since midnight."""
        prepared, request, caller = run.prepared, run.request, run.caller
        boundary = (
            self._find_boundary(prepared, request, self.fleet.lake_state)
            if prepared.was_answered
            else None
        )
        if boundary is None:
            return None
        # Half the time: if this fails, executing the whole query needs the rest.
        seconds = (run.deadline - time.perf_counter()) / 2
        budget = QueryBudget(self.limits.rows, self.limits.bytes, seconds, caller=caller.name)
        return await self._incremental.execute(prepared, request, caller, boundary, budget)

    def _find_boundary(
        self, prepared: PreparedQuery, request: QueryRequest, lake_state: LakeState
    ) -> incremental_results.Boundary | None:
        """Return where a repeated query is split, or None."""
        if not self.limits.cache_bytes or request.snapshot is not None:
            return None
        if self.verifier.distrusted_tables(lake_state) & set(prepared.tables):
            return None
        nodes, now = self.fleet.available_engines().nodes, datetime.now(UTC)
        return incremental_results.find_boundary(
            prepared, lake_state, nodes, now, self.limits.split_rows
        )

    async def _execute_older_part(
        self, prepared: PreparedQuery, request: QueryRequest, snapshot: int, deadline: float
    ) -> EngineResult:
        """Execute the older part of a query, at exactly this snapshot of its table."""
        run = _QueryRun(prepared, request, _NO_CALLER, deadline)
        failures: list[FailedAttempt] = []
        route = self._plan_route(run)
        access_paths = tuple(
            access_path
            for access_path in route.access_paths
            if snapshot in access_path.snapshots.values()
        )
        route = replace(route, access_paths=access_paths)
        access_path, rows = await self._execute_first_available(run, route, failures)
        return EngineResult(rows, access_path, tuple(failures), _count_scanned(access_path, route))

    async def _execute_first_available(
        self, run: _QueryRun, route: Route, failures: list[FailedAttempt]
    ) -> tuple[AccessPath, EncodedRows]:
        """Execute on the first access path that answers; record failed attempts.

        Raises CopyMoved when the route must be planned again.
        """
        unfaithful: Untranslatable | None = None
        access_paths = order_paths(
            route.access_paths, self.fleet.lake_state.table_heads, self.fleet.count_running
        )
        for access_path in access_paths:
            if (
                access_path is not access_paths[0]
                and access_paths[0].engine == "hot"
                and self._should_wait(route, access_path)
            ):
                raise CopyMoved(failures[-1].cause)
            try:
                last = access_path is access_paths[-1]
                return access_path, await self._execute_on(run, access_path, last=last)
            except CopyMoved:
                raise
            except Untranslatable as error:
                unfaithful = error
                failures.append(FailedAttempt(access_path.engine, error.cause, "unfaithful"))
            except (EngineFailed, TimeoutError) as error:
                failures.append(to_failed_attempt(access_path, error))
                if should_give_up(failures):
                    raise all_engines_failed(failures) from error
            if time.perf_counter() >= run.deadline:
                raise deadline_passed(failures)
        if unfaithful is not None and all(each.kind == "unfaithful" for each in failures):
            if not access_paths or not self._can_others_answer(run.prepared, access_paths[0]):
                raise unfaithful
            raise Unavailable("The engine that could answer is not available at the moment.")
        raise all_engines_failed(failures)

    def _can_others_answer(self, prepared: PreparedQuery, access_path: AccessPath) -> bool:
        """Return whether an engine that is not available now could answer the query."""
        for engine in self.fleet.configured_engines:
            with contextlib.suppress(Untranslatable):
                self.translate_for(prepared, replace(access_path, engine=engine, node=None))
                return True
        return False

    async def _execute_on(
        self, run: _QueryRun, access_path: AccessPath, *, last: bool
    ) -> EncodedRows:
        """Execute on one engine. Unless it is the last, it must start in time to try the next one.

        A query that ran too long on one engine is not retried on another, which would be too slow
        too.
        """
        seconds = run.deadline - time.perf_counter()
        if seconds <= 0:
            raise TimeoutError
        sql, views = self.translate_for(run.prepared, access_path)
        patience = None if last else max(seconds / 2, min(seconds, 0.5))
        budget = QueryBudget(
            self.limits.rows, self.limits.bytes, seconds, patience, run.caller.name
        )
        query = EngineQuery(sql, views, run.request.format, budget)
        return await self.fleet.execute(access_path, query)

    def translate_for(
        self, prepared: Translatable, access_path: AccessPath
    ) -> tuple[str, Mapping[str, TableVersion]]:
        """Return the query in an engine's dialect, and the versions of its tables."""
        return translate_query(prepared, access_path, self.fleet.lake_state, self.fleet.catalog)

    def _verify_in_background(self, run: _QueryRun, result: EngineResult) -> None:
        access_path = replace(result.access_path, engine="direct", node=None)
        sql, views = self.translate_for(run.prepared, access_path)
        budget = QueryBudget(self.limits.rows, self.limits.bytes, self.limits.seconds)
        recomputation = EngineQuery(sql, views, run.request.format, budget)
        self.verifier.verify(run.prepared.query, result.rows, access_path, recomputation)


def _count_scanned(access_path: AccessPath, route: Route) -> tuple[int, int]:
    """Return how many files and bytes of the lake were read."""
    return (0, 0) if access_path.engine == "hot" else (route.files, route.bytes)


def _result_bytes(query: Hashable, version: Hashable, result: EngineResult) -> int:
    """Return the memory of a cached result and its key."""
    provenance = sum(map(len, result.access_path.because)) + COLUMN_BYTES * len(result.rows.columns)
    return (
        len(result.rows.body)
        + provenance
        + estimate_key_bytes(query)
        + estimate_key_bytes(version)
        + RESULT_BYTES
    )
