"""The files that a lookup opens, from bounds: compared with looking up, and with known layouts."""

from __future__ import annotations

import random
from typing import Any

import pytest
from pyiceberg.types import DoubleType, LongType, NestedField

from thermocline.maintain.file_keys import FileKeys, TableOrder
from thermocline.maintain.sort_quality import combine_partitions, measure_partition

X, Y = NestedField(1, "x", LongType()), NestedField(2, "y", DoubleType())
SORTED, CLUSTERED = TableOrder((X,), 1), TableOrder((X, Y), None)
ROWS, SIZE, TARGET = 100, 1 << 20, 1 << 20


def file(*ranges: tuple[Any, Any] | None, rows: int = ROWS) -> FileKeys:
    """Return a file with these ranges."""
    return FileKeys(rows, SIZE, ranges)


def look_up(files: list[FileKeys]) -> float:
    """Look up each row's value in files with whole numbers as bounds, and average what is opened.

    The rows of a file lie evenly between its bounds.
    """
    bounds = sorted({value for each in files for value in each.ranges[0] or ()})
    gaps = [(number + 0.5) for number in range(min(bounds), max(bounds))]
    opened = rows = 0.0
    for each in files:
        if each.ranges[0] is None:
            continue
        low, high = each.ranges[0]
        values = [low] if low == high else [gap for gap in gaps if low < gap < high]
        found = [
            sum(r is not None and r[0] <= value <= r[1] for r in (o.ranges[0] for o in files))
            for value in values
        ]
        opened += sum(found) / len(found) * each.rows
        rows += each.rows
    return opened / rows


@pytest.mark.parametrize("seed", range(200))
def test_the_opened_files_are_those_of_lookups(seed: int) -> None:
    source = random.Random(seed)
    files = []
    for _ in range(source.randint(1, 12)):
        low = source.randint(0, 20)
        bounds = (low, low + source.choice([0, 0, 1, 5, 20]))
        files.append(file(None if source.random() < 0.1 else bounds, rows=source.randint(1, 50)))
    found = measure_partition(SORTED, files, TARGET)
    if all(each.ranges[0] is None for each in files):
        assert found is None
        return
    assert found is not None
    assert found.opened == pytest.approx(look_up(files), rel=1e-5)
    assert 1 <= found.ideal <= found.opened


@pytest.mark.parametrize(
    ("files", "opened", "ideal"),
    [
        ([file((0, 9)), file((10, 19)), file((19, 30))], 1, 1),
        ([file((0, 99))] * 8, 8, 1),
        ([file((5, 5))] * 8, 8, 8),  # one value fills eight files
        ([file((0, 5)), file((5, 5)), file((5, 5)), file((5, 9))], 2.5, 1.5),
        ([file((None, None)), file((0, 9))], 2, 1),
        ([file((None, 5)), file((6, None)), file(None)], 1, 1),
        ([file((b"https://a", b"https://c")), file((b"https://b", b"https://d"))], 1.5, 1),
        ([file((-1.5, float("inf"))), file((float("-inf"), -2.5))], 1, 1),
        ([file((-(10**37), 10**37)), file((0, 10**37))], 1.75, 1),
    ],
)  # fmt: skip
def test_known_layouts(files: list[FileKeys], opened: float, ideal: float) -> None:
    found = measure_partition(SORTED, files, TARGET)
    assert found is not None
    assert (found.opened, found.ideal) == (pytest.approx(opened), ideal)


def test_a_z_order_is_measured_by_each_column() -> None:
    grid = [file((i * 10, i * 10 + 9), (float(j), j + 0.9)) for i in range(4) for j in range(4)]
    found = measure_partition(CLUSTERED, grid, TARGET)
    assert found is not None
    assert (found.opened, found.ideal, found.overlap) == (4, 4, 1)
    by_one_column = [file((i * 10, i * 10 + 9), (0.0, 3.9)) for i in range(16)]
    found = measure_partition(CLUSTERED, by_one_column, TARGET)
    assert found is not None
    assert (found.opened, found.ideal) == (8.5, 4)


def test_a_table_is_the_average_of_its_partitions() -> None:
    good, bad = [file((0, 9), rows=30)], [file((0, 9), rows=5)] * 2
    found = combine_partitions(SORTED, [good, bad, [file(None)]], TARGET)
    assert found is not None
    assert found.opened == pytest.approx((30 * 1 + 10 * 2) / 40)
    assert combine_partitions(SORTED, [], TARGET) is None
