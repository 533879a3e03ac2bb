"""How many rows of a table a snapshot added, changed and removed, from its summary alone.

A commit that updates rows takes the old ones out and puts the new ones in, and where whole files
are rewritten also all others that are in them. What was meant is noted in the summary: by Spark
for its MERGE, and here for what this process writes. Partitions and tables that are replaced as a
whole have no updates: their rows are removed, and others are added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.lake.bookmark import PREFIX

if TYPE_CHECKING:
    from thermocline.lake.metadata import Snapshot

_OWN_PREFIX = PREFIX + "rows-"
_SPARK_PREFIX = "spark.merge-into.num-target-rows-"
_KINDS = ("inserted", "updated", "deleted")


@dataclass(frozen=True)
class RowCounts:
    """Rows by what happened to them."""

    added: int = 0
    changed: int = 0
    removed: int = 0

    def notes(self) -> dict[str, str]:
        """The same as properties of a snapshot."""
        counts = (self.added, self.changed, self.removed)
        return {_OWN_PREFIX + kind: str(count) for kind, count in zip(_KINDS, counts, strict=True)}


def count_rows(snapshot: Snapshot) -> RowCounts:
    """What one snapshot did to its table's rows."""
    for prefix in (_OWN_PREFIX, _SPARK_PREFIX):
        if prefix + _KINDS[0] in snapshot.summary:
            return RowCounts(*(snapshot.count(prefix + kind) for kind in _KINDS))
    if snapshot.operation == "replace":
        return RowCounts()
    removed = snapshot.count("deleted-records") + snapshot.count("added-position-deletes")
    return RowCounts(snapshot.count("added-records"), 0, removed)


def sum_counts(snapshots: Iterable[Snapshot]) -> RowCounts:
    """What several snapshots did, one after the other."""
    every = [count_rows(snapshot) for snapshot in snapshots]
    return RowCounts(
        sum(each.added for each in every),
        sum(each.changed for each in every),
        sum(each.removed for each in every),
    )


def count_merge(actions: Mapping[str, int], found: int) -> RowCounts:
    """The counts of a merge, of which so many rows that were to be changed or deleted were found.

    An update of a row that is not there inserts it.
    """
    deleted = min(actions.get("delete", 0), found)
    coming = actions.get("insert", 0) + actions.get("update", 0)
    return RowCounts(coming - (found - deleted), found - deleted, deleted)
