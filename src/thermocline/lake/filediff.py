"""Which files differ between two snapshots of a table, from its manifests alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
)
from pyiceberg.table.delete_file_index import DeleteFileIndex

from thermocline.errors import NotFound, Permanent

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Deletes = frozenset["DataFile"]


@dataclass(frozen=True)
class FileChange:
    """A data file whose rows can differ between two snapshots.

    `start` and `end` are the delete files that apply to it in each; None where the snapshot does
    not have the data file at all.
    """

    file: DataFile
    start: Deletes | None
    end: Deletes | None

    @property
    def bytes(self) -> int:
        """What reading it costs at most."""
        return self.file.file_size_in_bytes + sum(d.file_size_in_bytes for d in self._deletes)

    @property
    def rows(self) -> int:
        """How many of its rows are read into memory, about."""
        if self.start is None or self.end is None:
            return int(self.file.record_count)
        changed = sum(delete.record_count for delete in self.start ^ self.end)
        return min(self.file.record_count, changed)

    @property
    def _deletes(self) -> Deletes:
        return (self.start or frozenset()) | (self.end or frozenset())


@dataclass(frozen=True)
class FileDiff:
    """The files whose rows can differ: all others hold the same rows in both snapshots."""

    files: tuple[FileChange, ...] = ()

    @property
    def bytes(self) -> int:
        """What reading it all costs at most; a delete file of many data files counts each time."""
        return sum(change.bytes for change in self.files)

    def groups(self, rows: int) -> Iterator[FileDiff]:
        """Split by partition, several partitions together up to about so many rows.

        A row's partition follows from the row. So two equal rows are in one group, as long as all
        files have one partition spec; otherwise everything stays together.
        """
        partitions: dict[Any, list[FileChange]] = defaultdict(list)
        one_spec = len({change.file.spec_id for change in self.files}) == 1
        for change in self.files:
            partitions[change.file.partition if one_spec else None].append(change)
        group: list[FileChange] = []
        held = 0
        for some in partitions.values():
            weight = sum(change.rows for change in some)
            if group and held + weight > rows:
                yield FileDiff(tuple(group))
                group, held = [], 0
            group += some
            held += weight
        if group:
            yield FileDiff(tuple(group))


def compare(table: Table, start: int | None, end: int) -> FileDiff:
    """Compare the files of two snapshots; `start` None is the empty table.

    Data manifests that both snapshots share are opened only when the delete files differ, so that
    the work follows the change and not the table.
    """
    before = _Side(table.io, None if start is None else snapshot_of(table, start))
    after = _Side(table.io, snapshot_of(table, end))
    shared = before.data_manifests & after.data_manifests
    old = _entries(table.io, before.data_manifests - shared)
    new = _entries(table.io, after.data_manifests - shared)
    removed = [entry for path, entry in old.items() if path not in new]
    added = [entry for path, entry in new.items() if path not in old]
    found = [FileChange(e.data_file, before.deletes_of(e), None) for e in removed]
    found += [FileChange(e.data_file, None, after.deletes_of(e)) for e in added]
    if before.deletes.keys() != after.deletes.keys():
        kept = [entry for path, entry in new.items() if path in old]
        kept += _entries(table.io, shared).values()
        differing = _index(
            entry
            for path, entry in (before.deletes | after.deletes).items()
            if path not in before.deletes or path not in after.deletes
        )
        found += [
            FileChange(e.data_file, before.deletes_of(e), after.deletes_of(e))
            for e in kept
            if _applying(differing, e)
        ]
    return FileDiff(tuple(found))


def snapshot_of(table: Table, snapshot_id: int) -> Snapshot:
    """A snapshot of the table by its id."""
    found = table.metadata.snapshot_by_id(snapshot_id)
    if found is None:
        name = ".".join(table.name())
        raise NotFound(
            f"{name} has no snapshot {snapshot_id}: it never had, or it expired.",
            f"`thermo history {name}` lists the ones it has.",
            table=name,
            snapshot=snapshot_id,
        )
    return found


def added_files(table: Table, snapshots: Iterable[int]) -> list[DataFile]:
    """The data files that some snapshots added, in no matter how many manifests."""
    return [
        entry.data_file
        for number in snapshots
        for manifest in snapshot_of(table, number).manifests(table.io)
        if manifest.added_snapshot_id == number and manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.status == ManifestEntryStatus.ADDED
    ]


class _Side:
    """One snapshot's data manifests, and its delete files by path."""

    def __init__(self, io: FileIO, snapshot: Snapshot | None) -> None:
        manifests = set(snapshot.manifests(io)) if snapshot else set()
        self.data_manifests = {m for m in manifests if m.content == ManifestContent.DATA}
        self.deletes = _entries(io, manifests - self.data_manifests)
        for entry in self.deletes.values():
            _refuse_equality(entry.data_file)
        self._index = _index(self.deletes.values())

    def deletes_of(self, entry: ManifestEntry) -> Deletes:
        return _applying(self._index, entry)


def _entries(io: FileIO, manifests: set[ManifestFile]) -> dict[str, ManifestEntry]:
    """Live entries by file path, in the order of the manifests."""
    ordered = sorted(manifests, key=lambda manifest: manifest.sequence_number or 0)
    with ThreadPoolExecutor(8) as pool:
        read = pool.map(lambda manifest: manifest.fetch_manifest_entry(io), ordered)
        return {entry.data_file.file_path: entry for entries in read for entry in entries}


def _index(entries: Iterable[ManifestEntry]) -> DeleteFileIndex:
    index = DeleteFileIndex()
    for entry in entries:
        index.add_delete_file(entry, partition_key=entry.data_file.partition)
    return index


def _applying(index: DeleteFileIndex, entry: ManifestEntry) -> Deletes:
    file = entry.data_file
    return frozenset(index.for_data_file(entry.sequence_number or 0, file, file.partition))


def _refuse_equality(file: DataFile) -> None:
    if file.content == DataFileContent.EQUALITY_DELETES:
        raise Permanent(
            "The table has equality deletes, which name no rows that could be compared.",
            "Compact it first: CALL lake.system.rewrite_data_files with delete-file-threshold 1.",
            file=file.file_path,
        )
