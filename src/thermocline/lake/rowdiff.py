"""Compute the difference between two bags of rows, exactly for every type.

Each row gets a number such that two rows have the same number exactly if they are equal: each
column is numbered, and the numbers are combined. Nothing is hashed, so there are no collisions;
only numbers are sorted; and only rows of the result are copied.

Equal means: null equals null, NaN equals NaN, 0.0 and -0.0 differ (they are different values in
the file), and maps are equal in any order of their entries.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from thermocline.engine import arrow

Numbers = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]

_MAX_NUMBER = 2**62


def cancel(left: pa.Table, right: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Remove equal rows from both bags, one for one, and return the remaining rows."""
    if not left.num_rows or not right.num_rows:
        return left, right
    of_left, of_right = match(left, right, left.column_names)
    return drop_rows(left, of_left), drop_rows(right, of_right)


def match(left: pa.Table, right: pa.Table, columns: Sequence[str]) -> tuple[Numbers, Numbers]:
    """Pair rows that are equal in these columns: positions in `left` and, aligned, in `right`.

    Every row is in at most one pair. Several equal rows are paired in order.
    """
    numbers = number_rows([[*left[name].chunks, *right[name].chunks] for name in columns])
    of_left, of_right = numbers[: left.num_rows], numbers[left.num_rows :]
    width = 1 + max(_repeats(of_left), _repeats(of_right))
    if width > 1:
        of_left = of_left * width + _occurrence(of_left)
        of_right = of_right * width + _occurrence(of_right)
    _, in_left, in_right = np.intersect1d(
        of_left, of_right, assume_unique=True, return_indices=True
    )
    order = np.argsort(in_left)
    return in_left[order], in_right[order]


def differing_mask(left: pa.ChunkedArray, right: pa.ChunkedArray) -> Mask:
    """Return a mask of the rows where two columns of equal length differ."""
    numbers = number_rows([[*left.chunks, *right.chunks]])
    return np.asarray(numbers[: len(left)] != numbers[len(left) :])


def drop_rows(table: pa.Table, positions: Numbers) -> pa.Table:
    """Return the rows that are not at these positions, in order."""
    if not len(positions):
        return table
    keep = np.ones(table.num_rows, dtype=bool)
    keep[positions] = False
    return table.filter(pa.array(keep))


def number_rows(columns: Sequence[list[pa.Array]]) -> Numbers:
    """Number rows from 0: equal rows, and only they, get equal numbers.

    A column is a list of arrays of one canonical type; all columns have the same length.
    """
    rows = sum(len(chunk) for chunk in columns[0])
    total, size = np.zeros(rows, dtype=np.int64), 1
    for chunks in columns:
        numbers = _number_values(chunks)
        values = int(numbers.max(initial=0)) + 1
        if size * values >= _MAX_NUMBER:
            total = _renumber(total)
            size = int(total.max(initial=0)) + 1
        total = total * values + numbers
        size *= values
    return _renumber(total)


def _number_values(chunks: list[pa.Array]) -> Numbers:
    chunks = [chunk for chunk in chunks if len(chunk)]
    if not chunks:
        return np.zeros(0, dtype=np.int64)
    kind = chunks[0].type
    if pt.is_struct(kind):
        children = [chunk.flatten() for chunk in chunks]
        valid = [_valid_mask(chunk) for chunk in chunks]
        fields = [list(parts) for parts in zip(*children, strict=True)]
        return number_rows([[pa.array(np.concatenate(valid))], *fields])
    if pt.is_list(kind):
        elements = _number_values([chunk.flatten() for chunk in chunks])
        return _number_runs(chunks, elements)
    if pt.is_map(kind):
        keys, values = zip(*(arrow.flatten_map(chunk) for chunk in chunks), strict=True)
        entries = number_rows([list(keys), list(values)])
        counts = np.concatenate([arrow.count_elements(chunk) for chunk in chunks])
        owner = np.repeat(np.arange(len(counts)), counts)
        return _number_runs(chunks, entries[np.lexsort((entries, owner))])
    if pt.is_floating(kind):
        chunks = [_float_bits(chunk) for chunk in chunks]
    encoded = pa.chunked_array(chunks).dictionary_encode(null_encoding="encode")
    return np.concatenate([c.indices.to_numpy().astype(np.int64) for c in encoded.chunks])


def _number_runs(chunks: list[pa.Array], elements: Numbers) -> Numbers:
    """Number lists by their elements' numbers: each list becomes one byte string."""
    counts = np.concatenate([arrow.count_elements(chunk) for chunk in chunks])
    offsets = np.concatenate(([0], np.cumsum(counts))) * elements.itemsize
    runs = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(),
        len(counts),
        [None, pa.py_buffer(offsets.astype(np.int64)), pa.py_buffer(elements)],
    )
    valid = np.concatenate([_valid_mask(chunk) for chunk in chunks])
    return np.where(valid, _number_values([runs]) + 1, 0)


def _float_bits(floats: pa.Array) -> pa.Array:
    """Return the bits of each float, with one pattern for all NaNs."""
    one_nan = pc.if_else(pc.is_nan(floats), pa.scalar(float("nan"), floats.type), floats)
    widths = {2: pa.int16(), 4: pa.int32(), 8: pa.int64()}
    return one_nan.view(widths[floats.type.byte_width])


def _valid_mask(array: pa.Array) -> Mask:
    return np.asarray(array.is_valid().to_numpy(zero_copy_only=False))


def _renumber(numbers: Numbers) -> Numbers:
    encoded = pa.array(numbers).dictionary_encode()
    return np.asarray(encoded.indices.to_numpy(), dtype=np.int64)


def _repeats(numbers: Numbers) -> int:
    """Return how often the most frequent number is repeated."""
    return int(np.bincount(numbers).max(initial=1)) - 1


def _occurrence(numbers: Numbers) -> Numbers:
    """Return for each number how many equal ones precede it."""
    order = np.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = np.concatenate(([True], ordered[1:] != ordered[:-1]))
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(numbers)))
    result = np.empty(len(numbers), dtype=np.int64)
    result[order] = np.arange(len(numbers)) - np.repeat(starts, lengths)
    return result
