"""The current contents of a table's branch. Manifests are opened only if needed."""

from __future__ import annotations

from pyiceberg.manifest import ManifestContent, ManifestEntry, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType

from thermocline.errors import NotFound, Permanent, ThermoclineError
from thermocline.lake.groupcommit.entry import (
    CommitEntry,
    PartitionId,
    ReplacePartitions,
    partition_id,
)
from thermocline.lake.manifest_pruning import ManifestPruner, is_live
from thermocline.lake.metadata import MAIN


class LiveBranch:
    """A branch at the moment when the table was loaded."""

    def __init__(self, table: Table, branch: str) -> None:
        self._table = table
        self._branch = branch
        self.head = table.metadata.snapshot_by_name(branch)
        manifests = self.head.manifests(table.io) if self.head else []
        # A manifest that only lists files deleted by an earlier snapshot is not needed any more.
        self.manifests = [m for m in manifests if is_live(m)]
        self._pruner = ManifestPruner(table)
        self._read: dict[str, list[ManifestEntry]] = {}

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """Return the live entries of a manifest, which is read once."""
        found = self._read.get(manifest.manifest_path)
        if found is None:
            found = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            self._read[manifest.manifest_path] = found
        return found

    def may_hold(self, manifest: ManifestFile, partitions: frozenset[PartitionId]) -> bool:
        """Whether a manifest may list files of these partitions, by its summary alone."""
        wanted = [values for number, values in partitions if number == manifest.partition_spec_id]
        return bool(wanted) and self._pruner.may_hold(manifest, wanted)

    def paths(self, partitions: frozenset[PartitionId]) -> frozenset[str]:
        """Return the paths of the data files in these partitions."""
        return frozenset(
            entry.data_file.file_path
            for manifest in self.manifests
            if manifest.content == ManifestContent.DATA and self.may_hold(manifest, partitions)
            for entry in self.entries(manifest)
            if partition_id(entry.data_file) in partitions
        )

    def has_deletes_since(self, snapshot: int, partitions: frozenset[PartitionId]) -> bool:
        """Whether rows of these partitions may have been deleted after a snapshot."""
        read_at = self._table.metadata.snapshot_by_id(snapshot)
        if read_at is None:
            return True  # it has expired, so it is not known
        since = read_at.sequence_number or 0
        return any(
            (entry.sequence_number or 0) > since
            # A delete file without a partition applies to all partitions.
            and (partition_id(entry.data_file) in partitions or not len(entry.data_file.partition))
            for manifest in self.manifests
            if manifest.content == ManifestContent.DELETES and manifest.sequence_number > since
            for entry in self.entries(manifest)
        )

    def check_entry(self, entry: CommitEntry) -> ThermoclineError | None:
        """Return the error for an entry that does not fit the table's current layout, or None."""
        metadata = self._table.metadata
        if entry.uuid != str(metadata.table_uuid):
            return _stale_entry(entry, "the table was dropped and created again")
        ref = metadata.refs.get(self._branch)
        if ref is None and self._branch != MAIN:
            return NotFound(
                f"{entry.table} has no branch {self._branch}.",
                "Make the branch, then submit again.",
                key=entry.key,
            )
        if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            return Permanent(
                f"{self._branch} of {entry.table} is a tag, which cannot be written to.",
                "Name a branch.",
                key=entry.key,
            )
        specs = {number for number, _ in entry.partitions}
        if specs - metadata.specs().keys():
            return _stale_entry(entry, "its files have a partitioning that the table never had")
        if isinstance(entry.replaces, ReplacePartitions) and (
            {number for number, _ in entry.replaces.partitions} - {metadata.default_spec_id}
        ):
            return _stale_entry(entry, "the table is partitioned in another way now")
        return self._check_schema(entry)

    def _check_schema(self, entry: CommitEntry) -> ThermoclineError | None:
        written = next(
            (s for s in self._table.metadata.schemas if s.schema_id == entry.schema), None
        )
        if written is None:
            return _stale_entry(entry, "its files have a schema that the table never had")
        filled = {field.field_id for field in written.fields if field.required}
        needed = [field for field in self._table.schema().fields if field.required]
        if empty := [field.name for field in needed if field.field_id not in filled]:
            return _stale_entry(entry, f"the schema moved, and now requires {', '.join(empty)}")
        return None


def _stale_entry(entry: CommitEntry, reason: str) -> Permanent:
    return Permanent(
        f"The entry {entry.key} for {entry.table} cannot be committed: {reason}.",
        "Nothing of it landed. Write the files again for the table as it is now.",
        table=entry.table,
        key=entry.key,
    )
