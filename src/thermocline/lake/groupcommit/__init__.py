"""Group commit: many writers on one table, and one snapshot for all that wait.

A writer hands over finished data files with a key (`entry`). On a SQL catalog the entry goes into
a queue in the catalog's own database (`queue`), and whoever holds the table's lease commits for all
that wait (`committer`): what they ask for is joined (`combine`) and written as one snapshot
(`snapshot`). A REST catalog has no database for us, so there each writer commits for itself and
tries again (`optimistic`). Either way a key lands once.
"""

from thermocline.lake.groupcommit.commits import Commits, Ticket
from thermocline.lake.groupcommit.entry import Entry, Files, Partitions

__all__ = ["Commits", "Entry", "Files", "Partitions", "Ticket"]
