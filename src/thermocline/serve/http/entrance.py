"""The one way to the router for every door: who asks too much waits, and every end is counted."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.errors import BadInput, NotFound, ThermoclineError
from thermocline.serve.failures import Busy, TooLate
from thermocline.serve.http.metrics import ENGINES, Metrics
from thermocline.serve.http.outgoing import Outgoing
from thermocline.serve.values import Answer, Caller, LakeState, QueryRequest

if TYPE_CHECKING:
    from sqlglot import exp

GRACE_SECONDS = 2.0
"""How much later than the deadline the router may still come back with an error of its own."""

_CALLERS = 10_000


class Router(Protocol):
    """What a door needs of the router."""

    async def answer(self, ask: QueryRequest, caller: Caller) -> Answer: ...
    async def answer_tree(self, tree: exp.Query, ask: QueryRequest, caller: Caller) -> Answer: ...
    async def explain(self, ask: QueryRequest, caller: Caller) -> dict[str, Any]: ...
    def lake_state(self, caller: Caller | None = None) -> LakeState: ...
    def nodes(self, caller: Caller | None = None) -> list[dict[str, Any]]: ...
    def node_memory(self) -> Mapping[str, int]: ...
    def is_ready(self) -> bool: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


class Turnstile:
    """Lets each caller have so many questions running, and send so many a second."""

    def __init__(self, concurrency: int, rate: int | None = None) -> None:
        self._concurrency = concurrency
        self._rate = rate
        self._running: dict[str, int] = {}
        self._budgets: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self.running = 0

    def enter(self, name: str) -> None:
        """Let a caller in. Raises Busy; whoever got in leaves by `leave`."""
        running = self._running.get(name, 0)
        if running >= self._concurrency:
            raise Busy(
                f"{running} of your queries are running, which is as many as are allowed.",
                "Wait for one to end.",
                retry_after=1,
            )
        if self._rate is not None:
            self._spend(name, self._rate, time.monotonic())
        self._running[name] = running + 1
        self.running += 1

    def leave(self, name: str) -> None:
        """A caller's question came to its end."""
        self.running -= 1
        self._running[name] -= 1
        if not self._running[name]:
            del self._running[name]

    def _spend(self, name: str, rate: int, now: float) -> None:
        """Take one from a budget that fills by `rate` a second, up to a second's worth."""
        left, since = self._budgets.get(name, (float(rate), now))
        left = min(float(rate), left + (now - since) * rate)
        if left < 1:
            raise Busy(
                f"You sent more than {rate} queries a second.",
                "Ask less often.",
                retry_after=(1 - left) / rate,
            )
        self._budgets[name] = (left - 1, now)
        self._budgets.move_to_end(name)
        if len(self._budgets) > _CALLERS:
            self._budgets.popitem(last=False)


class Entrance:
    """The router as every door sees it: limited by caller and by time, and measured."""

    def __init__(
        self,
        router: Router,
        metrics: Metrics,
        turnstile: Turnstile,
        max_seconds: float,
        outgoing: Outgoing,
    ) -> None:
        self._router = router
        self._metrics = metrics
        self._turnstile = turnstile
        self._max_seconds = max_seconds
        self.outgoing = outgoing
        self.lake_state = router.lake_state
        self.nodes = router.nodes
        self.node_memory = router.node_memory
        self.is_ready = router.is_ready

    async def answer(self, ask: QueryRequest, caller: Caller) -> Answer:
        """The router's answer. Raises what it raises, Busy and TooLate."""
        return await self._passed(ask, caller, lambda: self._router.answer(ask, caller))

    async def answer_tree(self, tree: exp.Query, ask: QueryRequest, caller: Caller) -> Answer:
        """The same for a query of a door's own making."""
        return await self._passed(ask, caller, lambda: self._router.answer_tree(tree, ask, caller))

    async def explain(self, ask: QueryRequest, caller: Caller) -> dict[str, Any]:
        """The router's explanation. Raises what it raises, and Busy."""
        self._turnstile.enter(caller.name)
        try:
            return await self._router.explain(ask, caller)
        finally:
            self._turnstile.leave(caller.name)

    def count(self) -> None:
        """Tell the metrics how much is being worked on now."""
        self._metrics.running(self._turnstile.running)

    async def _passed(
        self, ask: QueryRequest, caller: Caller, work: Callable[[], Awaitable[Answer]]
    ) -> Answer:
        began = time.perf_counter()
        engine, outcome = "none", "failed"
        try:
            self._turnstile.enter(caller.name)
            try:
                async with asyncio.timeout(self._deadline(ask)):
                    answer = await work()
            finally:
                self._turnstile.leave(caller.name)
            engine = str(answer.provenance.get("engine", "none"))
            failed = [str(each.get("from")) for each in answer.provenance.get("fallback", ())]
            outcome = "fell_back" if failed else "answered"
            self._blame(failed)
            if answer.provenance.get("overdue"):
                self._metrics.overdue()
        except TimeoutError:
            outcome = "late"
            raise TooLate(
                "There was no answer in time.", "Ask for less, or give it a longer timeout."
            ) from None
        except asyncio.CancelledError:
            outcome = "left"
            raise
        except ThermoclineError as error:
            outcome = _outcome(error)
            self._blame(str(each).partition(":")[0] for each in error.details.get("tried", ()))
            raise
        finally:
            self._metrics.finished(engine, outcome, time.perf_counter() - began)
        return answer

    def _blame(self, names: Iterable[str]) -> None:
        """Count the failures of those who were asked before somebody answered, or nobody did."""
        for name in names:
            bare = name.partition("-")[0]
            engine = name if name in ENGINES else bare if bare in ENGINES else "hot"
            self._metrics.failed(engine)

    def _deadline(self, ask: QueryRequest) -> float:
        wanted = self._max_seconds if ask.timeout is None else ask.timeout
        return min(wanted, self._max_seconds) + GRACE_SECONDS


def _outcome(error: ThermoclineError) -> str:
    if isinstance(error, TooLate):
        return "late"
    return "refused" if isinstance(error, BadInput | NotFound | Busy) else "failed"
