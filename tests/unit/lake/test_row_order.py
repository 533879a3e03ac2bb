"""Rows sorted by any order equal a plain Python sort by the specification's comparison."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from thermocline.errors import Transient
from thermocline.lake.external_sort import ExternalSort
from thermocline.lake.row_order import SortedBy, ZOrder, interleave_bits, sort_indices

EPOCH = datetime(1970, 1, 1)
NAN = float("nan")
NEGATIVE_NAN = struct.unpack("<d", struct.pack("<Q", 0xFFF8 << 48))[0]
TEXTS = ["", "a", "A", "ab", "b", "z", "ä", "ß", "語", "\U0001f600", "\uffff", "a\0", "a\0b"]


@dataclass(frozen=True)
class SortedType:
    """A type, values of it, and a Python key that compares as the specification says."""

    type: IcebergType
    arrow: pa.DataType
    draw: Callable[[random.Random], Any]
    key: Callable[[Any], Any] = lambda value: value


def draw_float(source: random.Random) -> float:
    """Draw a number, often an edge case."""
    edges = [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), NAN, NEGATIVE_NAN, 5e-324, -5e-324]
    return source.choice(edges) if source.random() < 0.6 else source.gauss(0, 1e3)


def float_key(value: float) -> tuple[bool, float]:
    """The bits of a number: negative ones fall as the bits rise."""
    [bits] = struct.unpack("<q", struct.pack("<d", value))
    return bits >= 0, bits if bits >= 0 else -bits - (1 << 63)


def draw_long(source: random.Random) -> int:
    """Draw a number, sometimes at the limit of its type."""
    return source.choice([source.randint(-5, 5), -(2**63), 2**63 - 1])


def draw_bytes(source: random.Random) -> bytes:
    """Draw bytes above and below 128, of any length."""
    return bytes(source.choices([0, 1, 127, 128, 255], k=source.randint(0, 3)))


TYPES = [
    SortedType(BooleanType(), pa.bool_(), lambda r: r.random() < 0.5),
    SortedType(IntegerType(), pa.int32(), lambda r: r.choice([-(2**31), -1, 0, 1, 2**31 - 1])),
    SortedType(LongType(), pa.int64(), draw_long),
    SortedType(
        FloatType(), pa.float32(),
        lambda r: r.choice([0.0, -0.0, 0.5, -2.0, NAN, NEGATIVE_NAN, float("-inf")]), float_key,
    ),
    SortedType(DoubleType(), pa.float64(), draw_float, float_key),
    SortedType(
        DecimalType(38, 2), pa.decimal128(38, 2),
        lambda r: Decimal(r.choice([-(10**37), -1, 0, 1, 99, 10**37])).scaleb(-2),
    ),
    SortedType(DateType(), pa.date32(), lambda r: date(1970, 1, 1) + timedelta(r.randint(-9, 9))),
    SortedType(TimeType(), pa.time64("us"), lambda r: time(r.randint(0, 23), 59, 0, 1)),
    SortedType(
        TimestampType(), pa.timestamp("us"), lambda r: EPOCH + timedelta(0, 0, r.randint(-9, 9))
    ),
    SortedType(
        TimestamptzType(), pa.timestamp("us", "UTC"),
        lambda r: EPOCH.replace(tzinfo=UTC) + timedelta(r.randint(-9, 9)),
    ),
    SortedType(
        StringType(), pa.large_string(), lambda r: r.choice(TEXTS), lambda text: text.encode()
    ),
    SortedType(BinaryType(), pa.large_binary(), draw_bytes),
    SortedType(FixedType(2), pa.binary(2), lambda r: bytes(r.choices([0, 127, 128, 255], k=2))),
    SortedType(
        UUIDType(), pa.binary(16), lambda r: bytes(r.choices([0, 127, 128], k=1)) + b"\x01" * 15
    ),
]  # fmt: skip


class RandomRows:
    """Rows of random columns, an order of them, and their order by Python."""

    def __init__(self, seed: int) -> None:
        source = random.Random(seed)
        self.types = source.choices(TYPES, k=source.randint(1, 3))
        size = source.choice([0, 1, 2, 50, 400])
        share = source.choice([0.0, 0.2, 1.0]) if seed % 3 else 0.1
        self.values = [
            [None if source.random() < share else kind.draw(source) for _ in range(size)]
            for kind in self.types
        ]
        columns = [
            NestedField(number + 1, f"c{number}", kind.type)
            for number, kind in enumerate(self.types)
        ]
        self.directions = [(source.random() < 0.5, source.random() < 0.5) for _ in columns]
        self.order = SortedBy(
            tuple(
                (column, IdentityTransform(), *direction)
                for column, direction in zip(columns, self.directions, strict=True)
            )
        )
        arrays = [pa.array(v, k.arrow) for v, k in zip(self.values, self.types, strict=True)]
        self.rows = pa.table(
            [*arrays, pa.array(range(size), pa.int64())], [*(c.name for c in columns), "row"]
        )

    def expected(self) -> list[int]:
        """The numbers of the rows, sorted by one key after the other, the last one first."""
        found = list(range(self.rows.num_rows))
        keys = list(zip(self.types, self.values, self.directions, strict=True))
        for kind, values, (descending, nulls_first) in reversed(keys):
            present = [n for n in found if values[n] is not None]
            absent = [n for n in found if values[n] is None]
            present.sort(key=lambda n: kind.key(values[n]), reverse=descending)
            found = absent + present if nulls_first else present + absent
        return found

    def rank(self, row: int) -> list[Any]:
        """What is equal for rows that may be in either order."""
        return [
            None if values[row] is None else kind.key(values[row])
            for kind, values in zip(self.types, self.values, strict=True)
        ]


@pytest.mark.parametrize("seed", range(60))
def test_sorted_rows_equal_a_python_sort(seed: int) -> None:
    made = RandomRows(seed)
    indices = sort_indices(made.order.keys(made.rows)).to_pylist()
    assert indices == made.expected()


@pytest.mark.parametrize("seed", range(60))
def test_rows_sorted_with_little_memory_equal_a_python_sort(seed: int, tmp_path: Path) -> None:
    made = RandomRows(seed)
    source = random.Random(seed)
    sorting = ExternalSort(made.order, tmp_path, memory=source.choice([1, 2_000, 8_000, 1 << 20]))
    start = 0
    while start < made.rows.num_rows:
        count = source.randint(1, 60)
        sorting.add(made.rows.slice(start, count))
        start += count
    parts = list(sorting.sorted_parts())
    found = [row for part in parts for row in part.column("row").to_pylist()]
    assert Counter(found) == Counter(range(made.rows.num_rows))
    assert [made.rank(row) for row in found] == [made.rank(row) for row in made.expected()]
    whole = [row for part in parts for row in part.to_pylist()]
    expected = made.rows.take(pa.array(found, pa.int64())).to_pylist()
    assert [repr(row) for row in whole] == [repr(row) for row in expected]
    assert list(tmp_path.iterdir()) == []


def test_runs_that_do_not_overlap_are_merged_once(tmp_path: Path) -> None:
    order = SortedBy(((NestedField(1, "c0", LongType()), IdentityTransform(), False, True),))
    sorting = ExternalSort(order, tmp_path, memory=64 << 10)
    values = np.arange(100_000)
    for start in range(0, len(values), 1_000):
        sorting.add(pa.table({"c0": values[start : start + 1_000]}))
    parts = list(sorting.sorted_parts())
    assert sorting.spilled_runs > 20
    assert max(part.num_rows for part in parts) < 5_000
    assert np.array_equal(pa.concat_tables(parts).column("c0").to_numpy(), values)


def test_a_full_disk_is_an_error_with_a_next_step() -> None:
    order = SortedBy(((NestedField(1, "c0", LongType()), IdentityTransform(), False, True),))
    sorting = ExternalSort(order, Path("/dev/full"), memory=1)
    with pytest.raises(Transient, match="cannot be spilled to /dev/full"):
        sorting.add(pa.table({"c0": [1]}))


def test_an_order_by_transforms_is_by_the_transformed_values() -> None:
    text, number = NestedField(1, "text", StringType()), NestedField(2, "n", LongType())
    rows = pa.table({"text": ["bx", "ab", "ba", "aa"], "n": [4, 3, 2, 1]})
    order = SortedBy(
        ((text, TruncateTransform(1), True, True), (number, IdentityTransform(), False, True))
    )
    assert sort_indices(order.keys(rows)).to_pylist() == [2, 0, 3, 1]
    buckets = SortedBy(((number, BucketTransform(4), False, True),))
    expected = sorted(range(4), key=lambda row: BucketTransform(4).transform(LongType())(4 - row))
    assert sort_indices(buckets.keys(rows)).to_pylist() == expected


def test_bits_are_interleaved_highest_first() -> None:
    found = interleave_bits([np.array([0b00, 0b01, 0b10, 0b11]), np.array([0b11, 0, 0b01, 0])], 2)
    assert found.tolist() == [0b0101, 0b0010, 0b1001, 0b1010]


@pytest.mark.parametrize("seed", range(20))
def test_a_z_order_is_a_curve_over_all_types(seed: int) -> None:
    """Of two rows, one that is not above the other in any column does not come after it."""
    source = random.Random(seed)
    types = source.sample(TYPES, source.randint(2, 4))
    columns = [NestedField(n + 1, f"c{n}", kind.type) for n, kind in enumerate(types)]
    values = [
        [None if source.random() < 0.1 else kind.draw(source) for _ in range(200)] for kind in types
    ]
    arrays = [pa.array(v, k.arrow) for v, k in zip(values, types, strict=True)]
    rows = pa.table(arrays, [column.name for column in columns])
    curve = ZOrder.from_sample(columns, rows.slice(0, source.choice([0, 10, 200])))
    [(positions, _, _)] = curve.keys(rows)
    at = positions.to_pylist()

    def coordinates(row: int) -> list[tuple[bool, Any]]:
        return [
            (False, 0) if v[row] is None else (True, kind.key(v[row]))
            for v, kind in zip(values, types, strict=True)
        ]

    keys = [coordinates(row) for row in range(200)]
    for one in range(200):
        for other in range(0, 200, 7):
            if all(
                a[0] < b[0] or (a[0] == b[0] and a[1] <= b[1])
                for a, b in zip(keys[one], keys[other], strict=True)
            ):
                assert at[one] <= at[other]


def test_a_z_order_gives_each_column_its_share() -> None:
    source = np.random.default_rng(1)
    columns = (NestedField(1, "small", LongType()), NestedField(2, "large", DoubleType()))
    rows = pa.table({"small": source.integers(0, 1_000, 40_000), "large": source.random(40_000)})
    curve = ZOrder.from_sample(columns, rows.slice(0, 5_000))
    rows = rows.take(sort_indices(curve.keys(rows)))
    for name in ("small", "large"):
        values = rows.column(name).to_numpy()
        files = values.reshape(16, -1)
        opened = [
            ((files.min(axis=1) <= value) & (files.max(axis=1) >= value)).sum()
            for value in source.choice(values, 200)
        ]
        assert np.mean(opened) < 8  # 4 of 16 in an ideal grid; all 16 in a random order
