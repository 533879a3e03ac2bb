"""Entries that make no sense are refused before anybody waits for them."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.lake.groupcommit.test_commit_round import at, file

from thermocline.errors import BadInput
from thermocline.lake import bookmark
from thermocline.lake.groupcommit.entry import (
    CommitEntry,
    ReplaceFiles,
    ReplacePartitions,
)

GOOD: dict[str, Any] = {
    "key": "k", "table": "silver.t", "uuid": "u", "schema": 1, "files": (file("a", 1),),
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"key": ""}, "not a key"),
        ({"key": "a,b"}, "not a key"),
        ({"key": "k" * 129}, "not a key"),
        ({"table": "t"}, "not a table name"),
        ({"branch": "a b"}, "not a name for a branch"),
        ({"files": ()}, "changes nothing"),
        ({"files": (file("a", 1), file("a", 2))}, "a file twice"),
        ({"replaces": ReplacePartitions(frozenset({at(2)}))}, "outside the partitions"),
        ({"properties": {bookmark.KEYS: "x"}}, "sets thermocline.keys itself"),
    ],
)
def test_what_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        CommitEntry(**GOOD | changed)


def test_what_is_allowed() -> None:
    CommitEntry(**GOOD | {"key": "job/7:part-1.2_a", "branch": "run-X"})
    CommitEntry(**GOOD | {"files": (), "replaces": ReplacePartitions(frozenset({at(2)}))})
    CommitEntry(**GOOD | {"replaces": ReplaceFiles(frozenset({(at(2), "b")}), 5)})


def test_a_summary_names_the_keys_that_have_room_and_counts_the_others() -> None:
    few = bookmark.entry_key_properties(["a", "b"])
    assert few == {bookmark.KEYS: "a,b"}
    assert bookmark.read_entry_keys(few) == ["a", "b"]
    many = bookmark.entry_key_properties(f"{n:0100}" for n in range(500))
    assert len(many[bookmark.KEYS]) < 4000
    assert len(bookmark.read_entry_keys(many)) + int(many[bookmark.MORE_KEYS]) == 500
    assert bookmark.read_entry_keys({}) == []
