"""How well a table's files are ordered: how many of them a lookup by an ordered column opens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from thermocline.maintain.file_keys import FileKeys, Range, TableOrder


_LEAST_WIDTH = 1e-9


@dataclass(frozen=True)
class SortQuality:
    """The files that a lookup of one row by a column of the order opens, within a partition.

    `opened` is the average over all rows, and over the columns of a z-order. `ideal` is what it
    would be if the files were ordered as well as possible.
    """

    columns: tuple[str, ...]
    is_zorder: bool
    opened: float
    ideal: float

    @property
    def overlap(self) -> float:
        """Return the opened files over the ideal: 1 if the files are ordered."""
        return max(1.0, self.opened / self.ideal)

    def as_dict(self) -> dict[str, Any]:
        """Return the quality as JSON values."""
        return {
            "columns": list(self.columns), "is_zorder": self.is_zorder,
            "opened": round(self.opened, 3), "ideal": round(self.ideal, 3),
            "overlap": round(self.overlap, 3),
        }  # fmt: skip


def measure_partition(
    order: TableOrder, files: Sequence[FileKeys], target_bytes: int
) -> SortQuality | None:
    """Measure one partition; None if it has no values."""
    found = [
        _count_opened([(each.ranges[at], each.rows) for each in files])
        for at in range(len(order.columns))
    ]
    measured = [each for each in found if each is not None]
    if not measured:
        return None
    opened = sum(each[0] for each in measured) / len(measured)
    ideal = sum(each[1] for each in measured) / len(measured)
    if order.is_zorder:
        ideal_files = max(1.0, sum(each.bytes for each in files) / target_bytes)
        columns = len(order.columns)
        ideal = max(ideal, min(ideal_files ** ((columns - 1) / columns), float(len(files))))
    return SortQuality(order.names, order.is_zorder, opened, min(opened, ideal))


def combine_partitions(
    order: TableOrder, partitions: Iterable[Collection[FileKeys]], target_bytes: int
) -> SortQuality | None:
    """Measure a table: the average of its partitions by their rows."""
    opened = ideal = rows = 0.0
    for files in partitions:
        quality = measure_partition(order, list(files), target_bytes)
        weight = sum(each.rows for each in files)
        if quality is not None:
            opened += quality.opened * weight
            ideal += quality.ideal * weight
            rows += weight
    if not rows:
        return None
    return SortQuality(order.names, order.is_zorder, opened / rows, ideal / rows)


def _count_opened(files: Sequence[tuple[Range | None, int]]) -> tuple[float, float] | None:
    """Return the files that a lookup opens, on average over the rows, and the least possible.

    The rows of a file are assumed to be spread evenly between its bounds. A value that fills
    several files is in all of them, however they are ordered.
    """
    present = [(bounds, rows) for bounds, rows in files if bounds is not None]
    if not present:
        return None
    values = sorted({value for bounds, _ in present for value in bounds if value is not None})
    ranks = {value: 2 * rank + 1 for rank, value in enumerate(values)}
    # Even numbers are the gaps between two values, odd ones the values themselves.
    last = 2 * len(values)
    low = np.array([0 if b[0] is None else ranks[b[0]] for b, _ in present])
    high = np.array([last if b[1] is None else ranks[b[1]] for b, _ in present])
    low = np.minimum(low, high)  # ignore impossible bounds
    rows = np.array([max(1, rows) for _, rows in present], dtype=float)
    edges = np.zeros(last + 2)
    np.add.at(edges, low, 1)
    np.add.at(edges, high + 1, -1)
    depth = np.cumsum(edges)
    single = low == high
    filled = np.zeros(last + 1)
    np.add.at(filled, low[single], 1)
    opened = np.where(single, depth[low], _mean_depth(depth[:-1], _gap_widths(values), low, high))
    ideal = np.where(single, np.maximum(1, filled[low]), 1)
    averages = (float(np.average(each, weights=rows)) for each in (opened, ideal))
    found, least = (max(1.0, each) for each in averages)  # of its own file at least
    return found, least


def _mean_depth(
    depth: NDArray[Any], widths: NDArray[Any], low: NDArray[Any], high: NDArray[Any]
) -> NDArray[Any]:
    """Return the average depth between two positions, for each pair of them."""
    sums = np.concatenate([[0.0], np.cumsum(depth * widths)])
    totals = np.concatenate([[0.0], np.cumsum(widths)])
    width = totals[high + 1] - totals[low]
    return np.asarray((sums[high + 1] - sums[low]) / np.where(width > 0, width, 1))


def _gap_widths(values: Sequence[Any]) -> NDArray[Any]:
    """Return the widths of the gaps below, between and above sorted values, and 0 for values.

    No gap has the width 0, so that rows of a file without known bounds are somewhere.
    """
    widths = np.zeros(2 * len(values) + 1)
    between = np.diff(_to_numbers(values))
    widths[2:-1:2] = between
    widths[::2] += max(float(between.sum()), 1.0) * _LEAST_WIDTH
    return widths


def _to_numbers(values: Sequence[Any]) -> NDArray[Any]:
    """Return sorted bounds as numbers from 0 to 1; bytes by the eight after those in common."""
    if not values:
        return np.zeros(0)
    if isinstance(values[0], bytes):
        differs = (a != b for a, b in zip(values[0], values[-1], strict=False))
        start = next((at for at, unequal in enumerate(differs) if unequal), len(values[0]))
        values = [int.from_bytes(value[start : start + 8].ljust(8, b"\0")) for value in values]
    limit = np.finfo(float).max / 4
    numbers = np.clip(np.array([float(value) for value in values]), -limit, limit)
    size = numbers[-1] - numbers[0]
    return (numbers - numbers[0]) / size if size else np.zeros(len(values))
