"""Group commit: many writers on one table, and one snapshot for all that wait.

A writer hands over finished data files with a key (`entry`). On a SQL catalog the entry goes into
a queue in the catalog's own database (`queue`), and whoever holds the table's lease commits for all
that wait (`committer`): what they ask for is joined (`commit_round`) and written as one snapshot
(`round_snapshot`). A REST catalog has no database for us, so there each writer commits for itself and
tries again (`optimistic_commit`). Either way a key lands once.
"""

from thermocline.lake.groupcommit.entry import CommitEntry, ReplaceFiles, ReplacePartitions
from thermocline.lake.groupcommit.submission import GroupCommit, Ticket

__all__ = ["CommitEntry", "GroupCommit", "ReplaceFiles", "ReplacePartitions", "Ticket"]
