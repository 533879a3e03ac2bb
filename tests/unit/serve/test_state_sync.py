"""The router's state equals the replicator's after commits, drops, restarts and losses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from thermocline.serve.file_sums import FileTimes, ManifestTotals, sum_manifest
from thermocline.serve.fleet import state_delta
from thermocline.serve.fleet.state_sync import StateReplica, StateSync
from thermocline.serve.replicator.state_pages import StatePages
from thermocline.serve.values import HotCopy, LakeState, TableHead

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = 86_400_000_000
TABLES = ("gold.a", "gold.b", "gold.c")
NODES = ("node-0", "node-1")
tables, nodes = st.sampled_from(TABLES), st.sampled_from(NODES)
receivers = st.integers(0, 1)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that few files make several pieces."""
    monkeypatch.setattr(state_delta, "PIECE_ENTRIES", 2)
    yield


class Receiver:
    """A router: what it knows, and its conversations, of which replies may come late."""

    def __init__(self) -> None:
        self.replica = StateReplica()
        self.talks: list[tuple[StateSync, dict[str, Any]]] = []
        """Conversations under way, each with what it asks next."""

    def begin(self) -> None:
        talk = StateSync(self.replica)
        self.talks.append((talk, talk.request()))

    def step(self, number: int, views: StatePages, newest: LakeState) -> bool:
        """Ask for one page and take it in; says whether that was the last."""
        talk, request = self.talks.pop(number)
        asked = json.loads(json.dumps(request))
        reply = json.loads(json.dumps(views.build_page(asked, newest), allow_nan=False))
        following = talk.take(reply)
        if following is None:
            talk.finish(reply)
        else:
            self.talks.append((talk, following))
        return following is None


class Lake(RuleBasedStateMachine):
    """A replicator that sees random commits, and two routers that follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers = [Receiver(), Receiver()]
        self.published: dict[tuple[str, int], LakeState] = {}
        self.ids = iter(range(10**18, 2 * 10**18))
        self.manifests: dict[str, list[ManifestTotals]] = {}

    @initialize()
    def start(self) -> None:
        self.views = StatePages(max_states=2, page_bytes=300)
        self.newest = LakeState(1, NOON, {}, {})

    # What happens to the lake ---------------------------------------------------------------------

    def see(self, **changed: Any) -> None:
        at = self.newest.polled_at + timedelta(seconds=1)
        self.newest = replace(self.newest, epoch=self.newest.epoch + 1, polled_at=at, **changed)

    def put(self, table: str, **changed: Any) -> None:
        head = replace(self.newest.table_heads[table], metadata=f"m{next(self.ids)}", **changed)
        self.see(table_heads={**self.newest.table_heads, table: head})

    @rule(table=tables, uuid=st.sampled_from("uvw"), time=st.sampled_from([None, "at"]))
    def make_or_make_again(self, table: str, uuid: str, time: str | None) -> None:
        snapshot = next(self.ids)
        columns = {"id": "long", "at": "date"}
        head = TableHead(table, uuid, snapshot, "m", NOON, columns, time, (snapshot,))
        self.manifests[table] = []
        self.see(table_heads={**self.newest.table_heads, table: head})

    @rule(table=tables)
    def drop(self, table: str) -> None:
        self.see(table_heads={t: head for t, head in self.newest.table_heads.items() if t != table})

    @rule(table=tables, days=st.lists(st.integers(0, 200), max_size=6))
    def commit(self, table: str, days: list[int]) -> None:
        if table in self.newest.table_heads:
            snapshot, head = next(self.ids), self.newest.table_heads[table]
            some = sum_manifest(
                FileTimes(1, 1, day * DAY, (day + 3) * DAY, next(self.ids)) for day in days
            )
            self.manifests[table].append(some)
            files = head.files.with_manifests([some], [])
            history = (snapshot, *head.snapshots)
            self.put(table, snapshot=snapshot, snapshots=history, files=files)

    @rule(table=tables)
    def compact_or_delete(self, table: str) -> None:
        if table in self.newest.table_heads and self.manifests[table]:
            files = self.newest.table_heads[table].files.with_manifests(
                [], [self.manifests[table].pop(0)]
            )
            self.put(table, files=files, deletes=next(self.ids))

    @rule(table=tables, back=st.integers(1, 3))
    def roll_back(self, table: str, back: int) -> None:
        if table in self.newest.table_heads:
            left = self.newest.table_heads[table].snapshots[back:] or (next(self.ids),)
            self.put(table, snapshot=left[0], snapshots=left)

    @rule(table=tables, left=st.integers(1, 3))
    def expire(self, table: str, left: int) -> None:
        if table in self.newest.table_heads:
            self.put(table, snapshots=self.newest.table_heads[table].snapshots[:left])

    @rule(table=tables)
    def commit_to_a_branch(self, table: str) -> None:
        if table in self.newest.table_heads:
            self.put(table)

    @rule(table=tables, columns=st.sampled_from([["id", "at"], ["at", "id"], ["id", "more"]]))
    def change_columns(self, table: str, columns: list[str]) -> None:
        if table in self.newest.table_heads:
            self.put(table, columns=dict.fromkeys(columns, "long"))

    @rule(node=nodes, held=st.dictionaries(tables, st.integers(0, 3), max_size=3))
    def hold(self, node: str, held: dict[str, int]) -> None:
        copies = {table: HotCopy(snapshot, None) for table, snapshot in held.items()}
        self.see(hot_copies={**self.newest.hot_copies, node: copies})

    @rule(node=nodes)
    def hold_before_it_is_told(self, node: str) -> None:
        """A node's copies change a moment before the replicator counts that as an epoch."""
        held = {**self.newest.hot_copies, node: {"gold.a": HotCopy(next(self.ids), None)}}
        self.newest = replace(self.newest, hot_copies=held)

    @rule(node=nodes)
    def lose_a_node(self, node: str) -> None:
        self.see(hot_copies={n: it for n, it in self.newest.hot_copies.items() if n != node})

    @rule()
    def see_nothing_new(self) -> None:
        later = self.newest.polled_at + timedelta(seconds=1)
        self.newest = replace(self.newest, polled_at=later)

    @rule(epoch=st.integers(1, 30))
    def restart(self, epoch: int) -> None:
        """Another replicator, whose clock may be behind."""
        self.views = StatePages(max_states=2, page_bytes=300)
        self.newest = replace(self.newest, epoch=epoch)

    # What happens between them --------------------------------------------------------------------

    @rule(who=receivers)
    def ask(self, who: int) -> None:
        if len(self.receivers[who].talks) < 3:
            self.receivers[who].begin()

    @rule(who=receivers, number=st.integers(0, 2))
    def hear(self, who: int, number: int) -> None:
        if number < len(self.receivers[who].talks):
            replica = self.receivers[who].replica
            before, sender = replica.state, replica.sender
            self.note()
            self.receivers[who].step(number, self.views, self.newest)
            if sender == replica.sender:
                assert replica.state.epoch >= before.epoch
                assert replica.state.polled_at >= before.polled_at
            self.check_identity(before, replica.state)

    @rule()
    def let_others_ask(self) -> None:
        """So many that no view stays known which is not being sent."""
        for _ in range(3):
            self.see()
            self.note()
            self.views.build_page({}, self.newest)

    @rule(who=receivers)
    def lose_what_was_said(self, who: int) -> None:
        self.receivers[who].talks.clear()

    @rule(who=receivers)
    def forget(self, who: int) -> None:
        self.receivers[who].replica.forget()

    @rule(who=receivers)
    def settle(self, who: int) -> None:
        receiver = self.receivers[who]
        receiver.talks.clear()
        self.note()
        receiver.begin()
        for _ in range(1_000):
            if receiver.step(0, self.views, self.newest):
                break
        if receiver.replica.sender == self.views.sender:
            assert receiver.replica.state.epoch == self.newest.epoch
        assert same(receiver.replica.state, self.published[self.views.sender, self.newest.epoch])

    # What must hold -------------------------------------------------------------------------------

    def note(self) -> None:
        """Of one epoch what was first told of it counts: there is no other."""
        self.published.setdefault((self.views.sender, self.newest.epoch), self.newest)

    def check_identity(self, before: LakeState, after: LakeState) -> None:
        for table, head in after.table_heads.items():
            known = before.table_heads.get(table)
            if known == head and list(known.columns) == list(head.columns):
                assert known is head

    @invariant()
    def what_is_known_was_so(self) -> None:
        for receiver in self.receivers:
            known, sender = receiver.replica.state, receiver.replica.sender
            if sender:
                assert same(known, self.published[sender, known.epoch])


def same(one: LakeState, other: LakeState) -> bool:
    """Whether two are the same but for when they were seen."""
    columns = [{t: list(h.columns) for t, h in each.table_heads.items()} for each in (one, other)]
    return (
        one.table_heads == other.table_heads
        and one.hot_copies == other.hot_copies
        and columns[0] == columns[1]
    )


def test_a_router_knows_what_its_replicator_knew(small_pieces: None) -> None:
    Lake.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
    Lake.TestCase().runTest()


def test_pages_are_bounded_and_bring_a_lake_of_any_size() -> None:
    heads = {
        f"gold.t{n}": TableHead(
            f"gold.t{n}", "u", 1, "m" * 100, NOON, {f"c{c}": "long" for c in range(30)}, None, (1,)
        )
        for n in range(3_000)
    }
    newest, views, receiver = LakeState(5, NOON, heads, {}), StatePages(), Receiver()
    receiver.begin()
    pages = 0
    while True:
        _, request = receiver.talks[0]
        assert len(json.dumps(views.build_page(request, newest))) < 400_000
        pages += 1
        if receiver.step(0, views, newest):
            break
    assert pages > 5
    assert same(receiver.replica.state, newest)


def test_a_view_on_its_way_is_kept_while_others_come() -> None:
    heads = {t: TableHead(t, "u", 1, "m", NOON, {"c": "long"}, None, (1,)) for t in TABLES}
    views, receiver = StatePages(max_states=4, page_bytes=1), Receiver()
    receiver.begin()
    epoch = 0
    for epoch in range(1, 100):
        newest = LakeState(epoch, NOON, heads, {"n": {"gold.a": HotCopy(epoch, None)}})
        if receiver.step(0, views, newest):
            break
    assert epoch < 10, "no commit that comes meanwhile begins it again"
    assert receiver.replica.state.epoch == 1


def head(table: str, snapshot: int = 1) -> TableHead:
    return TableHead(table, "u", snapshot, "m", NOON, {"c": "long"}, None, (snapshot,))


def test_of_two_conversations_the_one_with_the_older_view_changes_nothing() -> None:
    views, receiver = StatePages(page_bytes=1), Receiver()
    old = LakeState(1, NOON, {t: head(t) for t in TABLES}, {})
    later = NOON + timedelta(seconds=1)
    new = LakeState(2, later, {t: head(t, 2) for t in TABLES}, {})
    receiver.begin()
    assert not receiver.step(0, views, old)
    receiver.begin()
    while not receiver.step(1, views, new):
        pass
    known = receiver.replica.state
    assert same(known, new)
    while not receiver.step(0, views, new):
        pass
    assert receiver.replica.state is known


def test_what_was_not_asked_for_is_refused() -> None:
    replica = StateReplica()
    views = StatePages()
    reply = views.build_page({}, LakeState(7, NOON, {}, {}))
    with pytest.raises(ValueError, match="not requested"):
        StateSync(replica).take({**reply, "base": 6})
