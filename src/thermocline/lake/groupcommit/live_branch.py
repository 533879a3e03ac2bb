"""What a branch of a table holds now, read no further than the question needs."""

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
from thermocline.lake.manifest_pruning import Manifests, is_live
from thermocline.lake.metadata import MAIN


class LiveBranch:
    """A branch as it was when the table was loaded."""

    def __init__(self, table: Table, branch: str) -> None:
        self._table = table
        self._branch = branch
        self.head = table.metadata.snapshot_by_name(branch)
        manifests = self.head.manifests(table.io) if self.head else []
        # One that only tells what an earlier snapshot deleted has done its work.
        self.manifests = [m for m in manifests if is_live(m)]
        self._judged = Manifests(table)
        self._read: dict[str, list[ManifestEntry]] = {}

    def entries(self, manifest: ManifestFile) -> list[ManifestEntry]:
        """The live files of a manifest; it is read once."""
        found = self._read.get(manifest.manifest_path)
        if found is None:
            found = manifest.fetch_manifest_entry(self._table.io, discard_deleted=True)
            self._read[manifest.manifest_path] = found
        return found

    def may_hold(self, manifest: ManifestFile, places: frozenset[PartitionId]) -> bool:
        """Whether a manifest can have files in some partitions, by its summary alone."""
        wanted = [values for number, values in places if number == manifest.partition_spec_id]
        return bool(wanted) and self._judged.may_hold(manifest, wanted)

    def paths(self, places: frozenset[PartitionId]) -> frozenset[str]:
        return frozenset(
            entry.data_file.file_path
            for manifest in self.manifests
            if manifest.content == ManifestContent.DATA and self.may_hold(manifest, places)
            for entry in self.entries(manifest)
            if partition_id(entry.data_file) in places
        )

    def deletes_since(self, snapshot: int, places: frozenset[PartitionId]) -> bool:
        seen = self._table.metadata.snapshot_by_id(snapshot)
        if seen is None:
            return True  # it has expired: nobody can tell
        since = seen.sequence_number or 0
        return any(
            (entry.sequence_number or 0) > since
            # One without a partition holds for all of them.
            and (partition_id(entry.data_file) in places or not len(entry.data_file.partition))
            for manifest in self.manifests
            if manifest.content == ManifestContent.DELETES and manifest.sequence_number > since
            for entry in self.entries(manifest)
        )

    def refusal(self, entry: CommitEntry) -> ThermoclineError | None:
        metadata = self._table.metadata
        if entry.uuid != str(metadata.table_uuid):
            return _stale_entry(entry, "the table was dropped and made anew")
        ref = metadata.refs.get(self._branch)
        if ref is None and self._branch != MAIN:
            return NotFound(
                f"{entry.table} has no branch {self._branch}.",
                "Make the branch, then submit again.",
                key=entry.key,
            )
        if ref is not None and ref.snapshot_ref_type != SnapshotRefType.BRANCH:
            return Permanent(
                f"{self._branch} of {entry.table} is a tag, which nobody can write to.",
                "Name a branch.",
                key=entry.key,
            )
        specs = {number for number, _ in entry.places}
        if specs - metadata.specs().keys():
            return _stale_entry(entry, "its files are of a partitioning that the table never had")
        if isinstance(entry.replaces, ReplacePartitions) and (
            {number for number, _ in entry.replaces.places} - {metadata.default_spec_id}
        ):
            return _stale_entry(entry, "the table is partitioned in another way now")
        return self._schema_refusal(entry)

    def _schema_refusal(self, entry: CommitEntry) -> ThermoclineError | None:
        written = next(
            (s for s in self._table.metadata.schemas if s.schema_id == entry.schema), None
        )
        if written is None:
            return _stale_entry(entry, "its files are of a schema that the table never had")
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
