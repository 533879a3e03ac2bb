"""One snapshot for a round: its manifests are written, and nobody sees them until the commit.

PyIceberg makes snapshots that append or that overwrite, under one partition spec, and copies the
table's whole metadata at every step. A round does both at once, so its manifests are arranged here,
with PyIceberg's writers and its way of merging small ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
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
from pyiceberg.table.update.snapshot import _ManifestMergeManager
from pyiceberg.utils.properties import property_as_bool, property_as_int

from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.bookmark import keys_properties
from thermocline.lake.groupcommit.commit_round import CommitRound
from thermocline.lake.groupcommit.live_branch import LiveBranch
from thermocline.lake.monotonic_catalog import next_time


@dataclass
class PreparedSnapshot:
    """A snapshot that waits for its commit."""

    id: int
    change: TableChange
    _table: Table
    _written: list[str] = field(default_factory=list)

    def discard(self) -> None:
        """Remove its files. Only for a commit that certainly did not land."""
        for path in self._written:
            with suppress(OSError):
                self._table.io.delete(path)


def prepare_snapshot(
    table: Table, branch: str, live: LiveBranch, found: CommitRound
) -> PreparedSnapshot:
    """Write the manifests of a round's snapshot on top of the branch."""
    return _SnapshotProducer(table, branch, live, found).prepared()


class _SnapshotProducer:
    """Also what PyIceberg's merging of manifests asks of a snapshot under way."""

    def __init__(self, table: Table, branch: str, live: LiveBranch, found: CommitRound) -> None:
        self._table = table
        self._metadata = table.metadata
        self._branch = branch
        self._live = live
        self._round = found
        self._commit = uuid4()
        self._numbers = count()
        self._written: list[str] = []
        self._deleted: list[DataFile] = []
        self.snapshot_id = table.metadata.new_snapshot_id()

    def prepared(self) -> PreparedSnapshot:
        manifests = self._merged([*self._added(), *self._kept()])
        snapshot = self._snapshot(manifests)
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
        return PreparedSnapshot(self.snapshot_id, change, self._table, self._written)

    def spec(self, number: int) -> PartitionSpec:
        return self._metadata.specs()[number]

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        return write_manifest(
            self._metadata.format_version,
            spec,
            self._metadata.schema(),
            self._table.io.new_output(self._place(f"{self._commit}-m{next(self._numbers)}.avro")),
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

    def _place(self, name: str) -> str:
        self._written.append(self._table.location_provider().new_metadata_location(name))
        return self._written[-1]

    def _added(self) -> Iterator[ManifestFile]:
        """A manifest of new files for each partition spec."""
        by_spec: dict[int, list[DataFile]] = defaultdict(list)
        for entry in self._round.landing:
            for file in entry.files:
                by_spec[file.spec_id].append(file)
        for number, files in by_spec.items():
            with self.new_manifest_writer(self.spec(number)) as writer:
                for file in files:
                    writer.add(ManifestEntry.from_args(data_file=file))
            yield writer.to_manifest_file()

    def _kept(self) -> Iterator[ManifestFile]:
        """The manifests that were there; those with removed files are written anew."""
        places = frozenset(self._round.removed_from)
        for manifest in self._live.manifests:
            if manifest.content == ManifestContent.DATA and self._live.may_hold(manifest, places):
                yield self._without_removed(manifest)
            else:
                yield manifest

    def _without_removed(self, manifest: ManifestFile) -> ManifestFile:
        entries = self._live.entries(manifest)
        gone = [e.data_file.file_path in self._round.removed for e in entries]
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

    def _merged(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Small manifests are joined as the table's properties say, as Iceberg's appends do."""
        properties = self._metadata.properties
        names = TableProperties
        # Iceberg's own default is to merge; PyIceberg's is not to.
        enabled = property_as_bool(properties, names.MANIFEST_MERGE_ENABLED, True)
        size, least = names.MANIFEST_TARGET_SIZE_BYTES, names.MANIFEST_MIN_MERGE_COUNT
        manager: Any = _ManifestMergeManager(
            property_as_int(properties, size, names.MANIFEST_TARGET_SIZE_BYTES_DEFAULT) or 0,
            property_as_int(properties, least, names.MANIFEST_MIN_MERGE_COUNT_DEFAULT) or 0,
            enabled,
            self,  # type: ignore[arg-type]
        )
        data = [m for m in manifests if m.content == ManifestContent.DATA]
        deletes = [m for m in manifests if m.content == ManifestContent.DELETES]
        return [*manager.merge_manifests(data), *deletes]

    def _snapshot(self, manifests: list[ManifestFile]) -> Snapshot:
        parent = None if self._live.head is None else self._live.head.snapshot_id
        sequence = self._metadata.next_sequence_number()
        location = self._place(f"snap-{self.snapshot_id}-0-{self._commit}.avro")
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
            summary=self._summary(),
            schema_id=self._metadata.current_schema_id,
        )

    def _summary(self) -> Summary:
        schema, specs = self._metadata.schema(), self._metadata.specs()
        collected = SnapshotSummaryCollector()
        for entry in self._round.landing:
            for file in entry.files:
                collected.add_file(file, schema, specs[file.spec_id])
        for file in self._deleted:
            collected.remove_file(file, schema, specs[file.spec_id])
        operation = Operation.OVERWRITE if self._deleted else Operation.APPEND
        keys = keys_properties(entry.key for entry in self._round.landing)
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
