"""How a table's partitioning splits its rows, counted from its manifests."""

from __future__ import annotations

from typing import TYPE_CHECKING

from thermocline.contract.cardinality import CardinalityWarning, FieldStatistics, warn
from thermocline.contract.definition import Contract

if TYPE_CHECKING:
    from thermocline.lake.lake import Lake


def too_fine(lake: Lake, contract: Contract, snapshot: int) -> tuple[CardinalityWarning, ...]:
    """Warnings about partition fields that have nearly as many values as the table has rows."""
    if not contract.partition:
        return ()
    table = lake.iceberg(contract.table)
    found = table.snapshot_by_id(snapshot)
    spec = table.spec()
    values: list[set[object]] = [set() for _ in spec.fields]
    rows = files = 0
    for manifest in found.manifests(table.io) if found else []:
        if manifest.partition_spec_id != spec.spec_id:
            continue  # files of an older partitioning say nothing about this one
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content.name != "DATA":
                continue
            rows += entry.data_file.record_count
            files += 1
            for position, seen in enumerate(values):
                seen.add(entry.data_file.partition[position])
    fields = [
        FieldStatistics(field, len(seen))
        for field, seen in zip(contract.partition, values, strict=False)
    ]
    return warn(rows, fields, files)
