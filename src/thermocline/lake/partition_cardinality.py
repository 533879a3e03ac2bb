"""Estimate a table's partition cardinality, from its manifest list if that is enough."""

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
    """Return warnings for partition fields with nearly as many values as the table has rows."""
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
    """Return how many partitions of a table have rows, or an upper bound.

    The partitions are counted only if the manifest list gives no bound.
    """
    from thermocline.lake.manifest_pruning import ManifestPruner

    iceberg = lake.iceberg(table)
    manifests = _current_data_manifests(iceberg, snapshot)
    bound = ManifestPruner(iceberg).max_partition_count(manifests)
    files = sum(_max_live_files(each) for each in manifests)
    if bound is not None and bound <= files:
        return bound
    fields = range(len(iceberg.spec().fields))
    found = _read_data_files(iceberg, manifests)
    return len({tuple(file.partition[position] for position in fields) for file in found})


def _may_warn(
    table: Table, contract: Contract, snapshot: int, manifests: Iterable[ManifestFile]
) -> bool:
    """Whether a field can have so many values that a warning is due.

    Warnings are monotonic in the number of partitions: none for the upper bound means none for the
    actual number. With files of an older partition spec the rows are unknown.
    """
    from thermocline.lake.filediff import snapshot_of
    from thermocline.lake.manifest_pruning import ManifestPruner, is_live

    live = [m for m in snapshot_of(table, snapshot).manifests(table.io) if is_live(m)]
    summary = snapshot_of(table, snapshot).summary
    rows = summary["total-records"] if summary is not None else None
    if rows is None or any(m.partition_spec_id != table.spec().spec_id for m in live):
        return True
    max_values = sum(_max_live_files(each) for each in manifests)
    bound = ManifestPruner(table).max_partition_count(manifests)
    if bound is not None:
        max_values = min(max_values, bound)
    return bool(
        find_warnings(
            int(rows), [FieldStatistics(field, max_values) for field in contract.partition]
        )
    )


def _max_live_files(manifest: ManifestFile) -> int:
    """Return an upper bound of the live files in a manifest; very high without counts."""
    counts = (manifest.added_files_count, manifest.existing_files_count)
    return sum(1 << 40 if count is None else count for count in counts)


def _current_data_manifests(table: Table, snapshot: int) -> list[ManifestFile]:
    """Return the manifests of data files with the current partition spec."""
    from thermocline.lake.manifest_pruning import is_live, lists_data

    found = table.snapshot_by_id(snapshot)
    current = table.spec().spec_id
    return [
        manifest
        for manifest in (found.manifests(table.io) if found else ())
        if manifest.partition_spec_id == current and lists_data(manifest) and is_live(manifest)
    ]


def _read_data_files(table: Table, manifests: Iterable[ManifestFile]) -> Iterator[DataFile]:
    for manifest in manifests:
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            yield entry.data_file
