"""Counts of a snapshot's files by partition, from manifests alone.

A manifest never changes, so what it adds is computed once and kept: measuring a table again costs
the manifests that are new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from pyiceberg.manifest import DataFileContent

from thermocline.lake.filediff import snapshot_of
from thermocline.lake.manifest_pruning import is_live
from thermocline.maintain.file_keys import FileKeys, TableOrder

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record

PartitionKey = tuple[int, "Record"]
"""A partition spec and a partition of it."""

_CACHED_MANIFESTS = 20_000


@dataclass(frozen=True)
class FileStats:
    """The files of a partition, of several, or of a table."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    small_files: int = 0
    small_bytes: int = 0
    delete_files: int = 0
    delete_bytes: int = 0
    deleted_rows: int = 0
    """Rows that position deletes name. A row that two of them name counts twice."""
    equality_deletes: int = 0

    def __add__(self, other: FileStats) -> FileStats:
        return FileStats(*(getattr(self, f) + getattr(other, f) for f in _FIELDS))


_FIELDS = tuple(each.name for each in fields(FileStats))


@dataclass(frozen=True)
class TableFiles:
    """The files of one snapshot by partition, and the manifests that list them."""

    partitions: Mapping[PartitionKey, FileStats] = field(default_factory=dict)
    manifests: int = 0
    manifest_bytes: int = 0
    order: TableOrder | None = None
    keys: Mapping[PartitionKey, Sequence[FileKeys]] = field(default_factory=dict)
    """The data files by partition, if the table has an order."""

    @property
    def total(self) -> FileStats:
        """All partitions together."""
        return sum(self.partitions.values(), FileStats())


class _ManifestFiles(NamedTuple):
    """What one manifest lists: counts by partition, and the ranges of the table's order."""

    stats: Mapping[PartitionKey, FileStats]
    keys: Mapping[PartitionKey, Sequence[FileKeys]]


_ManifestKey = tuple[str, int, tuple[int, ...]]
"""A manifest, the size below which files are small, and the columns of the table's order."""


class FileStatsReader:
    """Counts the files of snapshots, and remembers what each manifest added."""

    def __init__(self) -> None:
        self._known: dict[_ManifestKey, _ManifestFiles] = {}
        self._lock = Lock()

    def read(self, table: Table, snapshot: int, small: int) -> TableFiles:
        """Count the files of a snapshot; those below `small` bytes are small files."""
        manifests = [m for m in snapshot_of(table, snapshot).manifests(table.io) if is_live(m)]
        order = TableOrder.of_table(table)
        found: dict[PartitionKey, FileStats] = {}
        keys: dict[PartitionKey, list[FileKeys]] = {}
        for manifest in manifests:
            listed = self._read_manifest(table, manifest, small, order)
            for key, stats in listed.stats.items():
                found[key] = found.get(key, FileStats()) + stats
            for key, some in listed.keys.items():
                keys.setdefault(key, []).extend(some)
        size = sum(manifest.manifest_length for manifest in manifests)
        return TableFiles(found, len(manifests), size, order, keys)

    def _read_manifest(
        self, table: Table, manifest: ManifestFile, small: int, order: TableOrder | None
    ) -> _ManifestFiles:
        columns = () if order is None else tuple(column.field_id for column in order.columns)
        key = manifest.manifest_path, small, columns
        with self._lock:
            if key in self._known:
                self._known[key] = self._known.pop(key)  # the one used last goes last
                return self._known[key]
        files = [entry.data_file for entry in manifest.fetch_manifest_entry(table.io)]
        found = _ManifestFiles(_sum_by_partition(files, small), _keys_by_partition(files, order))
        with self._lock:
            self._known[key] = found
            while len(self._known) > _CACHED_MANIFESTS:
                del self._known[next(iter(self._known))]
        return found


def format_partition(table: Table, key: PartitionKey) -> str:
    """Return a partition as a path, such as `day=2026-01-01`; empty without partitioning."""
    spec_id, record = key
    spec = table.specs()[spec_id]
    return "" if spec.is_unpartitioned() else spec.partition_to_path(record, table.schema())


def _sum_by_partition(files: Iterable[DataFile], small: int) -> dict[PartitionKey, FileStats]:
    sums: dict[PartitionKey, dict[str, int]] = {}
    for file in files:
        key = (file.spec_id or 0, file.partition)
        _count(sums.setdefault(key, dict.fromkeys(_FIELDS, 0)), file, small)
    return {key: FileStats(**counts) for key, counts in sums.items()}


def _keys_by_partition(
    files: Iterable[DataFile], order: TableOrder | None
) -> dict[PartitionKey, list[FileKeys]]:
    found: dict[PartitionKey, list[FileKeys]] = {}
    for file in files if order is not None else ():
        if file.content == DataFileContent.DATA and order is not None:
            found.setdefault((file.spec_id or 0, file.partition), []).append(order.read_keys(file))
    return found


def _count(counts: dict[str, int], file: Any, small: int) -> None:
    if file.content == DataFileContent.DATA:
        counts["files"] += 1
        counts["bytes"] += file.file_size_in_bytes
        counts["rows"] += file.record_count
        if file.file_size_in_bytes < small:
            counts["small_files"] += 1
            counts["small_bytes"] += file.file_size_in_bytes
    elif file.content == DataFileContent.POSITION_DELETES:
        counts["delete_files"] += 1
        counts["delete_bytes"] += file.file_size_in_bytes
        counts["deleted_rows"] += file.record_count
    else:
        counts["equality_deletes"] += 1
        counts["delete_bytes"] += file.file_size_in_bytes
