"""Orders of rows: a table's sort order, as Iceberg's specification compares values, and a z-order.

Arrow sorts NaN with the nulls and zeros without their sign, so floating-point columns are sorted by
their bits: -NaN, -infinity, …, -0.0, 0.0, …, infinity, NaN. Text is sorted by its UTF-8 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt
from pyiceberg.table.sorting import NullOrder, SortDirection
from pyiceberg.transforms import Transform
from pyiceberg.types import NestedField

from thermocline.lake.clustering import is_nested

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from pyiceberg.table import Table

_BITS = 10
"""A z-order divides each column into so many (2 to this) ranges with equally many rows."""

SortKey = tuple[pa.Array, bool, bool]
"""Values, whether they are sorted descending, and whether nulls are first."""


class RowOrder(Protocol):
    """An order of rows of a table."""

    def keys(self, rows: pa.Table) -> list[SortKey]:
        """Return the sort keys of rows."""


@dataclass(frozen=True)
class SortedBy:
    """The sort order of a table: transforms of columns."""

    fields: tuple[tuple[NestedField, Transform[Any, Any], bool, bool], ...]

    @classmethod
    def of_table(cls, table: Table) -> SortedBy | None:
        """Return the table's sort order, or None if it has none, or one by nested columns."""
        top = {field.field_id: field for field in table.schema().fields}
        fields = table.sort_order().fields
        if not fields or any(f.source_id not in top or is_nested(top[f.source_id]) for f in fields):
            return None
        return cls(
            tuple(
                (
                    top[field.source_id],
                    field.transform,
                    field.direction is SortDirection.DESC,
                    field.null_order is NullOrder.NULLS_FIRST,
                )
                for field in fields
            )
        )

    @property
    def columns(self) -> tuple[NestedField, ...]:
        """The columns of the order."""
        return tuple(column for column, *_ in self.fields)

    def keys(self, rows: pa.Table) -> list[SortKey]:
        """Return the transformed columns, in the order's directions."""
        return [
            (transform_column(column, rows, transform), descending, nulls_first)
            for column, transform, descending, nulls_first in self.fields
        ]


@dataclass(frozen=True)
class ZOrder:
    """A Morton curve through some columns.

    A column counts by the share of rows below a value, estimated from a sample: so columns of any
    type and scale have the same weight. Nulls are below all values.
    """

    columns: tuple[NestedField, ...]
    bounds: tuple[pa.Array, ...]

    @classmethod
    def from_sample(cls, columns: Sequence[NestedField], sample: pa.Table) -> ZOrder:
        """Return the curve for rows like those of a sample, which has the columns."""
        return cls(tuple(columns), tuple(_quantiles(sample, column.name) for column in columns))

    def keys(self, rows: pa.Table) -> list[SortKey]:
        """Return each row's position on the curve."""
        ranks = [
            _count_bounds_below(bounds, to_comparable(_combine(rows.column(column.name))))
            for column, bounds in zip(self.columns, self.bounds, strict=True)
        ]
        return [(pa.array(interleave_bits(ranks, _BITS)), False, True)]


def transform_column(
    column: NestedField, rows: pa.Table, transform: Transform[Any, Any]
) -> pa.Array:
    """Return a transformed column of rows."""
    values = rows.column(column.name).combine_chunks()
    return _combine(transform.pyarrow_transform(column.field_type)(values))


def sort_indices(keys: Iterable[SortKey]) -> pa.Array:
    """Return the row indices in the order of the keys. Equal rows stay in their order."""
    columns: list[pa.Array] = []
    directions: list[str] = []
    for values, descending, nulls_first in keys:
        if values.null_count:
            # A sort key of its own, because nulls may be first in one column and last in another.
            columns.append(pc.is_null(values).cast(pa.int8()))
            directions.append("descending" if nulls_first else "ascending")
        columns.append(to_comparable(values))
        directions.append("descending" if descending else "ascending")
    if len(columns) == 1:
        return pc.array_sort_indices(columns[0], order=directions[0])
    names = [str(number) for number in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(columns, names)
    return pc.sort_indices(batch, sort_keys=list(zip(names, directions, strict=True)))


def to_comparable(values: pa.Array) -> pa.Array:
    """Return values that Arrow sorts as the specification orders the given ones."""
    if isinstance(values, pa.ExtensionArray):
        return to_comparable(values.storage)
    if not pt.is_floating(values.type):
        return values
    signed = np.dtype(f"int{values.type.bit_width}")
    bits = np.asarray(values.to_numpy(zero_copy_only=False)).view(signed)
    # Negative numbers fall as their bits rise.
    ordered = bits ^ ((bits >> (signed.itemsize * 8 - 1)) & np.iinfo(signed).max)
    return pa.array(ordered, mask=pc.is_null(values).to_numpy(zero_copy_only=False))


def interleave_bits(ranks: Sequence[NDArray[np.int64]], bits: int) -> NDArray[np.int64]:
    """Return numbers with the bits of one number of each column in turn, highest bits first."""
    found = np.zeros(len(ranks[0]), dtype=np.int64)
    for bit in reversed(range(bits)):
        for rank in ranks:
            found = (found << 1) | ((rank >> bit) & 1)
    return found


def _quantiles(sample: pa.Table, name: str) -> pa.Array:
    """Return values that divide the values of a sample into ranges of equal size.

    A frequent value is there several times, so that a value's rank is its share of the rows.
    """
    values = pc.drop_null(to_comparable(_combine(sample.column(name))))
    if not len(values):
        return values
    ordered = values.take(pc.array_sort_indices(values))
    ranges = (1 << _BITS) - 1
    return ordered.take(pa.array(np.arange(ranges) * len(ordered) // ranges))


def _count_bounds_below(bounds: pa.Array, values: pa.Array) -> NDArray[np.int64]:
    """Return for each value how many bounds are not above it; 0 for a null."""
    if not len(bounds):
        return np.zeros(len(values), dtype=np.int64)
    both = pa.concat_arrays([bounds, values.cast(bounds.type)])
    # The sort is stable: a bound comes before the values that equal it. Nulls come last.
    order = pc.array_sort_indices(both).to_numpy()
    counts = np.empty(len(both), dtype=np.int64)
    counts[order] = np.cumsum(order < len(bounds))
    found = counts[len(bounds) :]
    found[pc.is_null(values).to_numpy(zero_copy_only=False)] = 0
    return found


def _combine(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
