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
from thermocline.serve.fleet.lookout import NOTHING
from thermocline.serve.fleet.messages import EngineFailed
from thermocline.serve.fleet.processes import NotRunning
from thermocline.serve.fleet.replica import Conversation, Replica
from thermocline.serve.terms import Held, Lookout

if TYPE_CHECKING:
    from thermocline.serve.fleet.processes import Kept

LONG_POLL = 1.0
"""The keeper looks more often; when nothing changed it says so this often."""
LEFT_KEPT = 10_000


class CatalogView:
    """The lake at the keeper's last look, and what was found out about nodes since."""

    def __init__(self, keeper: Kept) -> None:
        self._keeper = keeper
        self._replica = Replica()
        self._changed = asyncio.Event()
        self.lookout: Lookout = NOTHING
        self.left: dict[tuple[str, int], datetime] = {}
        """When a snapshot stopped being its table's newest."""

    async def follow(self) -> None:
        """Learn what changes, for ever."""
        while True:
            try:
                await self._converse({"do": "lookout", "wait": LONG_POLL}, 10 * LONG_POLL)
            except NotRunning:
                await asyncio.sleep(0.05)
            except (Transient, TimeoutError) as error:
                telemetry.log("serve", "keeper", level="WARNING", error=str(error))
                await asyncio.sleep(0.2)

    async def look(self, seconds: float) -> Lookout:
        """What the catalog says now, not a moment ago. A keeper that just died is waited for."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            try:
                async with asyncio.timeout(left):
                    await self._converse({"do": "look"}, left)
                return self.lookout
            except (TimeoutError, Transient):
                await asyncio.sleep(0.02)
        raise EngineFailed("The catalog cannot be looked at in time.", "Ask again.")

    async def change(self, seconds: float) -> None:
        """Wait for something new from the keeper, for a while."""
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._changed.wait(), seconds)

    def node_is_gone(self, node: str) -> None:
        """Read no copies of a node that is gone, until the keeper tells of it again."""
        if node in self.lookout.held:
            held = {name: it for name, it in self.lookout.held.items() if name != node}
            self._show(replace(self.lookout, held=held))

    def copy_is_ahead(self, node: str, table: str, snapshot: str) -> None:
        """Believe a node that its copy is at the newest snapshot before the keeper tells of it."""
        copies: Mapping[str, Held] = self.lookout.held.get(node, {})
        if table not in copies or snapshot != str(self.lookout.heads[table].snapshot):
            return
        ahead = replace(copies[table], snapshot=int(snapshot))
        held = {**self.lookout.held, node: {**copies, table: ahead}}
        self._show(replace(self.lookout, held=held))

    async def _converse(self, first: Mapping[str, Any], timeout: float) -> None:
        """Ask for what changed, page by page, and take it in."""
        conversation = Conversation(self._replica)
        request = {**first, **conversation.request()}
        while True:
            frame = await self._keeper.channel.ask(request, timeout=timeout)
            if frame.error is not None:
                raise EngineFailed(str(frame.error.get("cause", "The keeper failed.")))
            try:
                following = conversation.take(frame.header["lookout"])
                tables = None if following else conversation.end(frame.header["lookout"])
            except (LookupError, TypeError, ValueError) as error:
                self._replica.forget()  # whatever it was, the whole view does not depend on it
                raise EngineFailed(f"What the keeper sent cannot be read: {error!r}") from error
            if tables is not None:
                self._take(tables)
                return
            request = {"do": "lookout", **(following or {})}

    def _take(self, tables: Iterable[str]) -> None:
        known, shown = self._replica.known, self.lookout
        if known.epoch == shown.epoch and not tables:
            # What was found out of nodes meanwhile holds until the keeper tells of something.
            self._show(replace(shown, looked_at=known.looked_at))
            return
        for table in tables:
            head, before = known.heads.get(table), shown.heads.get(table)
            if head is not None and before is not None and before.snapshot != head.snapshot:
                self.left[table, before.snapshot] = max(before.committed_at, head.committed_at)
        while len(self.left) > LEFT_KEPT:
            self.left.pop(next(iter(self.left)))
        self._show(known)

    def _show(self, lookout: Lookout) -> None:
        self.lookout = lookout
        self._changed.set()
