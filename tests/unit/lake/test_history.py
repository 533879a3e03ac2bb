"""A long history is gone through once, and only as far as it is needed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from thermocline.lake import bookmark as bookmarks
from thermocline.lake.metadata import TableState

LENGTH = 400


class Counted(list[Any]):
    """A list that knows how many of its elements were looked at."""

    looked = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.looked += 1
            yield each


def long_history(length: int = LENGTH) -> dict[str, Any]:
    snapshots = [
        {
            "snapshot-id": number,
            "parent-snapshot-id": number - 1 if number > 1 else None,
            "sequence-number": number,
            "timestamp-ms": 1_000 * number,
            "summary": {"operation": "append", bookmarks.COMMIT: f"c{number}"},
        }
        for number in range(1, length + 1)
    ]
    # Main came to a snapshot half a second after it was made; to one of them twice.
    log = [{"snapshot-id": n, "timestamp-ms": 1_000 * n + 500} for n in range(1, length + 1)]
    log.insert(50, {"snapshot-id": 7, "timestamp-ms": 50_700})
    return {
        "snapshots": snapshots,
        "snapshot-log": Counted(log),
        "refs": {
            "main": {"type": "branch", "snapshot-id": length},
            "q1": {"type": "tag", "snapshot-id": 7},
            "audit": {"type": "tag", "snapshot-id": 7},
        },
    }


def test_the_log_is_gone_through_once() -> None:
    raw = long_history()
    state = TableState("silver.t", "at", raw)
    ids = [snapshot.id for snapshot in state.ancestry(state.head())]
    assert ids == list(range(LENGTH, 0, -1))
    assert [state.published_at(n).timestamp() for n in ids] == [n + 0.5 for n in ids]
    assert state.names == {LENGTH: ("main",), 7: ("audit", "q1")}
    assert raw["snapshot-log"].looked == LENGTH + 1


def test_a_commit_is_looked_for_among_the_newest_first() -> None:
    raw = long_history()
    for old in raw["snapshots"][:-3]:
        del old["summary"], old["timestamp-ms"]  # whoever reads these fails
    state = TableState("silver.t", "at", raw)
    assert [bookmarks.find_commit(state, f"c{n}") for n in (LENGTH, LENGTH - 2)] == [
        state.snapshots[LENGTH],
        state.snapshots[LENGTH - 2],
    ]
    with pytest.raises(KeyError):
        bookmarks.find_commit(state, "c1")


def test_a_commit_that_did_not_land_is_not_found() -> None:
    state = TableState("silver.t", "at", long_history(5))
    assert bookmarks.find_commit(state, "c9") is None
    assert bookmarks.find_commit(TableState("silver.t", "at", {}), "c1") is None
