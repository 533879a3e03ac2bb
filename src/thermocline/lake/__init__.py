"""The Iceberg tables: catalog, drafts and publish, snapshots, branches and tags, changes."""

from thermocline.lake.commit_failures import MainMoved
from thermocline.lake.draft import Draft, PublishResult
from thermocline.lake.lake import Lake
from thermocline.lake.metadata import MAIN, Ref, Snapshot, TableState

__all__ = ["MAIN", "Draft", "Lake", "MainMoved", "PublishResult", "Ref", "Snapshot", "TableState"]
