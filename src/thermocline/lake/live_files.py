"""List the live data files of a snapshot, with their sequence numbers and deletes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyiceberg.manifest import DataFileContent
from pyiceberg.table.delete_file_index import DeleteFileIndex
from pyiceberg.typedef import Record

from thermocline.lake.filediff import snapshot_of
from thermocline.lake.manifest_pruning import ManifestPruner, PartitionsBySpec, is_live, lists_data

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestEntry, ManifestFile
    from pyiceberg.table import Table


@dataclass(frozen=True)
class LiveFile:
    """A data file of a snapshot.

    `added_by` is the snapshot that added it, if the manifest names it. `positions` and `equalities`
    are the delete files that apply to it.
    """

    file: DataFile
    sequence: int
    added_by: int | None
    positions: tuple[DataFile, ...] = ()
    equalities: tuple[DataFile, ...] = ()

    @property
    def path(self) -> str:
        """The file's location."""
        return str(self.file.file_path)

    @property
    def partition(self) -> tuple[int, Record]:
        """The partition spec and the partition that the file belongs to."""
        return self.file.spec_id or 0, self.file.partition

    @property
    def deletes(self) -> tuple[DataFile, ...]:
        """All delete files that apply to it."""
        return self.positions + self.equalities


def live_files(
    table: Table, snapshot: int, partitions: PartitionsBySpec | None = None
) -> list[LiveFile]:
    """Return the live data files of a snapshot, or of some of its partitions.

    Manifests that cannot list a file of the partitions are not read. Delete files of an older
    partition spec, which may name any data file or apply to all partitions, are always read.
    """
    listed = [m for m in snapshot_of(table, snapshot).manifests(table.io) if is_live(m)]
    pruner = ManifestPruner(table)

    def may_list(manifest: ManifestFile) -> bool:
        if partitions is None:
            return True
        if not lists_data(manifest) and manifest.partition_spec_id not in partitions:
            return True
        return pruner.may_list(manifest, partitions)

    relevant = [manifest for manifest in listed if may_list(manifest)]
    data = _entries(table, (m for m in relevant if lists_data(m)))
    index = _DeleteIndex(table, _entries(table, (m for m in relevant if not lists_data(m))))
    found = (
        LiveFile(
            entry.data_file,
            entry.sequence_number or 0,
            entry.snapshot_id,
            *index.find_deletes(entry),
        )
        for entry in data
    )
    return [
        live for live in found
        if partitions is None or live.partition[1] in partitions.get(live.partition[0], ())
    ]  # fmt: skip


def delete_entries(table: Table, snapshot: int) -> list[ManifestEntry]:
    """Return the entries of all live delete files of a snapshot."""
    listed = snapshot_of(table, snapshot).manifests(table.io)
    return _entries(table, (m for m in listed if is_live(m) and not lists_data(m)))


def _entries(table: Table, manifests: Iterable[ManifestFile]) -> list[ManifestEntry]:
    return [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]


class _DeleteIndex:
    """The delete files of a snapshot, indexed by the data file that they apply to."""

    def __init__(self, table: Table, entries: Sequence[ManifestEntry]) -> None:
        self._positions = DeleteFileIndex()
        self._equalities: dict[tuple[int, Record] | None, list[ManifestEntry]] = defaultdict(list)
        unpartitioned = {i for i, spec in table.specs().items() if spec.is_unpartitioned()}
        for entry in entries:
            file = entry.data_file
            if file.content == DataFileContent.EQUALITY_DELETES:
                # An equality delete of an unpartitioned spec applies to all partitions.
                spec = file.spec_id or 0
                partition = None if spec in unpartitioned else (spec, file.partition)
                self._equalities[partition].append(entry)
            else:
                self._positions.add_delete_file(entry, partition_key=file.partition)

    def find_deletes(
        self, entry: ManifestEntry
    ) -> tuple[tuple[DataFile, ...], tuple[DataFile, ...]]:
        """Return the position deletes and the equality deletes of a data file."""
        file, sequence = entry.data_file, entry.sequence_number or 0
        positions = self._positions.for_data_file(sequence, file, file.partition)
        partition = file.spec_id or 0, file.partition
        equalities = (
            each.data_file
            for each in (*self._equalities.get(None, ()), *self._equalities.get(partition, ()))
            if (each.sequence_number or 0) > sequence
        )
        in_order = sorted(positions, key=lambda each: str(each.file_path))
        return tuple(in_order), tuple(equalities)
