"""The router's view of the lake: follow the replicator's polls of the catalog."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from thermocline import telemetry
from thermocline.errors import Transient
from thermocline.serve.fleet.messages import EngineFailed
from thermocline.serve.fleet.processes import NotRunning
from thermocline.serve.fleet.state_delta import EMPTY_STATE
from thermocline.serve.fleet.state_sync import StateReplica, StateSync
from thermocline.serve.values import HotCopy, LakeState

if TYPE_CHECKING:
    from thermocline.serve.fleet.processes import WorkerHandle

LONG_POLL_SECONDS = 1.0
"""Seconds after which the replicator replies when nothing changed. It polls more often."""
MAX_SUPERSEDED = 10_000


class CatalogWatcher:
    """The lake at the replicator's last poll, with what the router learned of nodes since."""

    def __init__(self, replicator: WorkerHandle) -> None:
        self._replicator = replicator
        self._replica = StateReplica()
        self._changed = asyncio.Event()
        self.lake_state: LakeState = EMPTY_STATE
        self.superseded_at: dict[tuple[str, int], datetime] = {}
        """When a snapshot stopped being its table's newest."""

    async def follow(self) -> None:
        """Receive changes from the replicator, forever."""
        while True:
            try:
                await self._sync({"do": "state", "wait": LONG_POLL_SECONDS}, 10 * LONG_POLL_SECONDS)
            except NotRunning:
                await asyncio.sleep(0.05)
            except (Transient, TimeoutError) as error:
                telemetry.log("serve", "replicator", level="WARNING", error=str(error))
                await asyncio.sleep(0.2)

    async def poll(self, seconds: float) -> LakeState:
        """Poll the catalog now and return its state. Wait for a replicator that is restarting."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._sync({"do": "poll"}, left)
                return self.lake_state
            except (TimeoutError, Transient):
                await asyncio.sleep(0.02)
        raise EngineFailed("The catalog cannot be polled in time.", "Retry.")

    async def wait_for_change(self, seconds: float) -> None:
        """Wait up to `seconds` for a change."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def drop_node(self, node: str) -> None:
        """Remove the copies of a node that is down, until the replicator reports it again."""
        if node in self.lake_state.hot_copies:
            copies_by_node = {
                name: it for name, it in self.lake_state.hot_copies.items() if name != node
            }
            self._publish(replace(self.lake_state, hot_copies=copies_by_node))

    def advance_copy(self, node: str, table: str, snapshot: str) -> None:
        """Record that a node's copy is at the newest snapshot, before the replicator reports it."""
        copies: Mapping[str, HotCopy] = self.lake_state.hot_copies.get(node, {})
        if table not in copies or snapshot != str(self.lake_state.table_heads[table].snapshot):
            return
        ahead = replace(copies[table], snapshot=int(snapshot))
        copies_by_node = {**self.lake_state.hot_copies, node: {**copies, table: ahead}}
        self._publish(replace(self.lake_state, hot_copies=copies_by_node))

    async def _sync(self, first: Mapping[str, Any], timeout: float) -> None:
        """Request the changes page by page, and apply them."""
        sync = StateSync(self._replica)
        request = {**first, **sync.request()}
        while True:
            frame = await self._replicator.channel.ask(request, timeout=timeout)
            if frame.error is not None:
                raise EngineFailed(str(frame.error.get("cause", "The replicator failed.")))
            try:
                following = sync.take(frame.header["state"])
                tables = None if following else sync.finish(frame.header["state"])
            except (LookupError, TypeError, ValueError) as error:
                self._replica.forget()  # the next sync transfers the whole state
                raise EngineFailed(
                    f"The replicator's reply cannot be decoded: {error!r}"
                ) from error
            if tables is not None:
                self._apply_changes(tables)
                return
            request = {"do": "state", **(following or {})}

    def _apply_changes(self, tables: Iterable[str]) -> None:
        received, current = self._replica.state, self.lake_state
        if received.epoch == current.epoch and not tables:
            # The router's corrections stay valid until the replicator reports a change.
            self._publish(replace(current, polled_at=received.polled_at))
            return
        for table in tables:
            head, before = received.table_heads.get(table), current.table_heads.get(table)
            if head is not None and before is not None and before.snapshot != head.snapshot:
                self.superseded_at[table, before.snapshot] = max(
                    before.committed_at, head.committed_at
                )
        while len(self.superseded_at) > MAX_SUPERSEDED:
            self.superseded_at.pop(next(iter(self.superseded_at)))
        self._publish(received)

    def _publish(self, lake_state: LakeState) -> None:
        self.lake_state = lake_state
        self._changed.set()
