"""Choose the waiting entries that go into one snapshot, and the files that it removes.

The table ends as if the entries had been committed one by one, in queue order. A round takes
entries from the front of the queue until one conflicts with an earlier entry of the round; that
entry begins the next round. So the snapshot that is reported to a writer contains its rows, and an
entry is validated against committed data only.
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
    """The current contents of a branch, as far as planning a round needs them."""

    def check_entry(self, entry: CommitEntry) -> ThermoclineError | None:
        """Return the error for an entry that does not fit the table's current layout, or None."""

    def paths(self, partitions: frozenset[PartitionId]) -> frozenset[str]:
        """Return the paths of the data files in these partitions."""

    def has_deletes_since(self, snapshot: int, partitions: frozenset[PartitionId]) -> bool:
        """Whether rows of these partitions may have been deleted after a snapshot."""


@dataclass
class CommitRound:
    """The combined effect of the entries of one round."""

    accepted: list[CommitEntry] = field(default_factory=list)
    rejected: list[tuple[CommitEntry, ThermoclineError]] = field(default_factory=list)
    properties: dict[str, str] = field(default_factory=dict)
    removed_paths: set[str] = field(default_factory=set)
    removed_partitions: set[PartitionId] = field(default_factory=set)
    added_paths: set[str] = field(default_factory=set)
    added_partitions: set[PartitionId] = field(default_factory=set)

    def conflicts_with(self, entry: CommitEntry) -> bool:
        """Whether an entry conflicts with an earlier one, so that it belongs to the next round."""
        if self.accepted and self.properties != entry.properties:
            return True
        match entry.replaces:
            case ReplacePartitions(partitions):
                return not partitions.isdisjoint(self.added_partitions | self.removed_partitions)
            case ReplaceFiles() as files:
                return not (
                    files.partitions.isdisjoint(self.removed_partitions)
                    and files.paths.isdisjoint(self.added_paths)
                )
        return False

    def add(self, entry: CommitEntry, removed: frozenset[str]) -> None:
        """Accept an entry, with the paths of the files that it removes."""
        self.accepted.append(entry)
        self.properties = dict(entry.properties)
        self.added_paths |= entry.paths
        self.added_partitions |= entry.partitions
        self.removed_paths |= removed
        if entry.replaces is not None:
            self.removed_partitions |= entry.replaces.partitions


def plan_round(live: BranchContents, entries: Sequence[CommitEntry]) -> CommitRound:
    """Plan the next round from the entries of one branch, in queue order."""
    planned = CommitRound()
    for entry in entries:
        if error := live.check_entry(entry):
            planned.rejected.append((entry, error))
            continue
        if planned.conflicts_with(entry):
            break
        try:
            planned.add(entry, _files_to_remove(live, entry))
        except CommitConflict as conflict:
            planned.rejected.append((entry, conflict))
    return planned


def _files_to_remove(live: BranchContents, entry: CommitEntry) -> frozenset[str]:
    match entry.replaces:
        case ReplacePartitions(partitions):
            return live.paths(partitions)
        case ReplaceFiles() as files:
            if gone := files.paths - live.paths(files.partitions):
                raise _conflict(
                    entry, f"{len(gone)} of the files that it replaces are gone, {min(gone)} first"
                )
            if live.has_deletes_since(files.snapshot, files.partitions):
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
