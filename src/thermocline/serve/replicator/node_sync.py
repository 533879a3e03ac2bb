"""Synchronize one node with the desired state.

One thread per node. After each poll it stages the deltas of all copies and applies them in one
change set, so that the copies of a node are always of one poll. Missing copies are built beside the
served ones, a batch at a time between the polls; a new copy joins the others at their next update.
Only copies that are at the node's poll are reported.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from thermocline import telemetry
from thermocline.serve.replicator import copy_updates
from thermocline.serve.replicator.copies import TrackedCopy, matches_window
from thermocline.serve.replicator.copy_updates import (
    CopyBuild,
    CopyFailed,
    CopyUpdate,
    attribute_errors_to,
)
from thermocline.serve.replicator.hot_policy import estimate_bytes
from thermocline.serve.replicator.node_client import NodeClient, NodeRefused
from thermocline.serve.values import HotCopy
from thermocline.serve.wire.frame import ConnectionLost, MalformedFrame

if TYPE_CHECKING:
    from thermocline.serve.replicator.desired_state import DesiredCopy, DesiredState

BUILD_BYTES = 64 << 20
"""A delta that reads more than this would delay the other tables: it becomes a new copy."""
RETRY_SECONDS = 10.0
CONNECT_SECONDS = 0.1
PING_SECONDS = 1.0


class NodeSync:
    """Synchronizes one node until `stop`. Calls `on_change` when its reported copies changed."""

    def __init__(self, name: str, address: str, token: str, on_change: Callable[[], None]) -> None:
        self.name = name
        self.is_up = False
        self.hot_copies: Mapping[str, HotCopy] = {}
        """The copies that are reported: those at the node's current poll."""
        self.capacity = sys.maxsize
        """How many bytes of copies fit, as far as its refusals showed."""
        self._endpoint = (address, token)
        self._on_change = on_change
        self._changed = threading.Condition()
        self._desired_state: DesiredState | None = None
        self._stopped = False
        self._copies: dict[str, TrackedCopy] = {}
        self._failed: dict[str, tuple[str, float]] = {}
        self._building: CopyBuild | None = None
        threading.Thread(target=self._run, name=f"feed {name}", daemon=True).start()

    def has_endpoint(self, address: str, token: str) -> bool:
        """Return whether this is the node at this address."""
        return self._endpoint == (address, token)

    def set_desired_state(self, desired_state: DesiredState) -> None:
        """Synchronize to this state from now on."""
        with self._changed:
            self._desired_state = desired_state
            self._changed.notify_all()

    def invalidate_copies(self, tables: Iterable[str]) -> None:
        """Hide the current copies of these tables, and rebuild them."""
        with self._changed:
            for table in set(tables) & self._copies.keys():
                self._copies[table] = replace(self._copies[table], is_stale=True, is_hidden=True)
            self.hot_copies = {
                t: held for t, held in self.hot_copies.items() if t not in set(tables)
            }
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop synchronizing the node."""
        with self._changed:
            self._stopped = True
            self.is_up = False
            self._changed.notify_all()

    def _run(self) -> None:
        while not self._stopped:
            client = None
            try:
                client = NodeClient.open(*self._endpoint)
                self._sync(client)
            except (ConnectionLost, MalformedFrame, NodeRefused) as error:
                if client is not None and not self._stopped:
                    telemetry.log(
                        "replicator", "node lost", level="WARNING", node=self.name, error=str(error)
                    )
            finally:
                if client is not None:
                    client.close()
            self._handle_disconnect()
            time.sleep(CONNECT_SECONDS)

    def _handle_disconnect(self) -> None:
        with self._changed:
            was_up, self.is_up = self.is_up, False
            self.hot_copies, self._copies, self._building = {}, {}, None
        if was_up and not self._stopped:
            self._on_change()

    def _sync(self, client: NodeClient) -> None:
        """Keep the node at its desired state until the connection is lost."""
        client.reset()
        found = client.fetch_copies()
        with self._changed:
            self._copies = {
                table: TrackedCopy(
                    held.snapshot, held.since, rows=held.rows, bytes=held.bytes, is_stale=True
                )
                for table, held in found.items()
            }
            self._failed.clear()
            self.capacity = sys.maxsize
            self.is_up = True
        self._on_change()
        reached: DesiredState | None = None
        while not self._stopped:
            desired_state = self._wait_for_work(reached)
            if desired_state is None:
                client.ping()
                continue
            # A new poll is applied between two batches of a copy that is being built.
            if desired_state is not reached or self._continue_build(client, desired_state):
                self._catch_up(client, desired_state)
                reached = desired_state

    def _wait_for_work(self, reached: DesiredState | None) -> DesiredState | None:
        """Return the desired state once there is work; None after `PING_SECONDS` without work."""
        with self._changed:
            if not self._has_work(reached):
                self._changed.wait(PING_SECONDS)
            return self._desired_state if self._has_work(reached) else None

    def _has_work(self, reached: DesiredState | None) -> bool:
        if self._desired_state is not reached or self._building is not None:
            return True
        return reached is not None and self._next_missing_table(reached) is not None

    # Updates: all copies to the poll, in one change set -------------------------------------------

    def _catch_up(self, client: NodeClient, desired_state: DesiredState) -> None:
        """Update the copies to the desired poll; drop those that cannot follow."""
        failed: set[str] = set()
        while True:
            try:
                self._publish(desired_state, *self._apply_updates(client, desired_state, failed))
                return
            except CopyFailed as error:
                failed.add(error.table)
                self._record_failure(desired_state.copies[error.table], error.__cause__)

    def _apply_updates(
        self, client: NodeClient, desired_state: DesiredState, failed: set[str]
    ) -> tuple[dict[str, TrackedCopy], dict[str, HotCopy]]:
        """Update all copies atomically; return the copies after that."""
        copies = {
            t: c for t, c in self._copies.items() if self._should_keep(t, c, desired_state, failed)
        }
        drops = self._copies.keys() - copies.keys()
        found: list[CopyUpdate] = []
        for table, copy in copies.items():
            desired = desired_state.copies[table]
            update = copy_updates.plan_update(copy, desired)
            if update is not None and update.delta.bytes <= BUILD_BYTES:
                found.append(update)
                copies[table] = update.after
            elif copy.snapshot != desired.polled.head.snapshot or not matches_window(copy, desired):
                copies[table] = replace(copy, is_stale=True)
        if not found and not drops:
            return copies, client.fetch_copies()
        change = client.begin()
        try:
            for table in drops:
                client.drop(change, table)
            for update in found:
                copy_updates.stage_update(client, change, update)
            with attribute_errors_to(copy_updates.find_largest(found)):
                held = client.apply(change)
        except CopyFailed:
            client.abandon(change)
            raise
        for update in found:
            update.record_applied()
        return copies, held

    def _should_keep(
        self, table: str, copy: TrackedCopy, desired_state: DesiredState, failed: set[str]
    ) -> bool:
        # Dropping a stale copy frees the memory that its successor lacked.
        return table in desired_state.copies and table not in failed and not (
            copy.is_stale and self._has_recently_failed(desired_state.copies[table])
        )  # fmt: skip

    def _publish(
        self,
        desired_state: DesiredState,
        copies: Mapping[str, TrackedCopy],
        on_node: Mapping[str, HotCopy],
    ) -> None:
        """Report the copies that are at the poll."""
        with self._changed:
            now = self._copies  # `invalidate_copies` may have hidden one meanwhile
            self._copies = {
                table: replace(
                    copy,
                    rows=on_node[table].rows,
                    bytes=on_node[table].bytes,
                    is_stale=copy.is_stale or now[table].is_hidden,
                    is_hidden=now[table].is_hidden,
                )
                for table, copy in copies.items()
                if table in on_node
            }
            before = self.hot_copies
            self.hot_copies = {
                table: HotCopy(copy.snapshot, copy.since, copy.rows, copy.bytes)
                for table, copy in self._copies.items()
                if not copy.is_hidden
                and copy.snapshot == desired_state.copies[table].polled.head.snapshot
            }
            same = before == self.hot_copies
        if not same:
            self._on_change()

    # Builds: missing copies -----------------------------------------------------------------------

    def _continue_build(self, client: NodeClient, desired_state: DesiredState) -> bool:
        """Send one batch of a new copy; return whether it is complete."""
        build, table = self._building, self._next_missing_table(desired_state)
        try:
            if build is None:
                self._building = (
                    copy_updates.begin_build(client, desired_state.copies[table]) if table else None
                )
                return False
            table = build.desired.polled.head.table
            if not copy_updates.is_wanted(build, desired_state):
                raise CopyFailed(table)
            with attribute_errors_to(table):
                for batch in build.batches:
                    client.add_rows(build.change, table, batch)
                    return False
                client.apply(build.change)
        except CopyFailed as error:
            if error.__cause__ is not None:
                self._record_failure(
                    build.desired if build else desired_state.copies[error.table], error.__cause__
                )
            if build is not None:
                client.abandon(build.change)
            self._building = None
            return False
        with self._changed:
            self._copies[table] = build.after
        self._building = None
        return True

    def _next_missing_table(self, desired_state: DesiredState) -> str | None:
        """Return the table to copy next: the most valuable, of equal ones the smallest."""
        tables = [
            table
            for table, desired in desired_state.copies.items()
            if (table not in self._copies or self._copies[table].is_stale)
            and not self._has_recently_failed(desired)
        ]
        return min(tables, key=lambda t: desired_state.copies[t].rank, default=None)

    def _record_failure(self, desired: DesiredCopy, cause: BaseException | None) -> None:
        head = desired.polled.head
        self._failed[head.table] = head.metadata, time.monotonic()
        telemetry.log(
            "replicator",
            "copy failed",
            level="ERROR",
            node=self.name,
            table=head.table,
            error=str(cause),
        )
        if isinstance(cause, NodeRefused) and cause.details["code"] == "memory":
            # The existing copies and this one do not fit together: the plan decides by their value.
            there = sum(c.bytes for t, c in self._copies.items() if t != head.table)
            self.capacity = min(self.capacity, there + estimate_bytes(head, desired.since) - 1)
            self._on_change()

    def _has_recently_failed(self, desired: DesiredCopy) -> bool:
        """Return whether the same copy failed recently."""
        pointer, at = self._failed.get(desired.polled.head.table, ("", 0.0))
        recent = time.monotonic() - at < RETRY_SECONDS
        return recent and pointer == desired.polled.head.metadata
