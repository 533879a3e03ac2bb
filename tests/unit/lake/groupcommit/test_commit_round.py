"""Rounds against a plain model: the table ends as if entries were committed one by one."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record

from thermocline.errors import Permanent, ThermoclineError
from thermocline.lake.groupcommit.commit_round import CommitRound, plan_round
from thermocline.lake.groupcommit.entry import (
    CommitEntry,
    PartitionId,
    ReplaceFiles,
    ReplacePartitions,
    partition_id,
)

PARTS = (1, 2, 3)
POISON = 99
"""The schema of entries that the table refuses."""


def file(path: str, part: int) -> DataFile:
    made = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(part),
        record_count=1,
        file_size_in_bytes=1,
    )
    made.spec_id = 0
    return made


def at(part: int) -> PartitionId:
    return (0, (part,))


@dataclass
class BranchModel:
    """A branch in memory: the partition of every file, and at which step rows were deleted."""

    files: dict[str, PartitionId] = field(default_factory=dict)
    deleted: dict[PartitionId, int] = field(default_factory=dict)

    def check_entry(self, entry: CommitEntry) -> ThermoclineError | None:
        return Permanent("refused") if entry.schema == POISON else None

    def paths(self, partitions: frozenset[PartitionId]) -> frozenset[str]:
        return frozenset(path for path, where in self.files.items() if where in partitions)

    def has_deletes_since(self, snapshot: int, partitions: frozenset[PartitionId]) -> bool:
        return any(self.deleted.get(where, 0) > snapshot for where in partitions)

    def apply(self, found: CommitRound) -> None:
        for path in found.removed_paths:
            del self.files[path]
        for each in found.accepted:
            for added in each.files:
                assert added.file_path not in self.files
                self.files[added.file_path] = partition_id(added)


def one_by_one(held: BranchModel, entries: list[CommitEntry]) -> list[bool]:
    """The model: each entry by itself, and whether it landed."""
    landed = []
    for each in entries:
        removed: frozenset[str] = frozenset()
        possible = each.schema != POISON
        if isinstance(each.replaces, ReplacePartitions):
            removed = held.paths(each.replaces.partitions)
        if isinstance(each.replaces, ReplaceFiles):
            removed = each.replaces.paths
            there = all(held.files.get(path) == where for where, path in each.replaces.files)
            stale = held.has_deletes_since(each.replaces.snapshot, each.replaces.partitions)
            possible = possible and there and not stale
        landed.append(possible)
        if possible:
            for path in removed:
                del held.files[path]
            held.files |= {added.file_path: partition_id(added) for added in each.files}
    return landed


@st.composite
def queues(
    draw: st.DrawFn,
) -> tuple[dict[str, PartitionId], dict[PartitionId, int], list[CommitEntry]]:
    """Files that are there, deletes, and entries that are likely to be in each other's way."""
    there = {f"f{n}": draw(st.sampled_from(PARTS)) for n in range(draw(st.integers(0, 5)))}
    deleted = draw(st.dictionaries(st.sampled_from(PARTS).map(at), st.integers(0, 3), max_size=2))
    known, entries = dict(there), []
    for number in range(draw(st.integers(1, 8))):
        parts = draw(st.lists(st.sampled_from(PARTS), max_size=2))
        files = [file(f"e{number}-{n}", part) for n, part in enumerate(parts)]
        kind = draw(st.sampled_from(["append", "append", "partitions", "files"]))
        replaces: ReplacePartitions | ReplaceFiles | None = None
        if kind == "partitions":
            more = draw(st.lists(st.sampled_from(PARTS), max_size=2, min_size=0 if files else 1))
            replaces = ReplacePartitions(frozenset(map(at, [*parts, *more])))
        elif kind == "files" and known:
            chosen = draw(st.lists(st.sampled_from(sorted(known)), min_size=1, max_size=3))
            pairs = frozenset((at(known[path]), path) for path in chosen)
            replaces = ReplaceFiles(pairs, draw(st.integers(0, 3)))
        if not files and replaces is None:
            files = [file(f"e{number}-x", draw(st.sampled_from(PARTS)))]
        schema = draw(st.sampled_from([1] * 7 + [POISON]))
        properties = draw(st.sampled_from([{}, {}, {}, {"bookmark": "1"}, {"bookmark": "2"}]))
        entries.append(
            CommitEntry(f"k{number}", "silver.t", "u", schema, tuple(files), replaces,
                  properties=properties)
        )  # fmt: skip
        known |= {each.file_path: partition_id(each)[1][0] for each in files}
    return {path: at(part) for path, part in there.items()}, deleted, entries


@given(queues())
def test_rounds_do_what_commits_one_by_one_do(
    queue: tuple[dict[str, PartitionId], dict[PartitionId, int], list[CommitEntry]],
) -> None:
    there, deleted, entries = queue
    model, held = BranchModel(dict(there), deleted), BranchModel(dict(there), deleted)
    expected = one_by_one(model, entries)
    waiting, outcome = list(entries), {}
    while waiting:
        found = plan_round(held, waiting)
        settled = [*found.accepted, *(entry for entry, _ in found.rejected)]
        assert settled, "a round always gets on"
        assert sorted(e.key for e in settled) == [e.key for e in waiting[: len(settled)]]
        held.apply(found)
        for entry in found.accepted:
            assert entry.paths <= held.files.keys(), "its rows are in the snapshot it is told of"
            assert found.properties == entry.properties
        outcome |= {entry.key: True for entry in found.accepted}
        outcome |= {entry.key: False for entry, _ in found.rejected}
        waiting = waiting[len(settled) :]
    assert [outcome[entry.key] for entry in entries] == expected
    assert held.files == model.files


def entry(
    key: str, *files: DataFile, replaces: ReplacePartitions | ReplaceFiles | None = None
) -> CommitEntry:
    return CommitEntry(key, "silver.t", "u", 1, files, replaces)


def keys(found: CommitRound) -> list[str]:
    return [each.key for each in found.accepted]


def test_appends_and_the_overwriting_of_other_partitions_share_a_round() -> None:
    new = file("b", 2)
    queue = [
        entry("one", file("a", 1)),
        entry("two", new, replaces=ReplacePartitions.of([new])),
        entry("three", file("c", 2)),
        entry("four", file("d", 3), replaces=ReplacePartitions(frozenset({at(3)}))),
    ]
    found = plan_round(BranchModel({"old": at(2), "other": at(1)}), queue)
    assert (keys(found), found.removed_paths) == (["one", "two", "three", "four"], {"old"})


def test_the_second_overwriting_of_a_partition_waits_and_nobody_overtakes_it() -> None:
    first, second = file("a", 1), file("b", 1)
    queue = [
        entry("first", first, replaces=ReplacePartitions.of([first])),
        entry("second", second, replaces=ReplacePartitions.of([second])),
        entry("third", file("c", 1)),
    ]
    held = BranchModel()
    assert keys(plan_round(held, queue)) == ["first"]
    held.apply(plan_round(held, queue[:1]))
    after = plan_round(held, queue[1:])
    assert (keys(after), after.removed_paths) == (["second", "third"], {"a"})


def test_one_that_cannot_be_committed_fails_alone() -> None:
    gone = ReplaceFiles(frozenset({(at(1), "gone")}), 0)
    queue = [entry("a", file("a", 1)), entry("b", file("b", 1), replaces=gone),
             entry("c", file("c", 1))]  # fmt: skip
    found = plan_round(BranchModel(), queue)
    assert keys(found) == ["a", "c"]
    [(failed, error)] = found.rejected
    assert (failed.key, error.details) == ("b", {"table": "silver.t", "key": "b"})
    assert "1 of the files that it replaces are gone, gone first" in error.cause
