"""Compare the files of two snapshots of a table, by manifests alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence, Set
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
from pyiceberg.table.delete_file_index import PATH_FIELD_ID, DeleteFileIndex

from thermocline.errors import NotFound, Permanent
from thermocline.lake.manifest_pruning import ManifestPruner, group_partitions, is_live, lists_data

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

Deletes = frozenset["DataFile"]


@dataclass(frozen=True)
class ChangedFile:
    """A data file whose rows can differ between two snapshots.

    `start` and `end` are the delete files that apply to it in each snapshot; None if the snapshot
    does not contain the data file.
    """

    file: DataFile
    start: Deletes | None
    end: Deletes | None

    @property
    def bytes(self) -> int:
        """The maximum bytes that reading it costs."""
        return self.file.file_size_in_bytes + sum(d.file_size_in_bytes for d in self._deletes)

    @property
    def rows(self) -> int:
        """The approximate number of its rows that are read into memory."""
        if self.start is None or self.end is None:
            return int(self.file.record_count)
        changed = sum(delete.record_count for delete in self.start ^ self.end)
        return min(self.file.record_count, changed)

    @property
    def _deletes(self) -> Deletes:
        return (self.start or frozenset()) | (self.end or frozenset())


@dataclass(frozen=True)
class FileDiff:
    """The files whose rows can differ; all other files have the same rows in both snapshots."""

    files: tuple[ChangedFile, ...] = ()

    @property
    def bytes(self) -> int:
        """The maximum bytes that reading all files costs; a shared delete file counts each time."""
        return sum(change.bytes for change in self.files)

    def groups(self, rows: int) -> Iterator[FileDiff]:
        """Split the files by partition, into groups of about `rows` rows.

        A row determines its partition. So equal rows are in one group if all files have the same
        partition spec; otherwise all files are one group.
        """
        partitions: dict[Any, list[ChangedFile]] = defaultdict(list)
        one_spec = len({change.file.spec_id for change in self.files}) == 1
        for change in self.files:
            partitions[change.file.partition if one_spec else None].append(change)
        group: list[ChangedFile] = []
        group_rows = 0
        for some in partitions.values():
            weight = sum(change.rows for change in some)
            if group and group_rows + weight > rows:
                yield FileDiff(tuple(group))
                group, group_rows = [], 0
            group += some
            group_rows += weight
        if group:
            yield FileDiff(tuple(group))


def compare(table: Table, start: int | None, end: int) -> FileDiff:
    """Compare the files of two snapshots; `start` None is the empty table.

    Shared manifests list the same files. They are opened only if they may list a data file that a
    delete file of one snapshot alone applies to, or a delete file of such data files. So the cost
    follows the change and not the table size.
    """
    before = _SnapshotManifests(table, None if start is None else snapshot_of(table, start))
    after = _SnapshotManifests(table, snapshot_of(table, end))
    shared = before.data & after.data
    old = _read_entries(table.io, before.data - shared)
    new = _read_entries(table.io, after.data - shared)
    removed = [entry for path, entry in old.items() if path not in new]
    added = [entry for path, entry in new.items() if path not in old]
    both = before.deletes & after.deletes
    mine = _read_entries(table.io, before.deletes - both)
    theirs = _read_entries(table.io, after.deletes - both)
    differing = [mine[path] for path in mine.keys() - theirs.keys()]
    differing += [theirs[path] for path in theirs.keys() - mine.keys()]
    for entry in differing:
        _refuse_equality(entry.data_file)
    kept = [entry for path, entry in new.items() if path in old]
    kept += _find_affected_files(table, shared, differing, elsewhere=old.keys() | new.keys())
    index = _build_index(differing)
    kept = [entry for entry in kept if _applicable_deletes(index, entry)]
    before.read_deletes([*removed, *kept])
    after.read_deletes([*added, *kept])
    found = [ChangedFile(e.data_file, before.deletes_of(e), None) for e in removed]
    found += [ChangedFile(e.data_file, None, after.deletes_of(e)) for e in added]
    found += [ChangedFile(e.data_file, before.deletes_of(e), after.deletes_of(e)) for e in kept]
    return FileDiff(tuple(found))


def find_files_at_paths(table: Table, snapshot: int, paths: Collection[str]) -> list[ChangedFile]:
    """Return the data files of a snapshot at these paths with their deletes, as if added.

    The newest manifests are read first, until all files are found.
    """
    side = _SnapshotManifests(table, snapshot_of(table, snapshot))
    found = _find_entries(table, side.data, paths)
    side.read_deletes(found)
    return [ChangedFile(entry.data_file, None, side.deletes_of(entry)) for entry in found]


def snapshot_of(table: Table, snapshot_id: int) -> Snapshot:
    """Return a snapshot of the table by its id."""
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
    """Return the data files that these snapshots added."""
    return [
        entry.data_file
        for number in snapshots
        for manifest in snapshot_of(table, number).manifests(table.io)
        if manifest.added_snapshot_id == number and manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.status == ManifestEntryStatus.ADDED
    ]


class _SnapshotManifests:
    """The manifests of one snapshot, and the index of its relevant delete files."""

    def __init__(self, table: Table, snapshot: Snapshot | None) -> None:
        manifests = {m for m in snapshot.manifests(table.io) if is_live(m)} if snapshot else set()
        self._table = table
        self.data = {m for m in manifests if lists_data(m)}
        self.deletes = manifests - self.data
        self._index = DeleteFileIndex()

    def read_deletes(self, files: Sequence[ManifestEntry]) -> None:
        """Read the delete files that can apply to these data files."""
        partitions, pruner = (
            group_partitions(entry.data_file for entry in files),
            ManifestPruner(self._table),
        )
        # A delete file of another spec may name a data file, or apply to all partitions.
        relevant = {
            each
            for each in self.deletes
            if pruner.may_list(each, partitions) or partitions.keys() - {each.partition_spec_id}
        }
        found = _read_entries(self._table.io, relevant)
        for entry in found.values():
            _refuse_equality(entry.data_file)
        self._index = _build_index(found.values())

    def deletes_of(self, entry: ManifestEntry) -> Deletes:
        return _applicable_deletes(self._index, entry)


def _find_affected_files(
    table: Table,
    shared: set[ManifestFile],
    deletes: Sequence[ManifestEntry],
    elsewhere: Set[str],
) -> list[ManifestEntry]:
    """Return a superset of the files in shared manifests that the delete files can apply to.

    `elsewhere` are the paths of files in other manifests.
    """
    if not deletes:
        return []
    partitions, pruner = (
        group_partitions(entry.data_file for entry in deletes),
        ManifestPruner(table),
    )
    near = {each for each in shared if pruner.may_list(each, partitions)}
    found = _read_entries(table.io, near)
    named = (
        {single_target_path(entry.data_file) for entry in deletes}
        - {None}
        - found.keys()
        - elsewhere
    )
    # A delete file that names its data file applies across partition specs.
    rest = _find_entries(table, shared - near, named) if named else []
    return [*found.values(), *rest]


def _find_entries(
    table: Table, manifests: set[ManifestFile], paths: Collection[str | None]
) -> list[ManifestEntry]:
    """Return the live entries of these paths, newest manifests first, until all are found."""
    left, found = set(paths), []
    for manifest in sorted(manifests, key=lambda each: -(each.sequence_number or 0)):
        if not left:
            break
        for entry in manifest.fetch_manifest_entry(table.io):
            if entry.data_file.file_path in left:
                left.discard(entry.data_file.file_path)
                found.append(entry)
    return found


def single_target_path(delete: DataFile) -> str | None:
    """Return the path of the only data file that a delete file names, if its bounds show that."""
    low, high = (dict(bounds or {}) for bounds in (delete.lower_bounds, delete.upper_bounds))
    path = low.get(PATH_FIELD_ID)
    return path.decode() if path is not None and path == high.get(PATH_FIELD_ID) else None


def _read_entries(io: FileIO, manifests: set[ManifestFile]) -> dict[str, ManifestEntry]:
    """Return the live entries by file path, in the order of the manifests."""
    ordered = sorted(manifests, key=lambda manifest: manifest.sequence_number or 0)
    with ThreadPoolExecutor(8) as pool:
        read = pool.map(lambda manifest: manifest.fetch_manifest_entry(io), ordered)
        return {entry.data_file.file_path: entry for entries in read for entry in entries}


def _build_index(entries: Iterable[ManifestEntry]) -> DeleteFileIndex:
    index = DeleteFileIndex()
    for entry in entries:
        index.add_delete_file(entry, partition_key=entry.data_file.partition)
    return index


def _applicable_deletes(index: DeleteFileIndex, entry: ManifestEntry) -> Deletes:
    file = entry.data_file
    return frozenset(index.for_data_file(entry.sequence_number or 0, file, file.partition))


def _refuse_equality(file: DataFile) -> None:
    if file.content == DataFileContent.EQUALITY_DELETES:
        raise Permanent(
            "The table has equality deletes, whose rows cannot be compared by position.",
            "Compact it first: CALL lake.system.rewrite_data_files with delete-file-threshold 1.",
            file=file.file_path,
        )
