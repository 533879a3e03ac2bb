"""Write the snapshot of a round: its manifests are not visible until the commit.

A PyIceberg snapshot either appends or overwrites, under one partition spec, and PyIceberg copies
the table's whole metadata at every step. A round does both at once, so this module lays out its
manifests with PyIceberg's writers and its merging of small manifests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    ManifestWriter,
    write_manifest,
    write_manifest_list,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table import Table, TableProperties
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import (
    Operation,
    Snapshot,
    SnapshotSummaryCollector,
    Summary,
    update_snapshot_summaries,
)
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.utils.properties import property_as_bool, property_as_int

from thermocline.lake import pyiceberg_internals
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.bookmark import entry_key_properties
from thermocline.lake.groupcommit.commit_round import CommitRound
from thermocline.lake.groupcommit.live_branch import LiveBranch
from thermocline.lake.monotonic_catalog import next_time
from thermocline.lake.snapshot_producer import WrittenSnapshot


@dataclass(frozen=True)
class PreparedSnapshot(WrittenSnapshot):
    """A written snapshot, and the change that commits it."""

    change: TableChange


def prepare_snapshot(
    table: Table, branch: str, live: LiveBranch, planned: CommitRound
) -> PreparedSnapshot:
    """Write the manifests of a round's snapshot on top of the branch."""
    return _RoundWriter(table, branch, live, planned).prepare()


class _RoundWriter:
    """Writes the manifests of a round, as the producer that PyIceberg's merging needs."""

    def __init__(self, table: Table, branch: str, live: LiveBranch, planned: CommitRound) -> None:
        self._table = table
        self._metadata = table.metadata
        self._branch = branch
        self._live = live
        self._round = planned
        self._commit = uuid4()
        self._numbers = count()
        self._written: list[str] = []
        self._deleted: list[DataFile] = []
        self.snapshot_id = table.metadata.new_snapshot_id()

    def prepare(self) -> PreparedSnapshot:
        manifests = self._merge([*self._write_added(), *self._list_kept()])
        snapshot = self._build_snapshot(manifests)
        ref = self._metadata.refs.get(self._branch)
        parent = None if ref is None else ref.snapshot_id
        change = TableChange(
            ".".join(self._table.name()),
            (AssertRefSnapshotId(ref=self._branch, snapshot_id=parent),),
            (
                AddSnapshotUpdate(snapshot=snapshot),
                _set_ref_update(self._branch, self.snapshot_id, ref),
            ),
        )
        return PreparedSnapshot(snapshot, self._table, tuple(self._written), change)

    def spec(self, number: int) -> PartitionSpec:
        return self._metadata.specs()[number]

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return write_manifest(
            self._metadata.format_version,
            spec,
            self._metadata.schema(),
            self._table.io.new_output(
                self._new_location(f"{self._commit}-m{next(self._numbers)}.avro")
            ),
            self.snapshot_id,
            self._compression,
        )

    def fetch_manifest_entry(
        self, manifest: ManifestFile, discard_deleted: bool = True
    ) -> list[ManifestEntry]:
        return manifest.fetch_manifest_entry(self._table.io, discard_deleted)

    @property
    def _compression(self) -> Any:
        default = TableProperties.WRITE_AVRO_COMPRESSION_DEFAULT
        return self._metadata.properties.get(TableProperties.WRITE_AVRO_COMPRESSION, default)

    def _new_location(self, name: str) -> str:
        self._written.append(self._table.location_provider().new_metadata_location(name))
        return self._written[-1]

    def _write_added(self) -> Iterator[ManifestFile]:
        """Write a manifest of the new files of each partition spec."""
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for entry in self._round.accepted:
            for file in entry.files:
                by_spec[file.spec_id].append(file)
        for number, files in by_spec.items():
            with self.new_manifest_writer(self.spec(number)) as writer:
                for file in files:
                    writer.add(ManifestEntry.from_args(data_file=file))
            yield writer.to_manifest_file()

    def _list_kept(self) -> Iterator[ManifestFile]:
        """List the branch's manifests; one with removed files is rewritten."""
        partitions = frozenset(self._round.removed_partitions)
        for manifest in self._live.manifests:
            if manifest.content == ManifestContent.DATA and self._live.may_hold(
                manifest, partitions
            ):
                yield self._drop_removed(manifest)
            else:
                yield manifest

    def _drop_removed(self, manifest: ManifestFile) -> ManifestFile:
        entries = self._live.entries(manifest)
        gone = [e.data_file.file_path in self._round.removed_paths for e in entries]
        if not any(gone):
            return manifest
        with self.new_manifest_writer(self.spec(manifest.partition_spec_id)) as writer:
            for entry, removed in zip(entries, gone, strict=True):
                if removed:
                    self._deleted.append(entry.data_file)
                    writer.delete(entry)
                else:
                    writer.existing(entry)
        return writer.to_manifest_file()

    def _merge(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Merge small manifests as the table's properties configure, as Iceberg's appends do."""
        properties = self._metadata.properties
        names = TableProperties
        # Iceberg's own default is to merge; PyIceberg's is not to.
        enabled = property_as_bool(properties, names.MANIFEST_MERGE_ENABLED, True)
        size, min_count = names.MANIFEST_TARGET_SIZE_BYTES, names.MANIFEST_MIN_MERGE_COUNT
        manager: Any = pyiceberg_internals.ManifestMergeManager(
            property_as_int(properties, size, names.MANIFEST_TARGET_SIZE_BYTES_DEFAULT) or 0,
            property_as_int(properties, min_count, names.MANIFEST_MIN_MERGE_COUNT_DEFAULT) or 0,
            enabled,
            self,  # type: ignore[arg-type]
        )
        data = [m for m in manifests if m.content == ManifestContent.DATA]
        deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
        return [*manager.merge_manifests(data), *deletes]

    def _build_snapshot(self, manifests: list[ManifestFile]) -> Snapshot:
        parent = None if self._live.head is None else self._live.head.snapshot_id
        sequence = self._metadata.next_sequence_number()
        location = self._new_location(f"snap-{self.snapshot_id}-0-{self._commit}.avro")
        with write_manifest_list(
            self._metadata.format_version,
            self._table.io.new_output(location),
            self.snapshot_id,
            parent,
            sequence,
            self._compression,
        ) as writer:
            writer.add_manifests(manifests)
        return Snapshot(
            snapshot_id=self.snapshot_id,
            parent_snapshot_id=parent,
            manifest_list=location,
            timestamp_ms=next_time(self._metadata),
            sequence_number=sequence,
            summary=self._build_summary(),
            schema_id=self._metadata.current_schema_id,
        )

    def _build_summary(self) -> Summary:
        schema, specs = self._metadata.schema(), self._metadata.specs()
        collected = SnapshotSummaryCollector()
        for entry in self._round.accepted:
            for file in entry.files:
                collected.add_file(file, schema, specs[file.spec_id])
        for file in self._deleted:
            collected.remove_file(file, schema, specs[file.spec_id])
        operation = Operation.OVERWRITE if self._deleted else Operation.APPEND
        keys = entry_key_properties(entry.key for entry in self._round.accepted)
        before = self._live.head.summary if self._live.head else None
        return update_snapshot_summaries(
            Summary(operation, **collected.build(), **self._round.properties, **keys), before
        )


def _set_ref_update(name: str, snapshot: int, was: SnapshotRef | None) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name,
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot,
        max_ref_age_ms=was.max_ref_age_ms if was else None,
        max_snapshot_age_ms=was.max_snapshot_age_ms if was else None,
        min_snapshots_to_keep=was.min_snapshots_to_keep if was else None,
    )
