"""The router's view is the keeper's, whatever is committed, dropped, restarted or lost."""

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

from thermocline.serve.filesums import FileTimes, ManifestSums, manifest_sums
from thermocline.serve.fleet import lookout as lookouts
from thermocline.serve.fleet.replica import Conversation, Replica
from thermocline.serve.keeper.views import Views
from thermocline.serve.terms import Head, Held, Lookout

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = 86_400_000_000
TABLES = ("gold.a", "gold.b", "gold.c")
NODES = ("node-0", "node-1")
tables, nodes = st.sampled_from(TABLES), st.sampled_from(NODES)
receivers = st.integers(0, 1)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """So that few files make several pieces."""
    monkeypatch.setattr(lookouts, "ENTRIES", 2)
    yield


class Receiver:
    """A router: what it knows, and its conversations, of which replies may come late."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.talks: list[tuple[Conversation, dict[str, Any]]] = []
        """Conversations under way, each with what it asks next."""

    def begin(self) -> None:
        talk = Conversation(self.replica)
        self.talks.append((talk, talk.request()))

    def step(self, number: int, views: Views, newest: Lookout) -> bool:
        """Ask for one page and take it in; says whether that was the last."""
        talk, request = self.talks.pop(number)
        asked = json.loads(json.dumps(request))
        reply = json.loads(json.dumps(views.page(asked, newest), allow_nan=False))
        following = talk.take(reply)
        if following is None:
            talk.end(reply)
        else:
            self.talks.append((talk, following))
        return following is None


class Lake(RuleBasedStateMachine):
    """A keeper that sees random commits, and two routers that follow it."""

    def __init__(self) -> None:
        super().__init__()
        self.receivers = [Receiver(), Receiver()]
        self.published: dict[tuple[str, int], Lookout] = {}
        self.ids = iter(range(10**18, 2 * 10**18))
        self.manifests: dict[str, list[ManifestSums]] = {}

    @initialize()
    def start(self) -> None:
        self.views = Views(kept=2, page_bytes=300)
        self.newest = Lookout(1, NOON, {}, {})

    # What happens to the lake ---------------------------------------------------------------------

    def see(self, **changed: Any) -> None:
        at = self.newest.looked_at + timedelta(seconds=1)
        self.newest = replace(self.newest, epoch=self.newest.epoch + 1, looked_at=at, **changed)

    def put(self, table: str, **changed: Any) -> None:
        head = replace(self.newest.heads[table], metadata=f"m{next(self.ids)}", **changed)
        self.see(heads={**self.newest.heads, table: head})

    @rule(table=tables, uuid=st.sampled_from("uvw"), time=st.sampled_from([None, "at"]))
    def make_or_make_again(self, table: str, uuid: str, time: str | None) -> None:
        snapshot = next(self.ids)
        columns = {"id": "long", "at": "date"}
        head = Head(table, uuid, snapshot, "m", NOON, columns, time, (snapshot,))
        self.manifests[table] = []
        self.see(heads={**self.newest.heads, table: head})

    @rule(table=tables)
    def drop(self, table: str) -> None:
        self.see(heads={t: head for t, head in self.newest.heads.items() if t != table})

    @rule(table=tables, days=st.lists(st.integers(0, 200), max_size=6))
    def commit(self, table: str, days: list[int]) -> None:
        if table in self.newest.heads:
            snapshot, head = next(self.ids), self.newest.heads[table]
            some = manifest_sums(
                FileTimes(1, 1, day * DAY, (day + 3) * DAY, next(self.ids)) for day in days
            )
            self.manifests[table].append(some)
            files = head.files.folded([some], [])
            history = (snapshot, *head.snapshots)
            self.put(table, snapshot=snapshot, snapshots=history, files=files)

    @rule(table=tables)
    def compact_or_delete(self, table: str) -> None:
        if table in self.newest.heads and self.manifests[table]:
            files = self.newest.heads[table].files.folded([], [self.manifests[table].pop(0)])
            self.put(table, files=files, deletes=next(self.ids))

    @rule(table=tables, back=st.integers(1, 3))
    def roll_back(self, table: str, back: int) -> None:
        if table in self.newest.heads:
            left = self.newest.heads[table].snapshots[back:] or (next(self.ids),)
            self.put(table, snapshot=left[0], snapshots=left)

    @rule(table=tables, left=st.integers(1, 3))
    def expire(self, table: str, left: int) -> None:
        if table in self.newest.heads:
            self.put(table, snapshots=self.newest.heads[table].snapshots[:left])

    @rule(table=tables)
    def commit_to_a_branch(self, table: str) -> None:
        if table in self.newest.heads:
            self.put(table)

    @rule(table=tables, columns=st.sampled_from([["id", "at"], ["at", "id"], ["id", "more"]]))
    def change_columns(self, table: str, columns: list[str]) -> None:
        if table in self.newest.heads:
            self.put(table, columns=dict.fromkeys(columns, "long"))

    @rule(node=nodes, held=st.dictionaries(tables, st.integers(0, 3), max_size=3))
    def hold(self, node: str, held: dict[str, int]) -> None:
        copies = {table: Held(snapshot, None) for table, snapshot in held.items()}
        self.see(held={**self.newest.held, node: copies})

    @rule(node=nodes)
    def hold_before_it_is_told(self, node: str) -> None:
        """A node's copies change a moment before the keeper counts that as an epoch."""
        held = {**self.newest.held, node: {"gold.a": Held(next(self.ids), None)}}
        self.newest = replace(self.newest, held=held)

    @rule(node=nodes)
    def lose_a_node(self, node: str) -> None:
        self.see(held={n: it for n, it in self.newest.held.items() if n != node})

    @rule()
    def see_nothing_new(self) -> None:
        later = self.newest.looked_at + timedelta(seconds=1)
        self.newest = replace(self.newest, looked_at=later)

    @rule(epoch=st.integers(1, 30))
    def restart(self, epoch: int) -> None:
        """Another keeper, whose clock may be behind."""
        self.views = Views(kept=2, page_bytes=300)
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
            before, sender = replica.known, replica.sender
            self.note()
            self.receivers[who].step(number, self.views, self.newest)
            if sender == replica.sender:
                assert replica.known.epoch >= before.epoch
                assert replica.known.looked_at >= before.looked_at
            self.check_identity(before, replica.known)

    @rule()
    def let_others_ask(self) -> None:
        """So many that no view stays known which is not being sent."""
        for _ in range(3):
            self.see()
            self.note()
            self.views.page({}, self.newest)

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
            assert receiver.replica.known.epoch == self.newest.epoch
        assert same(receiver.replica.known, self.published[self.views.sender, self.newest.epoch])

    # What must hold -------------------------------------------------------------------------------

    def note(self) -> None:
        """Of one epoch what was first told of it counts: there is no other."""
        self.published.setdefault((self.views.sender, self.newest.epoch), self.newest)

    def check_identity(self, before: Lookout, after: Lookout) -> None:
        for table, head in after.heads.items():
            known = before.heads.get(table)
            if known == head and list(known.columns) == list(head.columns):
                assert known is head

    @invariant()
    def what_is_known_was_so(self) -> None:
        for receiver in self.receivers:
            known, sender = receiver.replica.known, receiver.replica.sender
            if sender:
                assert same(known, self.published[sender, known.epoch])


def same(one: Lookout, other: Lookout) -> bool:
    """Whether two are the same but for when they were seen."""
    columns = [{t: list(h.columns) for t, h in each.heads.items()} for each in (one, other)]
    return one.heads == other.heads and one.held == other.held and columns[0] == columns[1]


def test_a_router_knows_what_its_keeper_knew(small_pieces: None) -> None:
    Lake.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
    Lake.TestCase().runTest()


def test_pages_are_bounded_and_bring_a_lake_of_any_size() -> None:
    heads = {
        f"gold.t{n}": Head(
            f"gold.t{n}", "u", 1, "m" * 100, NOON, {f"c{c}": "long" for c in range(30)}, None, (1,)
        )
        for n in range(3_000)
    }
    newest, views, receiver = Lookout(5, NOON, heads, {}), Views(), Receiver()
    receiver.begin()
    pages = 0
    while True:
        _, request = receiver.talks[0]
        assert len(json.dumps(views.page(request, newest))) < 400_000
        pages += 1
        if receiver.step(0, views, newest):
            break
    assert pages > 5
    assert same(receiver.replica.known, newest)


def test_a_view_on_its_way_is_kept_while_others_come() -> None:
    heads = {t: Head(t, "u", 1, "m", NOON, {"c": "long"}, None, (1,)) for t in TABLES}
    views, receiver = Views(kept=4, page_bytes=1), Receiver()
    receiver.begin()
    epoch = 0
    for epoch in range(1, 100):
        newest = Lookout(epoch, NOON, heads, {"n": {"gold.a": Held(epoch, None)}})
        if receiver.step(0, views, newest):
            break
    assert epoch < 10, "no commit that comes meanwhile begins it again"
    assert receiver.replica.known.epoch == 1


def head(table: str, snapshot: int = 1) -> Head:
    return Head(table, "u", snapshot, "m", NOON, {"c": "long"}, None, (snapshot,))


def test_of_two_conversations_the_one_with_the_older_view_changes_nothing() -> None:
    views, receiver = Views(page_bytes=1), Receiver()
    old = Lookout(1, NOON, {t: head(t) for t in TABLES}, {})
    later = NOON + timedelta(seconds=1)
    new = Lookout(2, later, {t: head(t, 2) for t in TABLES}, {})
    receiver.begin()
    assert not receiver.step(0, views, old)
    receiver.begin()
    while not receiver.step(1, views, new):
        pass
    known = receiver.replica.known
    assert same(known, new)
    while not receiver.step(0, views, new):
        pass
    assert receiver.replica.known is known


def test_what_was_not_asked_for_is_refused() -> None:
    replica = Replica()
    views = Views()
    reply = views.page({}, Lookout(7, NOON, {}, {}))
    with pytest.raises(ValueError, match="not asked for"):
        Conversation(replica).take({**reply, "base": 6})
