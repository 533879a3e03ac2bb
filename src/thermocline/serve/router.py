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

from thermocline.serve import parts
from thermocline.serve.attempts import Failure, failed, failure_of, have_spent_enough, late
from thermocline.serve.failures import TooLate, Unavailable
from thermocline.serve.fleet.fleet import Fleet
from thermocline.serve.fleet.messages import (
    Allowance,
    EngineFailed,
    Moved,
    Reading,
)
from thermocline.serve.freshness import Freshness
from thermocline.serve.phrasing import Phrasable, phrased
from thermocline.serve.prepare import Prepared, Preparing
from thermocline.serve.provenance import Given, milliseconds, provenance
from thermocline.serve.question.clock import Clock
from thermocline.serve.readers import Readers
from thermocline.serve.results import Results, key_bytes
from thermocline.serve.route import Route, Way
from thermocline.serve.routed import in_order
from thermocline.serve.routing import Routing
from thermocline.serve.terms import Answer, Ask, Caller, Lookout, Rows
from thermocline.serve.verify import Verifier
from thermocline.sql.guard import Bounds
from thermocline.sql.translate import Unfaithful

if TYPE_CHECKING:
    from sqlglot import exp

LONG_TEXT = 2_000
"""From how many characters on a text is read beside the loop, so that nobody waits for it."""
ROUNDS = 3
ANSWER_BYTES, COLUMN_BYTES = 1_000, 300
"""About how much memory an answer takes beside its rows, and each of its columns."""
CATCH_UP = 0.3
MOVED_SECONDS = 0.1


@dataclass(frozen=True)
class Limits:
    """What a question may cost, and how old an answer may be."""

    rows: int = 100_000
    bytes: int = 64 << 20
    seconds: float = 30.0
    tolerance: float = 2.0
    overdue: float = 30.0
    """For how long an answer is better than none, where the newest is not to be had."""
    cache_bytes: int = 64 << 20
    verify_share: float = 0.01
    split_rows: int = parts.WORTH_ROWS
    dollars_per_second: float = 0.05 / 3600
    bounds: Bounds | None = None


class Router:
    """Answers questions from whichever engine is right for them."""

    def __init__(
        self, fleet: Fleet, limits: Limits | None = None, readers: Readers | None = None
    ) -> None:
        self.fleet = fleet
        self.readers = readers or Readers()
        self.limits = limits or Limits()
        self._preparing = Preparing(self.limits.bounds)
        self._results = Results[Given](self.limits.cache_bytes, _kept_bytes)
        self._freshness = Freshness(fleet, self.limits.tolerance, self.limits.overdue)
        self.verifier = Verifier(fleet, self._results.clear)
        self._routing = Routing(fleet, self.readers, self._freshness, self.verifier)
        self._parts = parts.Parts(fleet, self._results, self._older_part, self.question_for)
        self._chance = random.Random()  # noqa: S311  (which answers are looked at twice)

    async def start(self) -> None:
        """Start the fleet."""
        await self.fleet.start()

    async def stop(self) -> None:
        """End everything."""
        await self.verifier.stop()
        await self.fleet.stop()

    def lookout(self, caller: Caller | None = None) -> Lookout:
        """What is known of the lake: all of it, or what a caller may know."""
        whole = self.fleet.lookout
        return whole if caller is None else self.readers.seen(whole, caller)

    def ready(self) -> bool:
        """Whether questions can be answered: the lake is known, and somebody can read it."""
        engines = self.fleet.engines()
        return self.fleet.lookout.epoch > 0 and (engines.direct or bool(engines.cold))

    def nodes(self, caller: Caller | None = None) -> list[dict[str, Any]]:
        """The hot nodes, and what each holds that a caller may know of."""
        held = self.lookout(caller).held
        return [
            {
                "name": node.name,
                "up": node.up,
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

    async def answer(self, ask: Ask, caller: Caller) -> Answer:
        """The answer to a question. Raises ThermoclineError; cancelling the task cancels it."""
        began = time.perf_counter()
        prepared = await self._prepared(ask)
        return await self._answered(prepared, ask, caller, began)

    async def answer_tree(self, tree: exp.Query, ask: Ask, caller: Caller) -> Answer:
        """The answer to a query of our own making, without stored tables, in DuckDB's dialect."""
        from thermocline.sql.guard import Question

        now = datetime.now(UTC)
        question = Question(tree, "duckdb", {})
        prepared = Prepared(question, tree.sql("duckdb"), Clock.INSTANT, now.date(), now)
        return await self._answered(prepared, ask, caller, time.perf_counter())

    async def explain(self, ask: Ask, caller: Caller) -> dict[str, Any]:
        """Where a question would go and why, without asking anybody."""
        prepared = await self._prepared(ask)
        lookout = await self._routing.fresh(prepared, ask, caller)
        prepared.check_names(lookout.heads)
        _, route = self._routing.route(prepared, ask, lookout)
        spans = prepared.spans(lookout.heads)
        where = self._boundary(prepared, ask, lookout)
        return {
            "ways": [
                {"engine": way.engine, "node": way.node, "because": list(way.because)}
                for way in route.ways
            ],
            "tables": {
                table: {
                    "snapshot": str(lookout.heads[table].snapshot),
                    "from": span.start.isoformat() if span.start else None,
                    "to": span.end.isoformat() if span.end else None,
                }
                for table, span in spans.items()
            },
            "scan": {"files": route.files, "bytes": route.bytes},
            # Asked again, only what is newer is counted anew.
            "split_at": where.at.isoformat() if where and parts.parted(prepared, where) else None,
        }

    async def _prepared(self, ask: Ask) -> Prepared:
        now, heads = datetime.now(UTC), self.fleet.lookout.heads
        if len(ask.sql) > LONG_TEXT:
            return await asyncio.to_thread(self._preparing, ask, heads, now)
        return self._preparing(ask, heads, now)

    async def _answered(self, prepared: Prepared, ask: Ask, caller: Caller, began: float) -> Answer:
        seconds = min(ask.timeout or self.limits.seconds, self.limits.seconds)
        deadline = began + seconds
        parsed = time.perf_counter()
        lookout = await self._routing.fresh(prepared, ask, caller)
        prepared.check_names(lookout.heads)
        self.fleet.asked(prepared.tables)
        wanted, route = self._routing.route(prepared, ask, lookout)
        if wanted.at_least and route.ways and route.ways[0].engine != "hot":
            await self.fleet.change(CATCH_UP)  # a node may just be about to have it
            wanted, route = self._routing.route(prepared, ask, self.fleet.lookout)
        routed = time.perf_counter()
        given, cached = await self._given(prepared, ask, caller, route, deadline)
        done = time.perf_counter()
        ms = {
            "parse": milliseconds(parsed - began),
            "route": milliseconds(routed - parsed),
            "wait": milliseconds(done - routed),
            **({} if cached else given.rows.ms),
        }
        overdue = cached and self._freshness.is_overdue(given, ask)
        told = provenance(given, self.fleet, cached=cached, overdue=overdue, ms=ms)
        told["cost_usd"] = round(
            0.0 if cached else sum(given.rows.ms.values()) / 1000 * self.limits.dollars_per_second,
            10,
        )
        return Answer(given.rows, ask.format, told)

    async def _given(
        self, prepared: Prepared, ask: Ask, caller: Caller, route: Route, deadline: float
    ) -> tuple[Given, bool]:
        """The rows, from the answers that are kept or from an engine."""
        if prepared.clock is Clock.INSTANT or not prepared.tables:
            return await self._tried(prepared, ask, caller, route, deadline), False
        # Whoever names a snapshot shares with nobody else: while an answer is made for those who
        # want the newest, there may come a newer one.
        question = (prepared.text, ask.dialect, ask.format, caller.policy, ask.snapshot)
        snapshots = tuple(sorted(route.ways[0].snapshots.items())) if route.ways else None
        try:
            return await self._results.of(
                question,
                snapshots,
                lambda: self._tried(prepared, ask, caller, route, deadline),
                lambda given: self._freshness.will_do(given, ask),
                lambda given: self._freshness.will_do_at_worst(given, ask),
            )
        except TooLate:
            if time.perf_counter() >= deadline - 0.01:
                raise
            # Somebody with less time asked the same first: their deadline is not ours.
            return await self._tried(prepared, ask, caller, route, deadline), False

    async def _tried(
        self, prepared: Prepared, ask: Ask, caller: Caller, route: Route, deadline: float
    ) -> Given:
        """Ask along the route until somebody answers; of what comes again, only what is new."""
        failures: list[Failure] = []
        for left in reversed(range(ROUNDS)):
            route = await self._awaited(prepared, ask, route, deadline)
            known = self.fleet.lookout
            try:
                given = await self._in_parts(prepared, ask, caller, deadline) if left else None
                if given is None:
                    way, rows = await self._first(
                        prepared, ask, route, deadline, failures, caller.name
                    )
                    given = Given(rows, way, tuple(failures), _scanned(way, route))
            except Moved as error:
                if self.fleet.lookout is known:
                    await self.fleet.change(MOVED_SECONDS)
                _, route = self._routing.route(prepared, ask, self.fleet.lookout)
                if left == 1:  # copies that keep moving: the files stand still
                    failures.append(Failure("hot", error.cause))
                    cold = tuple(way for way in route.ways if way.engine != "hot")
                    route = replace(route, ways=cold, soon=False)
                continue
            prepared.repeated = True
            if given.way.engine == "hot" and self._chance.random() < self.limits.verify_share:
                self._second_opinion(prepared, ask, given)
            return given
        raise failed(failures)

    async def _awaited(self, prepared: Prepared, ask: Ask, route: Route, deadline: float) -> Route:
        """The route, once there is somebody to ask, and no node that had better be waited for.

        When all nodes are behind for a moment, every question of a dashboard would be answered
        from files at once, at many times the cost, and that would keep the nodes behind.
        """
        until = (time.perf_counter() + deadline) / 2
        while not route.ways or self._rather_waits(route, route.ways[0]):
            left = until - time.perf_counter()
            if left <= 0:
                break
            await self.fleet.change(min(left, CATCH_UP))
            _, route = self._routing.route(prepared, ask, self.fleet.lookout)
        return route

    def _rather_waits(self, route: Route, way: Way) -> bool:
        """Whether to wait for a node is better than this way: many at once, or far slower."""
        slow = way.engine != "direct" or self.fleet.files_are_read
        return route.soon and way.engine != "hot" and slow

    async def _in_parts(
        self, prepared: Prepared, ask: Ask, caller: Caller, deadline: float
    ) -> Given | None:
        """The answer to a question that was answered before, from what is new since midnight."""
        where = self._boundary(prepared, ask, self.fleet.lookout) if prepared.repeated else None
        if where is None:
            return None
        # Half the time: whoever answers it whole needs some, should this fail.
        seconds = (deadline - time.perf_counter()) / 2
        allowed = Allowance(self.limits.rows, self.limits.bytes, seconds, caller=caller.name)
        return await self._parts.given(prepared, ask, caller, where, allowed)

    def _boundary(self, prepared: Prepared, ask: Ask, lookout: Lookout) -> parts.Boundary | None:
        """Where a question is split when it comes again, if it is."""
        if not self.limits.cache_bytes or ask.snapshot is not None:
            return None
        if self.verifier.distrusted(lookout) & set(prepared.tables):
            return None
        nodes, now = self.fleet.engines().nodes, datetime.now(UTC)
        return parts.boundary(prepared, lookout, nodes, now, self.limits.split_rows)

    async def _older_part(
        self, prepared: Prepared, ask: Ask, snapshot: int, deadline: float
    ) -> Given:
        """The older part of a question, at exactly this snapshot of its table."""
        failures: list[Failure] = []
        _, route = self._routing.route(prepared, ask, self.fleet.lookout)
        ways = tuple(way for way in route.ways if snapshot in way.snapshots.values())
        route = replace(route, ways=ways)
        way, rows = await self._first(prepared, ask, route, deadline, failures)
        return Given(rows, way, tuple(failures), _scanned(way, route))

    async def _first(
        self,
        prepared: Prepared,
        ask: Ask,
        route: Route,
        deadline: float,
        failures: list[Failure],
        caller: str = "",
    ) -> tuple[Way, Rows]:
        """The first way of a route that gives an answer; those that do not are noted.

        Raises Moved, when what is held where must be looked at again.
        """
        unfaithful: Unfaithful | None = None
        ways = in_order(route.ways, self.fleet.lookout.heads, self.fleet.busy)
        for way in ways:
            if way is not ways[0] and ways[0].engine == "hot" and self._rather_waits(route, way):
                raise Moved(failures[-1].cause)
            try:
                last = way is ways[-1]
                return way, await self._asked(
                    prepared, ask, way, deadline, last=last, caller=caller
                )
            except Moved:
                raise
            except Unfaithful as error:
                unfaithful = error
                failures.append(Failure(way.engine, error.cause, "unfaithful"))
            except (EngineFailed, TimeoutError) as error:
                failures.append(failure_of(way, error))
                if have_spent_enough(failures):
                    raise failed(failures) from error
            if time.perf_counter() >= deadline:
                raise late(failures)
        if unfaithful is not None and all(each.kind == "unfaithful" for each in failures):
            if not ways or not self._others_could(prepared, ways[0]):
                raise unfaithful
            raise Unavailable("The engine that could answer is away at the moment.")
        raise failed(failures)

    def _others_could(self, prepared: Prepared, way: Way) -> bool:
        """Whether an engine that is not asked now, as it is away, could answer the question."""
        for engine in self.fleet.configured:
            with contextlib.suppress(Unfaithful):
                self.question_for(prepared, replace(way, engine=engine, node=None))
                return True
        return False

    async def _asked(
        self, prepared: Prepared, ask: Ask, way: Way, deadline: float, *, last: bool, caller: str
    ) -> Rows:
        """Ask one engine. Unless it is the last it has to begin in time for the next to be asked.

        What takes an engine too long is not begun on another: it would take that too long, too.
        """
        seconds = deadline - time.perf_counter()
        if seconds <= 0:
            raise TimeoutError
        sql, views = self.question_for(prepared, way)
        patience = None if last else max(seconds / 2, min(seconds, 0.5))
        allowed = Allowance(self.limits.rows, self.limits.bytes, seconds, patience, caller)
        return await self.fleet.ask(way, sql, views, ask.format, allowed)

    def question_for(self, prepared: Phrasable, way: Way) -> tuple[str, Mapping[str, Reading]]:
        """The query in the words of an engine, and what its table names stand for."""
        return phrased(prepared, way, self.fleet.lookout, self.fleet.catalog)

    def _second_opinion(self, prepared: Prepared, ask: Ask, given: Given) -> None:
        way = replace(given.way, engine="direct", node=None)
        sql, views = self.question_for(prepared, way)
        allowed = Allowance(self.limits.rows, self.limits.bytes, self.limits.seconds)
        self.verifier.look(prepared.question, given.rows, way, sql, views, ask.format, allowed)


def _scanned(way: Way, route: Route) -> tuple[int, int]:
    """Files and bytes that were read of the lake."""
    return (0, 0) if way.engine == "hot" else (route.files, route.bytes)


def _kept_bytes(question: Hashable, version: Hashable, given: Given) -> int:
    """How much memory an answer takes that is kept, and what it is kept under."""
    told = sum(map(len, given.way.because)) + COLUMN_BYTES * len(given.rows.columns)
    return len(given.rows.body) + told + key_bytes(question) + key_bytes(version) + ANSWER_BYTES
