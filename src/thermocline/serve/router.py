"""The router: from a question to an answer that says where it came from.

guard → prepare → route → ask, in the order of the route, within the caller's deadline → answer.
It holds no rows of its own but the answers it keeps, and imports no engine.
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

LONG_QUERY = 2_000
"""From how many characters on a text is read beside the loop, so that nobody waits for it."""
MAX_ROUNDS = 3
RESULT_BYTES, COLUMN_BYTES = 1_000, 300
"""About how much memory an answer takes beside its rows, and each of its columns."""
CATCH_UP_SECONDS = 0.3
COPY_MOVED_SECONDS = 0.1


@dataclass(frozen=True)
class QueryLimits:
    """What a question may cost, and how old an answer may be."""

    rows: int = 100_000
    bytes: int = 64 << 20
    seconds: float = 30.0
    tolerance: float = 2.0
    overdue: float = 30.0
    """For how long an answer is better than none, where the newest is not to be had."""
    cache_bytes: int = 64 << 20
    verify_share: float = 0.01
    split_rows: int = incremental_results.MIN_OLDER_ROWS
    dollars_per_second: float = 0.05 / 3600
    bounds: SyntaxLimits | None = None


class Router:
    """Answers questions from whichever engine is right for them."""

    def __init__(
        self,
        fleet: Fleet,
        limits: QueryLimits | None = None,
        table_access: TableAccess | None = None,
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
        self._chance = random.Random()  # noqa: S311  (which answers are looked at twice)

    async def start(self) -> None:
        """Start the fleet."""
        await self.fleet.start()

    async def stop(self) -> None:
        """End everything."""
        await self.verifier.stop()
        await self.fleet.stop()

    def lake_state(self, caller: Caller | None = None) -> LakeState:
        """What is known of the lake: all of it, or what a caller may know."""
        whole = self.fleet.lake_state
        return whole if caller is None else self.table_access.visible_state(whole, caller)

    def is_ready(self) -> bool:
        """Whether questions can be answered: the lake is known, and somebody can read it."""
        engines = self.fleet.available_engines()
        return self.fleet.lake_state.epoch > 0 and (engines.direct or bool(engines.cold))

    def nodes(self, caller: Caller | None = None) -> list[dict[str, Any]]:
        """The hot nodes, and what each holds that a caller may know of."""
        held = self.lake_state(caller).hot_copies
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
                    for table, copy in held.get(node.name, {}).items()
                },
            }
            for node in self.fleet.nodes.values()
        ]

    def node_memory(self) -> dict[str, int]:
        """How many bytes of memory each hot node has."""
        return {name: self.fleet.memory.get(name, 0) for name in self.fleet.nodes}

    # Asking --------------------------------------------------------------------------------------

    async def answer(self, ask: QueryRequest, caller: Caller) -> Answer:
        """The answer to a question. Raises ThermoclineError; cancelling the task cancels it."""
        began = time.perf_counter()
        prepared = await self._prepare(ask)
        return await self._answer_prepared(prepared, ask, caller, began)

    async def answer_tree(self, tree: exp.Query, ask: QueryRequest, caller: Caller) -> Answer:
        """The answer to a query of our own making, without stored tables, in DuckDB's dialect."""
        from thermocline.sql.guard import GuardedQuery

        now = datetime.now(UTC)
        question = GuardedQuery(tree, "duckdb", {})
        prepared = PreparedQuery(question, tree.sql("duckdb"), Clock.INSTANT, now.date(), now)
        return await self._answer_prepared(prepared, ask, caller, time.perf_counter())

    async def explain(self, ask: QueryRequest, caller: Caller) -> dict[str, Any]:
        """Where a question would go and why, without asking anybody."""
        prepared = await self._prepare(ask)
        lake_state = await self._planner.wait_for_fresh_state(prepared, ask, caller)
        prepared.check_names(lake_state.table_heads)
        _, route = self._planner.plan_route(prepared, ask, lake_state)
        time_ranges = prepared.time_ranges(lake_state.table_heads)
        where = self._find_boundary(prepared, ask, lake_state)
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
            # Asked again, only what is newer is counted anew.
            "split_at": where.at.isoformat()
            if where and incremental_results.split_at(prepared, where)
            else None,
        }

    async def _prepare(self, ask: QueryRequest) -> PreparedQuery:
        now, heads = datetime.now(UTC), self.fleet.lake_state.table_heads
        if len(ask.sql) > LONG_QUERY:
            return await asyncio.to_thread(self._preparer, ask, heads, now)
        return self._preparer(ask, heads, now)

    async def _answer_prepared(
        self, prepared: PreparedQuery, ask: QueryRequest, caller: Caller, began: float
    ) -> Answer:
        seconds = min(ask.timeout or self.limits.seconds, self.limits.seconds)
        deadline = began + seconds
        parsed = time.perf_counter()
        lake_state = await self._planner.wait_for_fresh_state(prepared, ask, caller)
        prepared.check_names(lake_state.table_heads)
        self.fleet.record_query(prepared.tables)
        wanted, route = self._planner.plan_route(prepared, ask, lake_state)
        if wanted.at_least and route.access_paths and route.access_paths[0].engine != "hot":
            await self.fleet.wait_for_change(
                CATCH_UP_SECONDS
            )  # a node may just be about to have it
            wanted, route = self._planner.plan_route(prepared, ask, self.fleet.lake_state)
        routed = time.perf_counter()
        result, cached = await self._get_result(prepared, ask, caller, route, deadline)
        done = time.perf_counter()
        ms = {
            "parse": to_milliseconds(parsed - began),
            "route": to_milliseconds(routed - parsed),
            "wait": to_milliseconds(done - routed),
            **({} if cached else result.rows.ms),
        }
        overdue = cached and self._freshness.is_overdue(result, ask)
        told = build_provenance(result, self.fleet, cached=cached, overdue=overdue, ms=ms)
        told["cost_usd"] = round(
            0.0 if cached else sum(result.rows.ms.values()) / 1000 * self.limits.dollars_per_second,
            10,
        )
        return Answer(result.rows, ask.format, told)

    async def _get_result(
        self,
        prepared: PreparedQuery,
        ask: QueryRequest,
        caller: Caller,
        route: Route,
        deadline: float,
    ) -> tuple[EngineResult, bool]:
        """The rows, from the answers that are kept or from an engine."""
        if prepared.clock is Clock.INSTANT or not prepared.tables:
            return await self._execute_with_retries(prepared, ask, caller, route, deadline), False
        # Whoever names a snapshot shares with nobody else: while an answer is made for those who
        # want the newest, there may come a newer one.
        question = (prepared.text, ask.dialect, ask.format, caller.policy, ask.snapshot)
        snapshots = (
            tuple(sorted(route.access_paths[0].snapshots.items())) if route.access_paths else None
        )
        try:
            return await self._result_cache.get_or_compute(
                question,
                snapshots,
                lambda: self._execute_with_retries(prepared, ask, caller, route, deadline),
                lambda result: self._freshness.is_fresh(result, ask),
                lambda result: self._freshness.is_acceptable(result, ask),
            )
        except TooLate:
            if time.perf_counter() >= deadline - 0.01:
                raise
            # Somebody with less time asked the same first: their deadline is not ours.
            return await self._execute_with_retries(prepared, ask, caller, route, deadline), False

    async def _execute_with_retries(
        self,
        prepared: PreparedQuery,
        ask: QueryRequest,
        caller: Caller,
        route: Route,
        deadline: float,
    ) -> EngineResult:
        """Ask along the route until somebody answers; of what comes again, only what is new."""
        failures: list[FailedAttempt] = []
        for left in reversed(range(MAX_ROUNDS)):
            route = await self._wait_for_node(prepared, ask, route, deadline)
            known = self.fleet.lake_state
            try:
                result = (
                    await self._execute_incrementally(prepared, ask, caller, deadline)
                    if left
                    else None
                )
                if result is None:
                    access_path, rows = await self._execute_first_available(
                        prepared, ask, route, deadline, failures, caller.name
                    )
                    result = EngineResult(
                        rows, access_path, tuple(failures), _count_scanned(access_path, route)
                    )
            except CopyMoved as error:
                if self.fleet.lake_state is known:
                    await self.fleet.wait_for_change(COPY_MOVED_SECONDS)
                _, route = self._planner.plan_route(prepared, ask, self.fleet.lake_state)
                if left == 1:  # copies that keep moving: the files stand still
                    failures.append(FailedAttempt("hot", error.cause))
                    cold = tuple(
                        access_path
                        for access_path in route.access_paths
                        if access_path.engine != "hot"
                    )
                    route = replace(route, access_paths=cold, is_node_catching_up=False)
                continue
            prepared.was_answered = True
            if (
                result.access_path.engine == "hot"
                and self._chance.random() < self.limits.verify_share
            ):
                self._verify_in_background(prepared, ask, result)
            return result
        raise all_engines_failed(failures)

    async def _wait_for_node(
        self, prepared: PreparedQuery, ask: QueryRequest, route: Route, deadline: float
    ) -> Route:
        """The route, once there is somebody to ask, and no node that had better be waited for.

        When all nodes are behind for a moment, every question of a dashboard would be answered
        from files at once, at many times the cost, and that would keep the nodes behind.
        """
        until = (time.perf_counter() + deadline) / 2
        while not route.access_paths or self._should_wait(route, route.access_paths[0]):
            left = until - time.perf_counter()
            if left <= 0:
                break
            await self.fleet.wait_for_change(min(left, CATCH_UP_SECONDS))
            _, route = self._planner.plan_route(prepared, ask, self.fleet.lake_state)
        return route

    def _should_wait(self, route: Route, access_path: AccessPath) -> bool:
        """Whether to wait for a node is better than this way: many at once, or far slower."""
        slow = access_path.engine != "direct" or self.fleet.are_direct_workers_busy
        return route.is_node_catching_up and access_path.engine != "hot" and slow

    async def _execute_incrementally(
        self, prepared: PreparedQuery, ask: QueryRequest, caller: Caller, deadline: float
    ) -> EngineResult | None:
        """The answer to a question that was answered before, from what is new since midnight."""
        where = (
            self._find_boundary(prepared, ask, self.fleet.lake_state)
            if prepared.was_answered
            else None
        )
        if where is None:
            return None
        # Half the time: whoever answers it whole needs some, should this fail.
        seconds = (deadline - time.perf_counter()) / 2
        budget = QueryBudget(self.limits.rows, self.limits.bytes, seconds, caller=caller.name)
        return await self._incremental.execute(prepared, ask, caller, where, budget)

    def _find_boundary(
        self, prepared: PreparedQuery, ask: QueryRequest, lake_state: LakeState
    ) -> incremental_results.Boundary | None:
        """Where a question is split when it comes again, if it is."""
        if not self.limits.cache_bytes or ask.snapshot is not None:
            return None
        if self.verifier.distrusted_tables(lake_state) & set(prepared.tables):
            return None
        nodes, now = self.fleet.available_engines().nodes, datetime.now(UTC)
        return incremental_results.find_boundary(
            prepared, lake_state, nodes, now, self.limits.split_rows
        )

    async def _execute_older_part(
        self, prepared: PreparedQuery, ask: QueryRequest, snapshot: int, deadline: float
    ) -> EngineResult:
        """The older part of a question, at exactly this snapshot of its table."""
        failures: list[FailedAttempt] = []
        _, route = self._planner.plan_route(prepared, ask, self.fleet.lake_state)
        access_paths = tuple(
            access_path
            for access_path in route.access_paths
            if snapshot in access_path.snapshots.values()
        )
        route = replace(route, access_paths=access_paths)
        access_path, rows = await self._execute_first_available(
            prepared, ask, route, deadline, failures
        )
        return EngineResult(rows, access_path, tuple(failures), _count_scanned(access_path, route))

    async def _execute_first_available(
        self,
        prepared: PreparedQuery,
        ask: QueryRequest,
        route: Route,
        deadline: float,
        failures: list[FailedAttempt],
        caller: str = "",
    ) -> tuple[AccessPath, EncodedRows]:
        """The first way of a route that gives an answer; those that do not are noted.

        Raises Moved, when what is held where must be looked at again.
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
                return access_path, await self._execute_on(
                    prepared, ask, access_path, deadline, last=last, caller=caller
                )
            except CopyMoved:
                raise
            except Untranslatable as error:
                unfaithful = error
                failures.append(FailedAttempt(access_path.engine, error.cause, "unfaithful"))
            except (EngineFailed, TimeoutError) as error:
                failures.append(to_failed_attempt(access_path, error))
                if should_give_up(failures):
                    raise all_engines_failed(failures) from error
            if time.perf_counter() >= deadline:
                raise deadline_passed(failures)
        if unfaithful is not None and all(each.kind == "unfaithful" for each in failures):
            if not access_paths or not self._can_others_answer(prepared, access_paths[0]):
                raise unfaithful
            raise Unavailable("The engine that could answer is away at the moment.")
        raise all_engines_failed(failures)

    def _can_others_answer(self, prepared: PreparedQuery, access_path: AccessPath) -> bool:
        """Whether an engine that is not asked now, as it is away, could answer the question."""
        for engine in self.fleet.configured_engines:
            with contextlib.suppress(Untranslatable):
                self.translate_for(prepared, replace(access_path, engine=engine, node=None))
                return True
        return False

    async def _execute_on(
        self,
        prepared: PreparedQuery,
        ask: QueryRequest,
        access_path: AccessPath,
        deadline: float,
        *,
        last: bool,
        caller: str,
    ) -> EncodedRows:
        """Ask one engine. Unless it is the last it has to begin in time for the next to be asked.

        What takes an engine too long is not begun on another: it would take that too long, too.
        """
        seconds = deadline - time.perf_counter()
        if seconds <= 0:
            raise TimeoutError
        sql, views = self.translate_for(prepared, access_path)
        patience = None if last else max(seconds / 2, min(seconds, 0.5))
        budget = QueryBudget(self.limits.rows, self.limits.bytes, seconds, patience, caller)
        return await self.fleet.execute(access_path, sql, views, ask.format, budget)

    def translate_for(
        self, prepared: Translatable, access_path: AccessPath
    ) -> tuple[str, Mapping[str, TableVersion]]:
        """The query in the words of an engine, and what its table names stand for."""
        return translate_query(prepared, access_path, self.fleet.lake_state, self.fleet.catalog)

    def _verify_in_background(
        self, prepared: PreparedQuery, ask: QueryRequest, result: EngineResult
    ) -> None:
        access_path = replace(result.access_path, engine="direct", node=None)
        sql, views = self.translate_for(prepared, access_path)
        budget = QueryBudget(self.limits.rows, self.limits.bytes, self.limits.seconds)
        self.verifier.verify(
            prepared.question, result.rows, access_path, sql, views, ask.format, budget
        )


def _count_scanned(access_path: AccessPath, route: Route) -> tuple[int, int]:
    """Files and bytes that were read of the lake."""
    return (0, 0) if access_path.engine == "hot" else (route.files, route.bytes)


def _result_bytes(question: Hashable, version: Hashable, result: EngineResult) -> int:
    """How much memory an answer takes that is kept, and what it is kept under."""
    told = sum(map(len, result.access_path.because)) + COLUMN_BYTES * len(result.rows.columns)
    return (
        len(result.rows.body)
        + told
        + estimate_key_bytes(question)
        + estimate_key_bytes(version)
        + RESULT_BYTES
    )
