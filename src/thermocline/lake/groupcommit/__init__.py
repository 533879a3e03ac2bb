"""Group commit: many writers append to one table, and waiting entries share a snapshot.

A writer submits finished data files with a key (`entry`). On a SQL catalog the entry goes into a
queue in the catalog's database (`queue`). The writer that holds the table's lease commits for all
waiting writers (`committer`): it plans a round of compatible entries (`commit_round`) and writes it
as one snapshot (`round_snapshot`). A REST catalog gives us no database, so each writer commits its
own entry and retries on conflict (`optimistic_commit`). Either way a key lands once.
"""

from thermocline.lake.groupcommit.entry import CommitEntry, ReplaceFiles, ReplacePartitions
from thermocline.lake.groupcommit.submission import GroupCommit, Ticket

__all__ = ["CommitEntry", "GroupCommit", "ReplaceFiles", "ReplacePartitions", "Ticket"]
