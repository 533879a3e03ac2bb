"""The queue and the leases of a catalog that has a database: SQLite and PostgreSQL."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from tests.contract.catalog_tables import ORDERS, ids
from tests.contract.commit_entries import TABLE, compacting, entry, files, overwriting, summary

from thermocline.errors import CommitConflict, Permanent, Transient
from thermocline.lake import Lake
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.groupcommit import CommitEntry, queue
from thermocline.lake.groupcommit.committer import Committer
from thermocline.lake.groupcommit.queue import LeaseLost, Queue
from thermocline.lake.orphans import find_orphans

pytestmark = pytest.mark.parametrize("catalog_environ", ["sqlite", "postgres"], indirect=True)


@pytest.fixture
def made(lake: Lake) -> Lake:
    lake.ensure(ORDERS)
    return lake


def test_waiting_entries_share_a_snapshot_and_one_that_fails_is_alone(made: Lake) -> None:
    made.group_commit.commit(entry(made, "start", 1))
    gone = compacting(made, "gone", 1)
    made.group_commit.commit(overwriting(made, "replaced", 29))
    submit = made.group_commit.submit
    tickets = [submit(entry(made, f"k{number}", number)) for number in range(40, 46)]
    failing = submit(gone)
    last = submit(entry(made, "last", 60))
    landed = {ticket.wait() for ticket in (*tickets, last)}
    assert len(landed) == 1
    assert summary(made, landed.pop())[bookmarks.KEYS] == "k40,k41,k42,k43,k44,k45,last"
    with pytest.raises(CommitConflict, match="gone"):
        failing.wait()
    assert ids(made, TABLE) == [29, *range(40, 46), 60]


def test_the_second_overwriting_of_a_partition_is_the_next_snapshot(made: Lake) -> None:
    submit = made.group_commit.submit
    first = submit(overwriting(made, "first", 1))
    second = submit(overwriting(made, "second", 29))
    third = submit(entry(made, "third", 57))
    assert second.wait() == third.wait() != first.wait()
    assert ids(made, TABLE, first.wait()) == [1]
    assert ids(made, TABLE) == [29, 57]


def test_bookmarks_that_differ_get_snapshots_of_their_own(made: Lake) -> None:
    tickets = [
        made.group_commit.submit(
            entry(made, f"k{n}", n, properties={bookmarks.BOOKMARK: f'{{"n":{n // 2}}}'})
        )
        for n in range(4)
    ]
    one, two, three, four = [ticket.wait() for ticket in tickets]
    assert one == two != three == four
    state = made.state(TABLE)
    assert [bookmarks.parse_bookmark(state.snapshot(s)) for s in (one, three)] == [
        {"n": 0},
        {"n": 1},
    ]


def test_rounds_are_bounded(made: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "BATCH_ENTRIES", 3)
    tickets = [made.group_commit.submit(entry(made, f"k{n}", n)) for n in range(5)]
    landed = [ticket.wait() for ticket in tickets]
    assert [landed.count(snapshot) for snapshot in dict.fromkeys(landed)] == [3, 2]
    monkeypatch.setattr(queue, "BATCH_BYTES", 1)
    tickets = [made.group_commit.submit(entry(made, f"l{n}", n)) for n in range(3)]
    assert len({ticket.wait() for ticket in tickets}) == 3


def test_an_entry_that_breaks_the_writer_fails_alone(made: Lake) -> None:
    table = made.iceberg(TABLE)
    [broken] = files(table, 7)
    broken.partition[0] = "no day"
    good = [made.group_commit.submit(entry(made, f"a{n}", n)) for n in range(2)]
    bad = made.group_commit.submit(CommitEntry.of(table, "bad", [broken]))
    more = made.group_commit.submit(entry(made, "b", 3))
    for ticket in (*good, more):
        ticket.wait()
    with pytest.raises(Permanent, match=r"entry bad for silver\.orders cannot be written"):
        bad.wait()
    assert ids(made, TABLE) == [0, 1, 3]


def test_an_entry_that_cannot_be_read_fails_alone(made: Lake) -> None:
    from sqlalchemy import text

    bad = made.group_commit.submit(entry(made, "bad", 1))
    with made.catalog.engine.begin() as connection:  # type: ignore[attr-defined]
        change = "UPDATE thermocline_commit_entries SET content = :junk WHERE key = 'bad'"
        connection.execute(text(change), {"junk": b"junk"})
    made.group_commit.commit(entry(made, "good", 2))
    with pytest.raises(Permanent, match="entry bad for"):
        bad.wait()
    assert ids(made, TABLE) == [2]


def test_who_lost_the_lease_cannot_commit(made: Lake) -> None:
    """The next holder has not even begun: the fence alone is in the way."""
    made.group_commit.submit(entry(made, "k", 1))
    commit_queue = Queue(made.catalog, lease_seconds=-1)  # type: ignore[arg-type]
    late, next_one = (
        commit_queue.acquire_lease(TABLE, "late"),
        commit_queue.acquire_lease(TABLE, "next"),
    )
    assert late is not None and next_one is not None
    before = made.state(TABLE).metadata_location
    committer = Committer(made.catalog, commit_queue, made)  # type: ignore[arg-type]
    with pytest.raises(LeaseLost):
        committer._commit(late, commit_queue.next_batch(TABLE))
    assert made.state(TABLE).metadata_location == before
    assert not commit_queue.renew_lease(late)
    status = commit_queue.status(TABLE, "k")
    assert status is not None and status.state == queue.WAITING
    committer._commit(next_one, commit_queue.next_batch(TABLE))
    assert ids(made, TABLE) == [1]
    assert [path for path, _ in find_orphans(made.iceberg(TABLE))] == []


def test_a_leaseholder_that_works_on_renews_its_lease(made: Lake) -> None:
    made.group_commit.submit(entry(made, "k", 1))
    commit_queue = Queue(made.catalog)  # type: ignore[arg-type]
    held = commit_queue.acquire_lease(TABLE, "me")
    assert held is not None
    first, deadline = expiry(made), time.monotonic() + 60

    def renewed() -> bool:
        while expiry(made) == first and time.monotonic() < deadline:
            time.sleep(0.05)
        return expiry(made) > first

    Committer(made.catalog, commit_queue, made).serve(held, renewed)  # type: ignore[arg-type]
    assert ids(made, TABLE) == [], "it was renewed, and that was enough"
    assert expiry(made) == 0


def expiry(lake: Lake) -> float:
    from sqlalchemy import text

    with lake.catalog.engine.connect() as connection:  # type: ignore[attr-defined]
        found = connection.execute(text("SELECT expires FROM thermocline_commit_leases"))
        return float(found.scalar_one())


def test_a_lease_has_one_holder_until_it_is_released(made: Lake) -> None:
    made.group_commit.submit(entry(made, "k", 1))
    commit_queue = Queue(made.catalog)  # type: ignore[arg-type]
    held = commit_queue.acquire_lease(TABLE, "one")
    assert held is not None
    assert commit_queue.acquire_lease(TABLE, "two") is None
    with pytest.raises(Transient, match=r"still waits after 0\.3 s"):
        made.group_commit.submit(entry(made, "k", 1)).wait(0.3)
    commit_queue.release_lease(held)
    again = commit_queue.acquire_lease(TABLE, "two")
    assert again is not None and again.fence == held.fence + 1
    commit_queue.release_lease(again)
    made.group_commit.submit(entry(made, "k", 1)).wait()
    assert ids(made, TABLE) == [1]


def test_an_entry_outlives_its_writer_and_a_settled_one_its_use(
    made: Lake, open_lake: Callable[[], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    made.group_commit.submit(entry(made, "left", 1))
    open_lake().group_commit.commit(entry(made, "next", 2))
    assert ids(made, TABLE) == [1, 2]
    commit_queue = Queue(made.catalog)  # type: ignore[arg-type]
    assert commit_queue.status(TABLE, "left") is not None
    monkeypatch.setattr(queue, "KEY_SECONDS", -1.0)
    waiting = made.group_commit.submit(entry(made, "aside", 3))
    held = commit_queue.acquire_lease(TABLE, "me")
    assert held is not None
    commit_queue.release_lease(held)
    assert commit_queue.status(TABLE, "left") is None
    monkeypatch.undo()
    waiting.wait()
    assert ids(made, TABLE) == [1, 2, 3]


def test_a_queue_of_another_version_is_left_alone(made: Lake) -> None:
    from sqlalchemy import text

    made.group_commit.commit(entry(made, "k", 1))
    with made.catalog.engine.begin() as connection:  # type: ignore[attr-defined]
        connection.execute(text("UPDATE thermocline_versions SET version = 2"))
    with pytest.raises(Permanent, match="of version 2, not 1"):
        Queue(made.catalog).status(TABLE, "k")  # type: ignore[arg-type]
