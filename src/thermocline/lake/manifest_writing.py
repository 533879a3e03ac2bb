"""Write the live entries of some manifests into fewer ones, ordered by partition.

Entries keep their snapshot, sequence numbers and files, so no file changes and each delete applies
to what it applied to. Entries of removed files are left out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus, ManifestFile
from pyiceberg.table.snapshots import Operation

from thermocline.lake.filediff import snapshot_of
from thermocline.lake.manifest_pruning import is_live, lists_data
from thermocline.lake.pyiceberg_internals import data_file_values, record_values
from thermocline.lake.snapshot_producer import (
    SnapshotFiles,
    WrittenSnapshot,
    fix_parent,
    select_writer,
    to_replace_snapshot,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True)
class RewrittenManifests:
    """New manifests, written but in no snapshot yet, and those that they replace."""

    table: Table
    snapshot: int
    """The id of the snapshot that will list them."""
    manifests: tuple[ManifestFile, ...]
    replaced: frozenset[str]
    entries: int

    def discard(self) -> None:
        """Remove the new manifests. Only if they certainly are in no snapshot."""
        for manifest in self.manifests:
            with suppress(OSError):
                self.table.io.delete(manifest.manifest_path)


def list_manifests(table: Table, snapshot: int) -> dict[str, ManifestFile]:
    """Return the manifests of a snapshot that list live files, by location."""
    found = snapshot_of(table, snapshot).manifests(table.io)
    return {manifest.manifest_path: manifest for manifest in found if is_live(manifest)}


def write_manifests(
    table: Table, parent: int, replaced: Collection[str], target_bytes: int
) -> RewrittenManifests:
    """Write the entries of some manifests of a snapshot to new ones of about a target size."""
    listed = list_manifests(table, parent)
    producer = _make_producer(table, parent, {})
    groups: dict[tuple[int, bool], list[ManifestEntry]] = defaultdict(list)
    for path in replaced:
        manifest = listed[path]
        group = groups[manifest.partition_spec_id, lists_data(manifest)]
        group += manifest.fetch_manifest_entry(table.io)
    made: list[ManifestFile] = []
    number = int(producer._snapshot_id)
    count = sum(map(len, groups.values()))
    result = RewrittenManifests(table, number, (), frozenset(replaced), count)
    try:
        for (spec, is_data), entries in sorted(groups.items()):
            for manifest in _write_group(producer, spec, is_data, entries, target_bytes):
                made.append(manifest)
    except BaseException:
        RewrittenManifests(table, number, tuple(made), result.replaced, count).discard()
        raise
    return RewrittenManifests(table, number, tuple(made), result.replaced, count)


def _write_group(
    producer: SnapshotFiles,
    spec: int,
    is_data: bool,
    entries: list[ManifestEntry],
    target_bytes: int,
) -> Iterator[ManifestFile]:
    """Write entries of one partition spec, clustered by partition."""
    select_writer(producer, is_data=is_data)
    waiting = sorted(entries, key=_partition_order)
    at = 0
    while at < len(waiting):
        with producer.new_manifest_writer(producer.spec(spec)) as writer:
            first = at
            while at < len(waiting) and (at == first or writer.tell() < target_bytes):
                writer.add_entry(_as_existing(waiting[at]))
                at += 1
        yield writer.to_manifest_file()


def write_manifest_snapshot(
    table: Table, parent: int, rewritten: RewrittenManifests, properties: Mapping[str, str]
) -> WrittenSnapshot:
    """Write the snapshot that lists new manifests instead of the replaced ones of its parent.

    Discarding it leaves the new manifests, which another snapshot with the same id may list.
    """
    listed = list_manifests(table, parent)
    kept = [manifest for path, manifest in listed.items() if path not in rewritten.replaced]
    counts = {
        "manifests-created": len(rewritten.manifests), "manifests-kept": len(kept),
        "manifests-replaced": len(rewritten.replaced), "entries-processed": rewritten.entries,
    }  # fmt: skip
    texts = {name: str(count) for name, count in counts.items()}
    producer = _make_producer(table, parent, {**properties, **texts})
    producer._snapshot_id = rewritten.snapshot
    producer.listed = [*rewritten.manifests, *kept]
    added: Any = producer._commit()[0][0]
    snapshot = to_replace_snapshot(table, added.snapshot)
    return WrittenSnapshot(snapshot, table, tuple(producer._written_manifest_lists))


def describe_entries(table: Table, manifests: Iterable[ManifestFile]) -> list[str]:
    """Return all that the live entries of manifests say, sorted: to compare before and after."""
    return sorted(
        _describe_entry(manifest, entry)
        for manifest in manifests
        for entry in manifest.fetch_manifest_entry(table.io)
    )


def _describe_entry(manifest: ManifestFile, entry: ManifestEntry) -> str:
    values = data_file_values(entry.data_file)
    values[_PARTITION] = record_values(entry.data_file.partition)
    return repr((
        manifest.content, manifest.partition_spec_id, entry.snapshot_id, entry.sequence_number,
        entry.file_sequence_number, [_as_text(value) for value in values],
    ))  # fmt: skip


def _as_text(value: Any) -> str:
    """Return the exact text of a value; PyIceberg's own dictionaries have none."""
    return repr(sorted(value.items()) if isinstance(value, Mapping) else value)


_PARTITION = 3
"""The place of the partition in a data file's fields: a record."""


class _ManifestProducer(SnapshotFiles):
    """Lists given manifests, whatever the parent lists."""

    listed: list[ManifestFile]

    def _manifests(self) -> list[ManifestFile]:
        return self.listed


def _make_producer(table: Table, parent: int, properties: Mapping[str, str]) -> _ManifestProducer:
    return _ManifestProducer(
        operation=Operation.OVERWRITE,
        transaction=fix_parent(table, parent),
        io=table.io,
        snapshot_properties=dict(properties),
    )


def _as_existing(entry: ManifestEntry) -> ManifestEntry:
    return ManifestEntry.from_args(
        status=ManifestEntryStatus.EXISTING,
        snapshot_id=entry.snapshot_id,
        sequence_number=entry.sequence_number,
        file_sequence_number=entry.file_sequence_number,
        data_file=entry.data_file,
    )


def _partition_order(entry: ManifestEntry) -> tuple[Any, ...]:
    """Order entries by partition, nulls first, and by age within one."""
    values = record_values(entry.data_file.partition)
    order = [(value is not None, _sortable(value)) for value in values]
    return (*order, entry.sequence_number or 0, str(entry.data_file.file_path))


def _sortable(value: Any) -> Any:
    """Return a value that compares with others of its column: NaN is equal to itself only here."""
    if value is None or value != value:
        return 0 if not isinstance(value, float) else float("-inf")
    return value
