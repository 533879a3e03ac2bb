"""Which of the waiting entries go into one snapshot, and what that snapshot removes.

The table ends as if the entries had been committed one by one, in the order of the queue. A round
takes them from the front for as long as none touches what an earlier one of the same round did;
the first that does begins the next round. So every entry's rows are in the snapshot that its writer
is told of, and whether an entry is possible is judged by what is committed, never by what may be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from thermocline.errors import CommitConflict, ThermoclineError
from thermocline.lake.groupcommit.entry import (
    CommitEntry,
    PartitionId,
    ReplaceFiles,
    ReplacePartitions,
)


class BranchContents(Protocol):
    """What a branch holds now."""

    def refusal(self, entry: CommitEntry) -> ThermoclineError | None:
        """Why files that were written for another shape of the table cannot be added."""

    def paths(self, places: frozenset[PartitionId]) -> frozenset[str]:
        """The data files in some partitions."""

    def deletes_since(self, snapshot: int, places: frozenset[PartitionId]) -> bool:
        """Whether rows of these partitions may have been deleted since a snapshot was read."""


@dataclass
class CommitRound:
    """What the entries of one round do together."""

    landing: list[CommitEntry] = field(default_factory=list)
    failing: list[tuple[CommitEntry, ThermoclineError]] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    removed_from: set[PartitionId] = field(default_factory=set)
    added: set[str] = field(default_factory=set)
    added_to: set[PartitionId] = field(default_factory=set)

    def clashes(self, entry: CommitEntry) -> bool:
        """Whether an entry touches what is in the round, so that it has to wait for the next."""
        if self.landing and self.properties != entry.properties:
            return True
        match entry.replaces:
            case ReplacePartitions(places):
                return not places.isdisjoint(self.added_to | self.removed_from)
            case ReplaceFiles() as files:
                return not (
                    files.places.isdisjoint(self.removed_from)
                    and files.paths.isdisjoint(self.added)
                )
        return False

    def take(self, entry: CommitEntry, removed: frozenset[str]) -> None:
        """Have an entry in the round, with the files that it removes."""
        self.landing.append(entry)
        self.properties = dict(entry.properties)
        self.added |= entry.paths
        self.added_to |= entry.places
        self.removed |= removed
        if entry.replaces is not None:
            self.removed_from |= entry.replaces.places


def combine(live: BranchContents, entries: Sequence[CommitEntry]) -> CommitRound:
    """The next round: entries of one branch, from the front of the queue."""
    found = CommitRound()
    for entry in entries:
        if error := live.refusal(entry):
            found.failing.append((entry, error))
            continue
        if found.clashes(entry):
            break
        try:
            found.take(entry, _files_to_remove(live, entry))
        except CommitConflict as conflict:
            found.failing.append((entry, conflict))
    return found


def _files_to_remove(live: BranchContents, entry: CommitEntry) -> frozenset[str]:
    match entry.replaces:
        case ReplacePartitions(places):
            return live.paths(places)
        case ReplaceFiles() as files:
            if gone := files.paths - live.paths(files.places):
                raise _conflict(
                    entry, f"{len(gone)} of the files that it replaces are gone, {min(gone)} first"
                )
            if live.deletes_since(files.seen, files.places):
                raise _conflict(entry, "rows of the files that it replaces were deleted meanwhile")
            return files.paths
    return frozenset()


def _conflict(entry: CommitEntry, reason: str) -> CommitConflict:
    return CommitConflict(
        f"The entry {entry.key} for {entry.table} cannot be committed: {reason}.",
        "Nothing of it landed. Read the table as it is now, and write the files again.",
        table=entry.table,
        key=entry.key,
    )
