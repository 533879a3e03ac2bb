"""An entry comes out of the queue as it went in, for every type that Iceberg partitions by."""

from __future__ import annotations

import datetime as dt
import json
import math
import zlib
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat, ManifestEntry, write_manifest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from thermocline.errors import BadInput
from thermocline.lake.groupcommit import entry_codec
from thermocline.lake.groupcommit.entry import (
    CommitEntry,
    ReplaceFiles,
    ReplacePartitions,
    partition_id,
)

VALUES: list[tuple[PrimitiveType, tuple[Any, ...]]] = [
    (BooleanType(), (True, False)),
    (IntegerType(), (0, -(2**31), 2**31 - 1)),
    (LongType(), (2**53 + 1, -(2**63), 2**63 - 1)),
    (FloatType(), (0.0, -0.0, 1.5, float("inf"), float("nan"))),
    (DoubleType(), (0.1, -0.0, 5e-324, float("-inf"), float("nan"))),
    (DecimalType(9, 2), (Decimal("0.00"), Decimal("-1234567.89"))),
    (DecimalType(38, 10), (Decimal("1234567890123456789012345678.0123456789"),)),
    (DateType(), (0, -719_162, 20_000)),
    (TimeType(), (0, 86_399_999_999)),
    (TimestampType(), (-62_135_596_800_000_000, 1_700_000_000_000_001)),
    (TimestamptzType(), (1_700_000_000_000_001,)),
    (StringType(), ("", "a,b/c=ä\x00\u2028", "\U0001f30a")),
    (UUIDType(), (UUID(int=2**127 + 1).bytes,)),
    (FixedType(3), (b"\x00\xff\x80",)),
    (BinaryType(), (b"", bytes(range(256)))),
]


def data_file(partition: Record, bounds: dict[int, bytes] | None = None, spec: int = 7) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="file:///somewhere/ä b.parquet",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=3,
        file_size_in_bytes=2**40,
        column_sizes={1: 11, 2: 22},
        value_counts={1: 3},
        null_value_counts={1: 0},
        nan_value_counts={},
        lower_bounds=bounds or {},
        upper_bounds=bounds or {},
        key_metadata=b"\x01\x00",
        split_offsets=[4, 2**33],
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = spec
    return file


def through(entry: CommitEntry) -> CommitEntry:
    return entry_codec.decode_entry(
        entry.key, entry.table, entry.branch, entry_codec.encode_entry(entry)
    )


def entry(*files: DataFile, **more: Any) -> CommitEntry:
    return CommitEntry("k", "silver.t", "the-uuid", 4, files, **more)


@pytest.mark.parametrize(
    ("kind", "value"), [(kind, value) for kind, values in VALUES for value in (*values, None)]
)
def test_a_file_writes_the_same_manifest(kind: PrimitiveType, value: Any, tmp_path: Path) -> None:
    bound = {} if value is None else {1: to_bytes(kind, value)}
    given_file = data_file(Record(value), bound)
    [found] = through(entry(given_file)).files
    assert repr(found) == repr(given_file)
    assert (found.spec_id, partition_id(found)) == (7, partition_id(given_file))
    before, after = (
        in_manifest(kind, file, tmp_path / name)
        for file, name in ((given_file, "before"), (found, "after"))
    )
    assert shown(before) == shown(after)
    [again] = through(entry(before)).files
    assert shown(again) == shown(before)


def shown(file: DataFile) -> str:
    return repr([dict(each) if isinstance(each, Mapping) else each for each in file._data])


def in_manifest(kind: PrimitiveType, file: DataFile, path: Path) -> DataFile:
    """What Iceberg reads from a manifest that holds the file."""
    schema = Schema(NestedField(1, "part", kind))
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"), spec_id=7)
    io = PyArrowFileIO()
    with write_manifest(2, spec, schema, io.new_output(str(path)), 1, "null") as writer:
        writer.add(ManifestEntry.from_args(data_file=file))
    [found] = writer.to_manifest_file().fetch_manifest_entry(io)
    return found.data_file


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.decimals(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary()
    | st.uuids()
)


@given(st.lists(st.lists(SCALARS, max_size=4), min_size=1, max_size=4), st.binary())
@example([[math.copysign(math.nan, -1)], [-0.0]], b"")
def test_whatever_values_come_back_alike(partitions: list[list[Any]], bound: bytes) -> None:
    files = [data_file(Record(*values), {5: bound}, spec) for spec, values in enumerate(partitions)]
    for number, file in enumerate(files):
        file[1] = f"file-{number}"
    replaced = ReplaceFiles.of(files, snapshot=2**62)
    found = through(entry(*files, replaces=replaced, properties={"a": "ä"}))
    assert [repr(file) for file in found.files] == [repr(file) for file in files]
    assert [partition_id(file) for file in found.files] == [partition_id(file) for file in files]
    assert found.replaces == replaced
    assert found.properties == {"a": "ä"}
    overwritten = ReplacePartitions.of(files)
    assert through(entry(*files, replaces=overwritten)).replaces == overwritten


def test_a_date_that_is_not_iceberg_s_number_is_refused() -> None:
    with pytest.raises(BadInput, match="A date is not a value"):
        entry_codec.encode_entry(entry(data_file(Record(dt.date(2026, 1, 1)))))


def test_an_entry_of_another_version_is_not_misread() -> None:
    said = json.loads(zlib.decompress(entry_codec.encode_entry(entry(data_file(Record())))))
    later = zlib.compress(json.dumps({**said, "format": 2}).encode())
    with pytest.raises(ValueError, match="another version"):
        entry_codec.decode_entry("k", "silver.t", "main", later)
