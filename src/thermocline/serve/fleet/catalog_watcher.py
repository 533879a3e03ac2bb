"""What the router knows of the lake: follows the keeper, look by look."""

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

LONG_POLL = 1.0
"""The keeper looks more often; when nothing changed it says so this often."""
MAX_SUPERSEDED = 10_000


class CatalogWatcher:
    """The lake at the keeper's last look, and what was found out about nodes since."""

    def __init__(self, replicator: WorkerHandle) -> None:
        self._replicator = replicator
        self._replica = StateReplica()
        self._changed = asyncio.Event()
        self.lake_state: LakeState = EMPTY_STATE
        self.superseded_at: dict[tuple[str, int], datetime] = {}
        """When a snapshot stopped being its table's newest."""

    async def follow(self) -> None:
        """Learn what changes, for ever."""
        while True:
            try:
                await self._sync({"do": "lookout", "wait": LONG_POLL}, 10 * LONG_POLL)
            except NotRunning:
                await asyncio.sleep(0.05)
            except (Transient, TimeoutError) as error:
                telemetry.log("serve", "keeper", level="WARNING", error=str(error))
                await asyncio.sleep(0.2)

    async def poll(self, seconds: float) -> LakeState:
        """What the catalog says now, not a moment ago. A keeper that just died is waited for."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._sync({"do": "look"}, left)
                return self.lake_state
            except (TimeoutError, Transient):
                await asyncio.sleep(0.02)
        raise EngineFailed("The catalog cannot be looked at in time.", "Ask again.")

    async def wait_for_change(self, seconds: float) -> None:
        """Wait for something new from the keeper, for a while."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def drop_node(self, node: str) -> None:
        """Read no copies of a node that is gone, until the keeper tells of it again."""
        if node in self.lake_state.hot_copies:
            held = {name: it for name, it in self.lake_state.hot_copies.items() if name != node}
            self._publish(replace(self.lake_state, hot_copies=held))

    def advance_copy(self, node: str, table: str, snapshot: str) -> None:
        """Believe a node that its copy is at the newest snapshot before the keeper tells of it."""
        copies: Mapping[str, HotCopy] = self.lake_state.hot_copies.get(node, {})
        if table not in copies or snapshot != str(self.lake_state.table_heads[table].snapshot):
            return
        ahead = replace(copies[table], snapshot=int(snapshot))
        held = {**self.lake_state.hot_copies, node: {**copies, table: ahead}}
        self._publish(replace(self.lake_state, hot_copies=held))

    async def _sync(self, first: Mapping[str, Any], timeout: float) -> None:
        """Ask for what changed, page by page, and take it in."""
        sync = StateSync(self._replica)
        request = {**first, **sync.request()}
        while True:
            frame = await self._replicator.channel.ask(request, timeout=timeout)
            if frame.error is not None:
                raise EngineFailed(str(frame.error.get("cause", "The keeper failed.")))
            try:
                following = sync.take(frame.header["lookout"])
                tables = None if following else sync.finish(frame.header["lookout"])
            except (LookupError, TypeError, ValueError) as error:
                self._replica.forget()  # whatever it was, the whole view does not depend on it
                raise EngineFailed(f"What the keeper sent cannot be read: {error!r}") from error
            if tables is not None:
                self._apply_changes(tables)
                return
            request = {"do": "lookout", **(following or {})}

    def _apply_changes(self, tables: Iterable[str]) -> None:
        known, shown = self._replica.state, self.lake_state
        if known.epoch == shown.epoch and not tables:
            # What was found out of nodes meanwhile holds until the keeper tells of something.
            self._publish(replace(shown, polled_at=known.polled_at))
            return
        for table in tables:
            head, before = known.table_heads.get(table), shown.table_heads.get(table)
            if head is not None and before is not None and before.snapshot != head.snapshot:
                self.superseded_at[table, before.snapshot] = max(
                    before.committed_at, head.committed_at
                )
        while len(self.superseded_at) > MAX_SUPERSEDED:
            self.superseded_at.pop(next(iter(self.superseded_at)))
        self._publish(known)

    def _publish(self, lake_state: LakeState) -> None:
        self.lake_state = lake_state
        self._changed.set()
