"""The ranges of values that files have in the columns of their table's order, from manifests."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

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
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from thermocline.lake.clustering import (
    SORTED_PREFIX,
    cluster_columns,
    is_nested,
    zorder_prefix,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.table import Table
    from pyiceberg.types import IcebergType, NestedField

_INTEGERS = (
    BooleanType, DateType, IntegerType, LongType, TimestampType, TimestamptzType, TimeType,
)  # fmt: skip
_BYTES = (BinaryType, FixedType, StringType, UUIDType)
_RUN = re.compile(r"-([0-9a-f]{8}-[0-9a-f-]{27})\.parquet$")

Range = tuple[Any, Any]
"""The least and the greatest value; None where it is not known."""


@dataclass(frozen=True)
class FileKeys:
    """The rows and bytes of a file, and its range in each column of the order.

    A range is None if the file has nulls only: no lookup by a value opens it.
    """

    rows: int
    bytes: int
    ranges: tuple[Range | None, ...]


@dataclass(frozen=True)
class TableOrder:
    """The columns that files should be ordered by: the first of the sort order, or a z-order's."""

    columns: tuple[NestedField, ...]
    sort_order_id: int | None
    """The sort order; None for a z-order."""

    @classmethod
    def of_table(cls, table: Table) -> TableOrder | None:
        """Return the table's order; None if it has none, or one that bounds cannot show."""
        columns = cluster_columns(table)
        if columns:
            return cls(columns, None)
        top = {field.field_id: field for field in table.schema().fields}
        fields = table.sort_order().fields
        if not fields or fields[0].source_id not in top or not fields[0].transform.preserves_order:
            return None
        first = top[fields[0].source_id]
        if is_nested(first):
            return None
        return cls((first,), table.metadata.default_sort_order_id)

    @property
    def is_zorder(self) -> bool:
        """Whether it is a z-order."""
        return self.sort_order_id is None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(column.name for column in self.columns)

    def read_keys(self, file: DataFile) -> FileKeys:
        """Return the ranges of a data file."""
        ranges = tuple(_read_range(file, column) for column in self.columns)
        return FileKeys(file.record_count, file.file_size_in_bytes, ranges)

    def find_run(self, file: DataFile) -> str | None:
        """Return the rewrite that wrote a file in this order; None if it was not written so.

        Files of one rewrite follow each other in the order.
        """
        name = str(file.file_path).rsplit("/", 1)[-1]
        if self.is_zorder:
            is_ordered = name.startswith(zorder_prefix(self.columns))
        else:
            is_ordered = name.startswith(SORTED_PREFIX) and file.sort_order_id == self.sort_order_id
        found = _RUN.search(name) if is_ordered else None
        return found[1] if found else None


def _read_range(file: DataFile, column: NestedField) -> Range | None:
    number = column.field_id
    nulls = (file.null_value_counts or {}).get(number)
    if nulls is not None and nulls >= file.record_count:
        return None
    bounds = ((file.lower_bounds or {}).get(number), (file.upper_bounds or {}).get(number))
    low, high = (None if b is None else _decode(b, column.field_type) for b in bounds)
    return low, high


def _decode(value: bytes, kind: IcebergType) -> Any:
    """Return a bound as a value that Python compares like the column's values.

    The bound may be of a narrower type, from which the column was promoted.
    """
    if isinstance(kind, _BYTES):
        return value
    if isinstance(kind, DecimalType):
        return int.from_bytes(value, "big", signed=True)
    if isinstance(kind, FloatType | DoubleType):
        [number] = struct.unpack("<f" if len(value) == 4 else "<d", value)
        return None if math.isnan(number) else number
    if isinstance(kind, _INTEGERS):
        return int.from_bytes(value, "little", signed=True)
    return None
