"""The replicator: polls the catalog, updates the nodes, and reports the state to the router."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from thermocline import telemetry
from thermocline.errors import ThermoclineError, Transient
from thermocline.serve.replicator.catalog_poller import CatalogPoller, PolledTable
from thermocline.serve.replicator.desired_state import NodeCapacity, plan_desired_states
from thermocline.serve.replicator.hot_policy import Policy
from thermocline.serve.replicator.node_sync import NodeSync
from thermocline.serve.replicator.query_log import QueryLog
from thermocline.serve.replicator.state_pages import StatePages
from thermocline.serve.values import LakeState, TableHead

POLL_SECONDS = 0.5
PLAN_SECONDS = 5.0
"""The interval at which the query log and the date change the plan."""
GRACE_SECONDS = 5.0
"""How long a node that is down keeps its place."""
MAX_WAIT_SECONDS = 30.0


def utc_now() -> datetime:
    """Return the current time."""
    return datetime.now(UTC)


class Replicator:
    """Polls the catalog and keeps every node at the last poll."""

    def __init__(
        self, poller: CatalogPoller, policy: Policy, clock: Callable[[], datetime] = utc_now
    ) -> None:
        self._poller = poller
        self._policy = policy
        self._clock = clock
        self._query_log = QueryLog()
        self._poll_lock = threading.Lock()
        self._poll_started_at = 0.0
        self._changed = threading.Condition()
        # Starts at the clock: a restarted replicator is ahead of the one before it.
        self._epoch = int(time.time() * 1000)
        self._poll_number = 0
        self._polled_at = datetime.fromtimestamp(0, UTC)
        self._tables: dict[str, PolledTable] = {}
        self._table_heads: dict[str, TableHead] = {}
        self._pages = StatePages()
        self._nodes: dict[str, NodeSync] = {}
        self._left_at: dict[str, float] = {}
        self._planned = 0.0

    def verbs(self) -> dict[str, Any]:
        """Return the requests that the router may send."""
        return {
            "state": self._answer_state,
            "poll": self._answer_poll,
            "nodes": self._set_nodes,
            "record_queries": self._record_queries,
            "rebuild": self._rebuild_copies,
        }

    def run(self) -> None:
        """Poll forever. Retry while the catalog cannot be reached."""
        failing = False
        while True:
            started_at = time.monotonic()
            try:
                self.poll()
                failing = False
            except ThermoclineError as error:
                if not failing:
                    telemetry.log("replicator", "catalog", level="WARNING", error=str(error))
                failing = True
            time.sleep(max(0.0, POLL_SECONDS - (time.monotonic() - started_at)))

    def poll(self) -> None:
        """Poll the catalog, not earlier than now. Concurrent calls share one poll."""
        requested_at = time.monotonic()
        with self._poll_lock:
            if self._poll_started_at > requested_at:
                return
            self._poll_started_at, at = time.monotonic(), self._clock()
            tables = self._poller.poll()
            with self._changed:
                self._polled_at = at
                has_changed = tables.keys() != self._tables.keys() or any(
                    table_state is not self._tables[table] for table, table_state in tables.items()
                )
                if has_changed or self._poll_number == 0:
                    self._tables = tables
                    self._table_heads = {
                        table: table_state.head for table, table_state in tables.items()
                    }
                    self._poll_number += 1
                    self._publish()
                if has_changed or time.monotonic() - self._planned > PLAN_SECONDS:
                    self._update_desired_states()

    def lake_state(self) -> LakeState:
        """Return the current state."""
        with self._changed:
            copies_by_node = {
                name: node_sync.hot_copies
                for name, node_sync in self._nodes.items()
                if node_sync.is_up
            }
            return LakeState(self._epoch, self._polled_at, self._table_heads, copies_by_node)

    def node_changed(self) -> None:
        """Handle a node that connected, disconnected, or holds other copies."""
        with self._changed:
            self._publish()
            self._update_desired_states()

    def _publish(self) -> None:
        self._epoch += 1
        self._changed.notify_all()

    def _update_desired_states(self) -> None:
        """Set every node's desired state. The caller holds `_changed`."""
        now = time.monotonic()
        self._planned = now
        self._left_at = {n: at for n, at in self._left_at.items() if now - at < GRACE_SECONDS}
        nodes = {
            name: NodeCapacity(node_sync.hot_copies, node_sync.capacity)
            for name, node_sync in self._nodes.items()
        }
        places = {*self._nodes, *self._left_at}
        found = plan_desired_states(
            self._poll_number,
            self._tables,
            nodes,
            places,
            self._query_log,
            self._policy,
            self._clock(),
        )
        for name, desired_state in found.items():
            self._nodes[name].set_desired_state(desired_state)

    # Requests of the router -----------------------------------------------------------------------

    def _answer_state(self, request: Mapping[str, Any], _: Any) -> dict[str, Any]:
        """Return the changes since the router's state, as soon as there are any."""
        ours = request.get("sender") == self._pages.sender
        after = int(request.get("after", 0)) if ours else 0
        wait = 0.0 if "to" in request else float(request.get("wait", 0.0))
        until = time.monotonic() + min(wait, MAX_WAIT_SECONDS)
        with self._changed:
            while (self._epoch <= after or not self._poll_number) and time.monotonic() < until:
                self._changed.wait(until - time.monotonic())
            if not self._poll_number:
                raise Transient("The catalog has not been polled yet.", "Retry.")
        return {"state": self._pages.build_page(request, self.lake_state())}

    def _answer_poll(self, request: Mapping[str, Any], _: Any) -> dict[str, Any]:
        self.poll()
        return {"state": self._pages.build_page(request, self.lake_state())}

    def _record_queries(self, request: Mapping[str, Any], _: Any) -> None:
        with self._changed:
            for tables, times in request.get("queries", ()):
                self._query_log.record([t for t in tables if t in self._tables], int(times))

    def _rebuild_copies(self, request: Mapping[str, Any], _: Any) -> dict[str, Any]:
        """Rebuild the copies of tables; return the first epoch that reports no old copies."""
        with self._changed:
            for node_sync in self._nodes.values():
                node_sync.invalidate_copies([str(table) for table in request.get("tables", ())])
            self._publish()
            self._update_desired_states()
            return {"epoch": self._epoch}

    def _set_nodes(self, request: Mapping[str, Any], _: Any) -> None:
        named = {str(node["name"]): node for node in request["nodes"]}
        with self._changed:
            for name in self._nodes.keys() - named.keys():
                self._nodes.pop(name).stop()
                self._left_at[name] = time.monotonic()
            for name, node in named.items():
                self._left_at.pop(name, None)
                node_sync = self._nodes.get(name)
                if node_sync is None or not node_sync.has_endpoint(node["address"], node["token"]):
                    if node_sync is not None:
                        node_sync.stop()
                    self._nodes[name] = NodeSync(
                        name, node["address"], node["token"], self.node_changed
                    )
            self._publish()
            self._update_desired_states()
