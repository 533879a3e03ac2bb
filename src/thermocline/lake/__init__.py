"""The Iceberg tables: catalog, drafts and publish, snapshots, branches and tags, changes."""

from thermocline.lake.draft import Draft, Published
from thermocline.lake.lake import Lake
from thermocline.lake.metadata import MAIN, Ref, Snapshot, TableState
from thermocline.lake.outcomes import MainMoved

__all__ = ["MAIN", "Draft", "Lake", "MainMoved", "Published", "Ref", "Snapshot", "TableState"]
