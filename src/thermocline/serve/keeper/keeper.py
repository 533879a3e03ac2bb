"""The keeper: looks at the catalog again and again, and tells the nodes and the router."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from thermocline import telemetry
from thermocline.errors import ThermoclineError, Transient
from thermocline.serve.keeper.asked import Asked
from thermocline.serve.keeper.feeding import Feeder
from thermocline.serve.keeper.goals import Room, goals
from thermocline.serve.keeper.heads import Heads, Sight
from thermocline.serve.keeper.policy import Policy
from thermocline.serve.keeper.views import Views
from thermocline.serve.terms import Head, Lookout

LOOK_SECONDS = 0.5
PLAN_SECONDS = 5.0
"""What was asked, and what day it is, changes the plan at most this much later."""
GRACE_SECONDS = 5.0
"""How long a node that is gone keeps its place."""
LONGEST_WAIT = 30.0


def utc_now() -> datetime:
    """What time it is."""
    return datetime.now(UTC)


class Keeper:
    """Knows the lake at the last look, and keeps every node at it."""

    def __init__(
        self, heads: Heads, policy: Policy, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._heads = heads
        self._policy = policy
        self._clock = clock
        self._asked = Asked()
        self._looking = threading.Lock()
        self._began = 0.0
        self._changed = threading.Condition()
        # Counted on from the clock: a keeper that is started anew is ahead of the one before it.
        self._epoch = int(time.time() * 1000)
        self._look = 0
        self._looked_at = datetime.fromtimestamp(0, UTC)
        self._sights: dict[str, Sight] = {}
        self._seen: dict[str, Head] = {}
        self._views = Views()
        self._feeders: dict[str, Feeder] = {}
        self._gone: dict[str, float] = {}
        self._planned = 0.0

    def verbs(self) -> dict[str, Any]:
        """What the router may ask."""
        return {
            "lookout": self._answer_lookout,
            "look": self._answer_look,
            "nodes": self._take_nodes,
            "asked": self._take_asked,
            "rebuild": self._answer_rebuild,
        }

    def run(self) -> None:
        """Look for ever. A catalog that cannot be reached is tried again and again."""
        failing = False
        while True:
            began = time.monotonic()
            try:
                self.look()
                failing = False
            except ThermoclineError as error:
                if not failing:
                    telemetry.log("keeper", "catalog", level="WARNING", error=str(error))
                failing = True
            time.sleep(max(0.0, LOOK_SECONDS - (time.monotonic() - began)))

    def look(self) -> None:
        """Look at the catalog, not earlier than now. Who asks while another looks, shares."""
        asked = time.monotonic()
        with self._looking:
            if self._began > asked:
                return
            self._began, at = time.monotonic(), self._clock()
            sights = self._heads.look()
            with self._changed:
                self._looked_at = at
                moved = sights.keys() != self._sights.keys() or any(
                    sight is not self._sights[table] for table, sight in sights.items()
                )
                if moved or self._look == 0:
                    self._sights = sights
                    self._seen = {table: sight.head for table, sight in sights.items()}
                    self._look += 1
                    self._tell()
                if moved or time.monotonic() - self._planned > PLAN_SECONDS:
                    self._plan()

    def lookout(self) -> Lookout:
        """What is known now."""
        with self._changed:
            held = {name: feeder.held for name, feeder in self._feeders.items() if feeder.up}
            return Lookout(self._epoch, self._looked_at, self._seen, held)

    def told(self) -> None:
        """A node came, went, or holds something else."""
        with self._changed:
            self._tell()
            self._plan()

    def _tell(self) -> None:
        self._epoch += 1
        self._changed.notify_all()

    def _plan(self) -> None:
        """Give every node its goal. Called with `_changed` held."""
        now = time.monotonic()
        self._planned = now
        self._gone = {n: at for n, at in self._gone.items() if now - at < GRACE_SECONDS}
        nodes = {name: Room(feeder.held, feeder.room) for name, feeder in self._feeders.items()}
        places = {*self._feeders, *self._gone}
        found = goals(
            self._look, self._sights, nodes, places, self._asked, self._policy, self._clock()
        )
        for name, goal in found.items():
            self._feeders[name].aim(goal)

    # What the router asks -------------------------------------------------------------------------

    def _answer_lookout(self, request: Mapping[str, Any], _: Any) -> dict[str, Any]:
        """What changed since the view that the router has, as soon as something did."""
        ours = request.get("sender") == self._views.sender
        after = int(request.get("after", 0)) if ours else 0
        wait = 0.0 if "to" in request else float(request.get("wait", 0.0))
        until = time.monotonic() + min(wait, LONGEST_WAIT)
        with self._changed:
            while (self._epoch <= after or not self._look) and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
            if not self._look:
                raise Transient("The catalog has not been seen yet.", "Ask again.")
        return {"lookout": self._views.page(request, self.lookout())}

    def _answer_look(self, request: Mapping[str, Any], _: Any) -> dict[str, Any]:
        self.look()
        return {"lookout": self._views.page(request, self.lookout())}

    def _take_asked(self, request: Mapping[str, Any], _: Any) -> None:
        with self._changed:
            for tables, times in request.get("questions", ()):
                self._asked.note([t for t in tables if t in self._sights], int(times))

    def _answer_rebuild(self, request: Mapping[str, Any], _: Any) -> dict[str, Any]:
        """Copies of these tables are out of sight from the epoch that is told; new ones come."""
        with self._changed:
            for feeder in self._feeders.values():
                feeder.distrust([str(table) for table in request.get("tables", ())])
            self._tell()
            self._plan()
            return {"epoch": self._epoch}

    def _take_nodes(self, request: Mapping[str, Any], _: Any) -> None:
        named = {str(node["name"]): node for node in request["nodes"]}
        with self._changed:
            for name in self._feeders.keys() - named.keys():
                self._feeders.pop(name).stop()
                self._gone[name] = time.monotonic()
            for name, node in named.items():
                self._gone.pop(name, None)
                feeder = self._feeders.get(name)
                if feeder is None or not feeder.is_at(node["address"], node["token"]):
                    if feeder is not None:
                        feeder.stop()
                    self._feeders[name] = Feeder(name, node["address"], node["token"], self.told)
            self._tell()
            self._plan()
