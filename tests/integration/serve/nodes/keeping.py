"""A small lake that PyIceberg writes, and what PyIceberg cannot write: position deletes."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId, SetSnapshotRefUpdate
from pyiceberg.transforms import DayTransform
from pyiceberg.types import LongType, NestedField, StringType, TimestamptzType

from thermocline.config import load_settings
from thermocline.lake import Lake
from thermocline.lake.atomic_commit import TableChange

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "at", TimestamptzType()),
    NestedField(3, "note", StringType()),
)
BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day"))
NOW = datetime.now(UTC).replace(microsecond=123_456)


def make_lake(folder: Path) -> Lake:
    """An empty embedded lake with the layer gold."""
    (folder / "thermocline.toml").write_text('[lake]\nname = "test"\n')
    lake = Lake(load_settings(folder, environ={}))
    lake.catalog.create_namespace("gold")
    return lake


def make_table(
    lake: Lake, name: str, spec: PartitionSpec = BY_DAY, schema: Schema = SCHEMA
) -> Table:
    """An empty table."""
    return lake.catalog.create_table(name, schema, partition_spec=spec)


def row(number: int, days: float = 0.0, note: str | None = "") -> dict[str, Any]:
    """A row from so many days ago."""
    return {"id": number, "at": NOW - timedelta(days=days), "note": note}


def put(table: Table, rows: list[dict[str, Any]]) -> int:
    """Append rows; the snapshot they made."""
    table.refresh()
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    return head(table)


def head(table: Table) -> int:
    """The newest snapshot."""
    snapshot = table.refresh().current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def scanned(
    table: Table, snapshot: int | None = None, since: datetime | None = None
) -> list[tuple[Any, ...]]:
    """What PyIceberg reads, sorted; with `since` only rows from then on."""
    rows = table.refresh().scan(snapshot_id=snapshot).to_arrow().to_pylist()
    return in_order(r for r in rows if since is None or (r["at"] and r["at"] >= since))


def in_order(rows: Iterable[Mapping[str, Any]]) -> list[tuple[Any, ...]]:
    """Rows as tuples in an order that nulls do not break."""
    return sorted((tuple(r.values()) for r in rows), key=lambda r: [(v is None, v) for v in r])


def delete_positions(lake: Lake, table: Table, places: Mapping[str, Iterable[int]]) -> int:
    """Commit position deletes as a merge-on-read writer does: data file path → places in it."""
    table.refresh()
    parent = table.current_snapshot()
    assert parent is not None
    files = {task.file.file_path: task.file for task in table.scan().plan_files()}
    snapshot_id = table.metadata.new_snapshot_id()
    folder = f"{table.location()}/metadata"
    manifest = f"{folder}/{uuid.uuid4()}-deletes.avro"
    writer = _DeleteManifest(
        table.spec(), table.schema(), table.io.new_output(manifest), snapshot_id, "deflate"
    )
    with writer:
        for path, positions in places.items():
            writer.add(
                ManifestEntry.from_args(
                    status=ManifestEntryStatus.ADDED,
                    snapshot_id=snapshot_id,
                    data_file=_delete_file(table, files[path], sorted(set(positions))),
                )
            )
    sequence = table.metadata.next_sequence_number()
    manifest_list = f"{folder}/snap-{snapshot_id}-{uuid.uuid4()}.avro"
    with write_manifest_list(
        2, table.io.new_output(manifest_list), snapshot_id, parent.snapshot_id, sequence, "deflate"
    ) as listed:
        listed.add_manifests([writer.to_manifest_file(), *parent.manifests(table.io)])
    snapshot = Snapshot(
        snapshot_id=snapshot_id,
        parent_snapshot_id=parent.snapshot_id,
        sequence_number=sequence,
        timestamp_ms=max(int(datetime.now(UTC).timestamp() * 1000), parent.timestamp_ms),
        manifest_list=manifest_list,
        summary=Summary(Operation.DELETE),
        schema_id=table.schema().schema_id,
    )
    point = SetSnapshotRefUpdate(
        ref_name="main",
        type=SnapshotRefType.BRANCH,
        snapshot_id=snapshot_id,
        max_ref_age_ms=None,
        max_snapshot_age_ms=None,
        min_snapshots_to_keep=None,
    )
    still = AssertRefSnapshotId(ref="main", snapshot_id=parent.snapshot_id)
    name = ".".join(table.name())
    lake.commit([TableChange(name, (still,), (AddSnapshotUpdate(snapshot=snapshot), point))])
    return head(table)


class _DeleteManifest(ManifestWriterV2):
    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


def _delete_file(table: Table, of: DataFile, positions: list[int]) -> DataFile:
    ids = {"file_path": b"2147483546", "pos": b"2147483545"}
    kinds = {"file_path": pa.string(), "pos": pa.int64()}
    schema = pa.schema(
        pa.field(name, kind, nullable=False, metadata={b"PARQUET:field_id": ids[name]})
        for name, kind in kinds.items()
    )
    paths = [of.file_path] * len(positions)
    rows = pa.table({"file_path": paths, "pos": positions}, schema=schema)
    path = f"{table.location()}/data/{uuid.uuid4()}-deletes.parquet"
    output = table.io.new_output(path)
    with output.create() as stream:
        pq.write_table(rows, stream)
    return DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=of.partition,
        record_count=len(positions),
        file_size_in_bytes=len(output),
        lower_bounds={2147483546: of.file_path.encode()},
        upper_bounds={2147483546: of.file_path.encode()},
    )


WHOLE = UNPARTITIONED_PARTITION_SPEC
