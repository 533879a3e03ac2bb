"""The router's view of the lake: corrections, late replies, restarts, malformed replies."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from thermocline.serve.fleet.catalog_watcher import CatalogWatcher
from thermocline.serve.fleet.messages import EngineFailed
from thermocline.serve.replicator.state_pages import StatePages
from thermocline.serve.values import HotCopy, LakeState, TableHead
from thermocline.serve.wire.frame import ConnectionLost, Frame

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
TABLE = "gold.t"


class Replicator:
    """The sender's side as the router reaches it: every request and reply is text in between."""

    def __init__(self) -> None:
        self.views = StatePages(page_bytes=1)
        self.newest = LakeState(1, NOON, {TABLE: head(1)}, {"node-0": {TABLE: HotCopy(1, None)}})
        self.spoil: Callable[[dict[str, Any]], None] = lambda _: None
        self.dies = 0
        self.asked: list[dict[str, Any]] = []
        self.channel = self

    def see(self, **changed: Any) -> None:
        at = self.newest.polled_at + timedelta(seconds=1)
        self.newest = replace(self.newest, epoch=self.newest.epoch + 1, polled_at=at, **changed)

    async def ask(self, request: dict[str, Any], timeout: float) -> Frame:
        await asyncio.sleep(0)
        self.asked.append(request)
        if self.dies:
            self.dies -= 1
            raise ConnectionLost("The connection was lost.")
        reply = self.views.build_page(json.loads(json.dumps(request)), self.newest)
        self.spoil(reply)
        return Frame(json.loads(json.dumps({"ok": True, "state": reply})))


def head(snapshot: int) -> TableHead:
    return TableHead(TABLE, "u", snapshot, "m", NOON, {"c": "long"}, None, (snapshot,))


def made() -> tuple[Replicator, CatalogWatcher]:
    replicator: Any = Replicator()
    return replicator, CatalogWatcher(replicator)


def test_a_node_that_is_gone_is_not_read_until_the_replicator_tells_of_something() -> None:
    async def trial() -> None:
        replicator, view = made()
        await view.poll(1)
        assert view.lake_state == replicator.newest
        view.drop_node("node-0")
        assert view.lake_state.hot_copies == {}
        replicator.newest = replace(replicator.newest, polled_at=NOON + timedelta(seconds=9))
        await view.poll(1)
        assert view.lake_state.hot_copies == {}, "nothing was told that is newer"
        assert view.lake_state.polled_at == NOON + timedelta(seconds=9)
        replicator.see(table_heads={TABLE: head(2)})
        await view.poll(1)
        assert view.lake_state == replicator.newest, (
            "what was left out here is not left out for good"
        )

    asyncio.run(trial())


def test_a_copy_that_is_ahead_is_believed_only_at_the_newest_snapshot() -> None:
    async def trial() -> None:
        replicator, view = made()
        replicator.see(table_heads={TABLE: head(2)})
        await view.poll(1)
        view.advance_copy("node-0", TABLE, "3")
        assert view.lake_state.hot_copies["node-0"][TABLE].snapshot == 1
        view.advance_copy("node-1", TABLE, "2")
        assert "node-1" not in view.lake_state.hot_copies
        view.advance_copy("node-0", TABLE, "2")
        assert view.lake_state.hot_copies["node-0"][TABLE].snapshot == 2
        replicator.see(hot_copies={"node-0": {TABLE: HotCopy(2, None, 7, 8)}})
        await view.poll(1)
        assert view.lake_state == replicator.newest

    asyncio.run(trial())


def test_a_snapshot_is_left_when_a_commit_is_seen() -> None:
    async def trial() -> None:
        replicator, view = made()
        await view.poll(1)
        later = replace(head(2), committed_at=NOON + timedelta(seconds=5))
        replicator.see(table_heads={TABLE: later})
        await view.poll(1)
        assert view.superseded_at == {(TABLE, 1): NOON + timedelta(seconds=5)}

    asyncio.run(trial())


def test_a_replicator_that_is_started_again_is_followed_whatever_its_clock_says() -> None:
    async def trial() -> None:
        replicator, view = made()
        replicator.see(table_heads={TABLE: head(2), "gold.u": replace(head(9), table="gold.u")})
        await view.poll(1)
        same = view.lake_state.table_heads["gold.u"]
        replicator.views, replicator.dies = StatePages(page_bytes=1), 3
        replicator.newest = replace(
            replicator.newest,
            epoch=1,
            table_heads={**replicator.newest.table_heads, TABLE: head(3)},
        )
        await view.poll(1)
        assert view.lake_state == replicator.newest
        assert view.lake_state.table_heads["gold.u"] is same, "what did not change stays the same"

    asyncio.run(trial())


def spoiled(reply: dict[str, Any]) -> None:
    reply["pieces"] = [{"table": TABLE, "snapshots": ["1"]}]


def unasked(reply: dict[str, Any]) -> None:
    reply["base"] = 17


def cut(reply: dict[str, Any]) -> None:
    del reply["polled_at"]


@pytest.mark.parametrize("spoil", [spoiled, unasked, cut])
def test_nonsense_does_not_stop_the_router_from_following(
    spoil: Callable[[dict[str, Any]], None],
) -> None:
    async def trial() -> None:
        replicator, view = made()
        await view.poll(1)
        replicator.see(table_heads={TABLE: head(2)})
        replicator.spoil = spoil
        with pytest.raises(EngineFailed):
            await view.poll(0.1)
        assert view.lake_state.table_heads[TABLE].snapshot == 1
        replicator.spoil = lambda _: None
        following = asyncio.create_task(view.follow())
        while view.lake_state.table_heads[TABLE].snapshot != 2:
            await asyncio.sleep(0.01)
        following.cancel()
        assert view.lake_state == replicator.newest

    asyncio.run(asyncio.wait_for(trial(), 10))
