"""How a table's partitioning splits its rows, from its manifest list where that tells enough."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from thermocline.contract.cardinality import CardinalityWarning, FieldStatistics, find_warnings
from thermocline.contract.definition import Contract

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.table import Table

    from thermocline.lake.lake import Lake


def partition_warnings(
    lake: Lake, contract: Contract, snapshot: int
) -> tuple[CardinalityWarning, ...]:
    """Warnings about partition fields that have nearly as many values as the table has rows."""
    if not contract.partition:
        return ()
    table = lake.iceberg(contract.table)
    manifests = _current_data_manifests(table, snapshot)
    if not _may_warn(table, contract, snapshot, manifests):
        return ()
    spec = table.spec()
    values: list[set[object]] = [set() for _ in spec.fields]
    rows = files = 0
    for file in _read_data_files(table, manifests):
        rows += file.record_count
        files += 1
        for position, seen in enumerate(values):
            seen.add(file.partition[position])
    fields = [
        FieldStatistics(field, len(seen))
        for field, seen in zip(contract.partition, values, strict=False)
    ]
    return find_warnings(rows, fields, files)


def max_partitions(lake: Lake, table: str, snapshot: int) -> int:
    """How many partitions of a table have rows, or how many there can be at most.

    It is counted only where the manifest list does not bound it.
    """
    from thermocline.lake.manifest_pruning import Manifests

    iceberg = lake.iceberg(table)
    manifests = _current_data_manifests(iceberg, snapshot)
    bound = Manifests(iceberg).most_partitions(manifests)
    files = sum(_max_live_files(each) for each in manifests)
    if bound is not None and bound <= files:
        return bound
    fields = range(len(iceberg.spec().fields))
    found = _read_data_files(iceberg, manifests)
    return len({tuple(file.partition[position] for position in fields) for file in found})


def _may_warn(
    table: Table, contract: Contract, snapshot: int, manifests: Iterable[ManifestFile]
) -> bool:
    """Whether some field can have so many values that a warning is due.

    The more partitions, the sooner it is: what holds for the most that there can be holds for
    those that there are. With files of an older partitioning nothing is known of the rows.
    """
    from thermocline.lake.filediff import snapshot_of
    from thermocline.lake.manifest_pruning import Manifests, is_live

    everything = [m for m in snapshot_of(table, snapshot).manifests(table.io) if is_live(m)]
    summary = snapshot_of(table, snapshot).summary
    rows = summary["total-records"] if summary is not None else None
    if rows is None or any(m.partition_spec_id != table.spec().spec_id for m in everything):
        return True
    most = sum(_max_live_files(each) for each in manifests)
    bound = Manifests(table).most_partitions(manifests)
    if bound is not None:
        most = min(most, bound)
    return bool(
        find_warnings(int(rows), [FieldStatistics(field, most) for field in contract.partition])
    )


def _max_live_files(manifest: ManifestFile) -> int:
    """At most how many live files a manifest lists; very many where it does not say."""
    counts = (manifest.added_files_count, manifest.existing_files_count)
    return sum(1 << 40 if count is None else count for count in counts)


def _current_data_manifests(table: Table, snapshot: int) -> list[ManifestFile]:
    """The manifests of data files of today's partitioning; an older one says nothing about it."""
    from thermocline.lake.manifest_pruning import is_live, lists_data

    found = table.snapshot_by_id(snapshot)
    today = table.spec().spec_id
    return [
        manifest
        for manifest in (found.manifests(table.io) if found else ())
        if manifest.partition_spec_id == today and lists_data(manifest) and is_live(manifest)
    ]


def _read_data_files(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file
