"""Count the rows that a snapshot added, changed and removed, from its summary alone.

A commit that updates rows removes the old versions and adds the new ones, together with unchanged
rows of rewritten files. So the summary records the intended counts: by Spark for its MERGE, and by
this module for commits of this process. Replaced partitions and tables have no updates: their rows
are removed, and others are added.
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
    """Numbers of added, changed and removed rows."""

    added: int = 0
    changed: int = 0
    removed: int = 0

    def as_properties(self) -> dict[str, str]:
        """Return the counts as properties of a snapshot."""
        counts = (self.added, self.changed, self.removed)
        return {_OWN_PREFIX + kind: str(count) for kind, count in zip(_KINDS, counts, strict=True)}


def count_rows(snapshot: Snapshot) -> RowCounts:
    """Count the rows that one snapshot added, changed and removed."""
    for prefix in (_OWN_PREFIX, _SPARK_PREFIX):
        if prefix + _KINDS[0] in snapshot.summary:
            return RowCounts(*(snapshot.count(prefix + kind) for kind in _KINDS))
    if snapshot.operation == "replace":
        return RowCounts()
    removed = snapshot.count("deleted-records") + snapshot.count("added-position-deletes")
    return RowCounts(snapshot.count("added-records"), 0, removed)


def sum_counts(snapshots: Iterable[Snapshot]) -> RowCounts:
    """Sum the row counts of several snapshots."""
    counts = [count_rows(snapshot) for snapshot in snapshots]
    return RowCounts(
        sum(each.added for each in counts),
        sum(each.changed for each in counts),
        sum(each.removed for each in counts),
    )


def count_merge(actions: Mapping[str, int], found: int) -> RowCounts:
    """Count the rows of a merge, given how many of its updates and deletes matched a row.

    An update without a matching row is an insert.
    """
    deleted = min(actions.get("delete", 0), found)
    written = actions.get("insert", 0) + actions.get("update", 0)
    return RowCounts(written - (found - deleted), found - deleted, deleted)
