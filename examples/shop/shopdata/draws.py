"""Random numbers that are a function of (seed, name, index), so any row can be drawn alone.

A sequential generator would tie every row to all rows before it. Here row 4,999,999 costs what row
0 costs, chunks can be any size, and a later change batch redraws exactly the rows it changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniform(seed: int, name: str, index: Ints, salt: int | Ints = 0) -> Floats:
    """Numbers in [0, 1), one an index, independent between names, salts and seeds."""
    key = np.uint64((crc32(name.encode()) << 32 | (seed & 0xFFFFFFFF)) & 0xFFFFFFFFFFFFFFFF)
    state = index.astype(np.uint64)
    for word in (key, np.asarray(salt, dtype=np.int64).astype(np.uint64)):
        state = _mix(state * _GOLDEN + word)
    return (state >> np.uint64(11)).astype(np.float64) * 2.0**-53


def integers(
    seed: int, name: str, index: Ints, low: int, high: int | Ints, salt: int | Ints = 0
) -> Ints:
    """Whole numbers in [low, high)."""
    drawn = uniform(seed, name, index, salt) * (np.asarray(high) - low)
    return low + np.floor(drawn).astype(np.int64)


def spread(seed: int, name: str, total: int, count: int) -> Ints:
    """Exactly `count` distinct positions below `total`, ascending, one in each equal stretch."""
    count = min(count, total)
    edges = np.arange(count + 1, dtype=np.int64) * total // max(count, 1)
    return edges[:-1] + integers(seed, name, np.arange(count), 0, np.diff(edges))


def _mix(z: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64."""
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def pick(values: Sequence[str | None], index: Ints) -> pa.Array:
    """The values at those positions."""
    return pa.array(values, pa.string()).take(pa.array(index))


def text(*parts: str | pa.Array) -> pa.Array:
    """Strings joined row by row; constants repeat."""
    return pc.binary_join_element_wise(*parts, "")


def padded(prefix: str, index: Ints, width: int) -> pa.Array:
    """Identifiers such as ORD-000000042."""
    return text(prefix, pc.utf8_lpad(pc.cast(pa.array(index), pa.string()), width, "0"))


def decimals(units: Ints, precision: int, scale: int) -> pa.Array:
    """Decimals from whole units of the last digit, without passing through floats."""
    words = np.empty((len(units), 2), dtype=np.int64)
    words[:, 0] = units
    words[:, 1] = units >> 63  # sign extension to 128 bits
    kind = pa.decimal128(precision, scale)
    return pa.Array.from_buffers(kind, len(units), [None, pa.py_buffer(words.tobytes())])


def instants(micros: Ints, null: NDArray[np.bool_] | None = None) -> pa.Array:
    """Timestamps in UTC from microseconds since 1970."""
    return pa.array(micros, pa.int64(), mask=null).cast(pa.timestamp("us", "UTC"))
