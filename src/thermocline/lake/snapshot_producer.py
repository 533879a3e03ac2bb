"""Write one snapshot that adds and removes files: data files and position-delete files.

PyIceberg 0.12 can append and overwrite data files, but it writes no delete files and leaves the
delete files of removed data files behind. This module overrides private hooks of PyIceberg's
producer, and `tests/contract/test_change.py` fails when they change.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.typedef import TableVersion
from pyiceberg.types import IntegerType, ListType, NestedField, StructType

from thermocline.errors import CommitConflict
from thermocline.lake.manifest_pruning import ManifestPruner, group_partitions, lists_data
from thermocline.lake.monotonic_catalog import next_time
from thermocline.lake.pyiceberg_internals import ManifestMergeManager, MergeAppendFiles

_EQUALITY_IDS, _EQUALITY_ID = 135, 136
"""Field ids of the specification: the list of a delete file's equality ids, and its elements."""


@dataclass(frozen=True)
class FileChange:
    """The files that a commit adds and removes, data files and delete files.

    `appends` tells readers of changes that no row was removed or updated. `rewrites` says that rows
    only moved between files; `sequence` is then the data sequence number of the added data files:
    newer equality deletes apply to them.
    """

    added: Sequence[DataFile] = ()
    removed: Sequence[DataFile] = ()
    appends: bool = False
    rewrites: bool = False
    sequence: int | None = None


@dataclass(frozen=True)
class WrittenSnapshot:
    """A snapshot whose manifests are written. It is not visible until it is committed."""

    snapshot: Snapshot
    table: Table
    _written: tuple[str, ...]

    @property
    def id(self) -> int:
        """The snapshot's id."""
        return int(self.snapshot.snapshot_id)

    def discard(self) -> None:
        """Remove the manifests. Only for a snapshot that certainly did not land."""
        for path in self._written:
            with suppress(OSError):
                self.table.io.delete(path)


def write_snapshot(
    table: Table,
    change: FileChange,
    parent: int | None,
    properties: Mapping[str, str],
    number: int | None = None,
) -> WrittenSnapshot:
    """Write the manifests of a snapshot that applies the change to a parent snapshot.

    `number` is the snapshot's id, if it is known already.
    """
    producer = SnapshotFiles(
        operation=Operation.APPEND if change.appends else Operation.OVERWRITE,
        transaction=fix_parent(table, parent),
        io=table.io,
        snapshot_properties=dict(properties),
    )
    producer._sequence = change.sequence
    if number is not None:
        producer._snapshot_id = number
    for file in change.added:
        producer.append_data_file(file)
    for file in change.removed:
        producer.delete_data_file(file)
    added: Any = producer._commit()[0][0]
    if change.rewrites:
        snapshot = to_replace_snapshot(table, added.snapshot)
    else:
        snapshot = added.snapshot.model_copy(update={"timestamp_ms": next_time(table.metadata)})
    written = (*producer._written_manifests, *producer._written_manifest_lists)
    return WrittenSnapshot(snapshot, table, tuple(written))


def to_replace_snapshot(table: Table, snapshot: Snapshot) -> Snapshot:
    """Return a snapshot with the operation `replace`, which PyIceberg's producer does not have."""
    before: Any = snapshot.summary
    summary = Summary(Operation.REPLACE, **before.additional_properties)
    updates = {"timestamp_ms": next_time(table.metadata), "summary": summary}
    return snapshot.model_copy(update=updates)


def fix_parent(table: Table, parent: int | None) -> Any:
    """Return a transaction for a producer whose snapshot has this parent, whatever main is."""
    return _FixedParentTransaction(table, parent)


class _FixedParentTransaction:
    """A stand-in for the transaction of PyIceberg's producer: main is at the parent snapshot.

    PyIceberg's own transaction copies all metadata at each access.
    """

    def __init__(self, table: Table, parent: int | None) -> None:
        refs = {} if parent is None else {MAIN_BRANCH: _branch_at(parent)}
        self._table = table
        self.table_metadata = table.metadata.model_copy(update={"refs": refs})


def _branch_at(snapshot: int) -> SnapshotRef:
    return SnapshotRef.model_validate({"snapshot-id": snapshot, "type": SnapshotRefType.BRANCH})


class _DeleteManifestWriter(ManifestWriterV2):
    """A manifest that lists delete files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    def _with_partition(self, format_version: TableVersion) -> Schema:
        """Return the schema of entries, with the equality ids as integers.

        PyIceberg writes them as longs, which Iceberg's Java library cannot read.
        """
        schema = super()._with_partition(format_version)
        return Schema(*(_with_integer_ids(field) for field in schema.fields))

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _with_integer_ids(field: NestedField) -> NestedField:
    if isinstance(field.field_type, StructType):
        fields = (_with_integer_ids(each) for each in field.field_type.fields)
        return field.model_copy(update={"field_type": StructType(*fields)})
    if field.field_id != _EQUALITY_IDS:
        return field
    ids = ListType(element_id=_EQUALITY_ID, element_type=IntegerType(), element_required=True)
    return field.model_copy(update={"field_type": ids})


class SnapshotFiles(MergeAppendFiles):
    """The files of one snapshot.

    Merges manifests as PyIceberg's append does, data and deletes separately.
    """

    _writes: type[ManifestWriterV2] = ManifestWriterV2
    _sequence: int | None = None

    def _manifests(self) -> list[ManifestFile]:
        kept, removed = self._split_existing()
        added = [
            _added_entry(file, self._snapshot_id, self._sequence if _is_data(file) else None)
            for file in self._added_data_files
        ]
        return self._process_manifests([*self._write(added), *self._write(removed), *kept])

    def _split_existing(self) -> tuple[list[ManifestFile], list[ManifestEntry]]:
        """Return the parent's manifests without the removed files, and an entry for each file."""
        existing = self._existing_manifests()
        if not self._deleted_data_files:
            return existing, []
        kept: list[ManifestFile] = []
        gone: list[ManifestEntry] = []
        removed = self._deleted_data_files
        pruner = ManifestPruner(self._transaction._table)
        partitions = {
            is_data: group_partitions(file for file in removed if _is_data(file) == is_data)
            for is_data in (True, False)
        }
        for manifest in existing:
            found = len(gone) == len(removed)
            if found or not pruner.may_list(manifest, partitions[lists_data(manifest)]):
                kept.append(manifest)
                continue
            entries = manifest.fetch_manifest_entry(self._io, discard_deleted=True)
            left = [e for e in entries if e.data_file not in removed]
            if len(left) == len(entries):
                kept.append(manifest)
                continue
            kept += self._write([_copy_entry(e, ManifestEntryStatus.EXISTING) for e in left])
            out = [e for e in entries if e.data_file in removed]
            gone += [_copy_entry(e, ManifestEntryStatus.DELETED, self._snapshot_id) for e in out]
        if len(gone) != len(removed):
            raise CommitConflict(
                "Files that the commit replaces are not in the table any more.", "Run again."
            )
        return kept, gone

    def _write(self, entries: Iterable[ManifestEntry]) -> list[ManifestFile]:
        """Write the entries to one manifest for each partition spec and content."""
        groups: dict[tuple[int, bool], list[ManifestEntry]] = defaultdict(list)
        for entry in entries:
            groups[entry.data_file.spec_id, _is_data(entry.data_file)].append(entry)
        made = []
        for (spec_id, is_data), some in groups.items():
            self._writes = ManifestWriterV2 if is_data else _DeleteManifestWriter
            with self.new_manifest_writer(self.spec(spec_id)) as writer:
                for entry in some:
                    writer.add_entry(entry)
            made.append(writer.to_manifest_file())
        return made

    def _process_manifests(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        self._writes = ManifestWriterV2
        merged = super()._process_manifests([m for m in manifests if lists_data(m)])
        self._writes = _DeleteManifestWriter
        manager = ManifestMergeManager(
            target_size_bytes=self._target_size_bytes,
            min_count_to_merge=self._min_count_to_merge,
            merge_enabled=self._merge_enabled,
            snapshot_producer=self,
        )
        return merged + manager.merge_manifests([m for m in manifests if not lists_data(m)])

    def new_manifest_writer(self, spec: PartitionSpec) -> ManifestWriter:
        output = self.new_manifest_output()
        return self._writes(spec, self.schema(), output, self._snapshot_id, self._compression)


def select_writer(producer: SnapshotFiles, *, is_data: bool) -> None:
    """Have a producer write manifests of data files, or of delete files."""
    producer._writes = ManifestWriterV2 if is_data else _DeleteManifestWriter


def _is_data(file: DataFile) -> bool:
    return bool(file.content == DataFileContent.DATA)


def _added_entry(file: DataFile, snapshot: int, sequence: int | None) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.ADDED,
        snapshot_id=snapshot,
        sequence_number=sequence,
        file_sequence_number=None,
        data_file=file,
    )


def _copy_entry(
    entry: ManifestEntry, status: ManifestEntryStatus, snapshot: int | None = None
) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=status,
        snapshot_id=entry.snapshot_id if snapshot is None else snapshot,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )
