"""Admission to the router for all protocols: per-caller limits, deadlines, recorded outcomes."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.errors import BadInput, NotFound, ThermoclineError
from thermocline.serve.failures import Busy, TooLate
from thermocline.serve.http.metrics import ENGINES, Metrics
from thermocline.serve.http.send_budget import SendBudget
from thermocline.serve.values import Answer, Caller, LakeState, QueryRequest

if TYPE_CHECKING:
    from sqlglot import exp

GRACE_SECONDS = 2.0
"""How long after the deadline the router may still return its own error."""

_MAX_CALLERS = 10_000


class QueryRouter(Protocol):
    """The router, as the protocols use it."""

    async def answer(self, request: QueryRequest, caller: Caller) -> Answer: ...
    async def answer_tree(
        self, tree: exp.Query, request: QueryRequest, caller: Caller
    ) -> Answer: ...
    async def explain(self, request: QueryRequest, caller: Caller) -> dict[str, Any]: ...
    def lake_state(self, caller: Caller | None = None) -> LakeState: ...
    def nodes(self, caller: Caller | None = None) -> list[dict[str, Any]]: ...
    def node_memory(self) -> Mapping[str, int]: ...
    def is_ready(self) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class CallerLimiter:
    """Limits how many queries each caller has running, and how many it sends per second."""

    def __init__(self, concurrency: int, rate: int | None = None) -> None:
        self._concurrency = concurrency
        self._rate = rate
        self._running: dict[str, int] = {}
        self._budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.running = 0

    def acquire(self, name: str) -> None:
        """Admit a query of a caller, until `release`. Raises Busy."""
        running = self._running.get(name, 0)
        if running >= self._concurrency:
            raise Busy(
                f"{running} of your queries are running, the maximum for a caller.",
                "Wait for one to end.",
                retry_after=1,
            )
        if self._rate is not None:
            self._spend_rate_budget(name, self._rate, time.monotonic())
        self._running[name] = running + 1
        self.running += 1

    def release(self, name: str) -> None:
        """Record the end of a caller's query."""
        self.running -= 1
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]

    def _spend_rate_budget(self, name: str, rate: int, now: float) -> None:
        """Take one token from a bucket that refills at `rate` per second, up to `rate` tokens."""
        left, since = self._budgets.get(name, (float(rate), now))
        left = min(float(rate), left + (now - since) * rate)
        if left < 1:
            raise Busy(
                f"You sent more than {rate} queries a second.",
                "Send fewer queries per second.",
                retry_after=(1 - left) / rate,
            )
        self._budgets[name] = (left - 1, now)
        self._budgets.move_to_end(name)
        if len(self._budgets) > _MAX_CALLERS:
            self._budgets.popitem(last=False)


class LimitedRouter:
    """The router with per-caller limits, deadlines and metrics."""

    def __init__(
        self,
        router: QueryRouter,
        metrics: Metrics,
        limiter: CallerLimiter,
        max_seconds: float,
        send_budget: SendBudget,
    ) -> None:
        self._router = router
        self._metrics = metrics
        self._limiter = limiter
        self._max_seconds = max_seconds
        self.send_budget = send_budget
        self.lake_state = router.lake_state
        self.nodes = router.nodes
        self.node_memory = router.node_memory
        self.is_ready = router.is_ready

    async def answer(self, request: QueryRequest, caller: Caller) -> Answer:
        """Answer a query. Raises the router's errors, Busy and TooLate."""
        return await self._execute(request, caller, lambda: self._router.answer(request, caller))

    async def answer_tree(self, tree: exp.Query, request: QueryRequest, caller: Caller) -> Answer:
        """Answer a query that a protocol built itself."""
        return await self._execute(
            request, caller, lambda: self._router.answer_tree(tree, request, caller)
        )

    async def explain(self, request: QueryRequest, caller: Caller) -> dict[str, Any]:
        """Explain a query. Raises the router's errors and Busy."""
        self._limiter.acquire(caller.name)
        try:
            return await self._router.explain(request, caller)
        finally:
            self._limiter.release(caller.name)

    def report_running(self) -> None:
        """Set the metric of running queries."""
        self._metrics.set_running(self._limiter.running)

    async def _execute(
        self, request: QueryRequest, caller: Caller, work: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        began = time.perf_counter()
        engine, outcome = "none", "failed"
        try:
            self._limiter.acquire(caller.name)
            try:
                async with asyncio.timeout(self._allowed_seconds(request)):
                    answer = await work()
            finally:
                self._limiter.release(caller.name)
            engine = str(answer.provenance.get("engine", "none"))
            failed = [str(each.get("from")) for each in answer.provenance.get("fallback", ())]
            outcome = "fell_back" if failed else "answered"
            self._record_failures(failed)
            if answer.provenance.get("overdue"):
                self._metrics.record_overdue()
        except TimeoutError:
            outcome = "late"
            raise TooLate(
                "There was no answer in time.", "Read less data, or set a longer timeout."
            ) from None
        except asyncio.CancelledError:
            outcome = "left"
            raise
        except ThermoclineError as error:
            outcome = _classify_error(error)
            self._record_failures(
                str(each).partition(":")[0] for each in error.details.get("tried", ())
            )
            raise
        finally:
            self._metrics.record_query(engine, outcome, time.perf_counter() - began)
        return answer

    def _record_failures(self, names: Iterable[str]) -> None:
        """Count a failure for each engine that was tried and did not answer."""
        for name in names:
            bare = name.partition("-")[0]
            engine = name if name in ENGINES else bare if bare in ENGINES else "hot"
            self._metrics.record_engine_failure(engine)

    def _allowed_seconds(self, request: QueryRequest) -> float:
        seconds = self._max_seconds if request.timeout is None else request.timeout
        return min(seconds, self._max_seconds) + GRACE_SECONDS


def _classify_error(error: ThermoclineError) -> str:
    if isinstance(error, TooLate):
        return "late"
    return "refused" if isinstance(error, BadInput | NotFound | Busy) else "failed"
