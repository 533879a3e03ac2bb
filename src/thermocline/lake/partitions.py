"""How a table's partitioning splits its rows, counted from its manifests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from thermocline.contract.cardinality import CardinalityWarning, FieldStatistics, warn
from thermocline.contract.definition import Contract

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table

    from thermocline.lake.lake import Lake


def too_fine(lake: Lake, contract: Contract, snapshot: int) -> tuple[CardinalityWarning, ...]:
    """Warnings about partition fields that have nearly as many values as the table has rows."""
    if not contract.partition:
        return ()
    table = lake.iceberg(contract.table)
    spec = table.spec()
    values: list[set[object]] = [set() for _ in spec.fields]
    rows = files = 0
    for file in _data_files(table, snapshot):
        rows += file.record_count
        files += 1
        for position, seen in enumerate(values):
            seen.add(file.partition[position])
    fields = [
        FieldStatistics(field, len(seen))
        for field, seen in zip(contract.partition, values, strict=False)
    ]
    return warn(rows, fields, files)


def partition_count(lake: Lake, table: str, snapshot: int) -> int:
    """How many partitions of a table have rows."""
    iceberg = lake.iceberg(table)
    fields = range(len(iceberg.spec().fields))
    files = _data_files(iceberg, snapshot)
    return len({tuple(file.partition[position] for position in fields) for file in files})


def _data_files(table: Table, snapshot: int) -> Iterator[DataFile]:
    """The files of today's partitioning; those of an older one say nothing about it."""
    from pyiceberg.manifest import DataFileContent

    found = table.snapshot_by_id(snapshot)
    for manifest in found.manifests(table.io) if found else []:
        if manifest.partition_spec_id != table.spec().spec_id:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content is DataFileContent.DATA:
                yield entry.data_file
