"""Prune manifests by the summaries in a manifest list, so that most manifests are not opened.

For each manifest a manifest list has the number of files, and the lower and upper bound of each
partition field. The default answer is "it may list the file": a manifest is pruned only by an
existing bound of a type whose order is the same for all writers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyiceberg import types as iceberg
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import DecimalType, IcebergType, StringType

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile, PartitionFieldSummary
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record

PartitionsBySpec = dict[int, set["Record"]]
"""Partitions by the id of their partition spec."""

_NUMBERS: dict[type[IcebergType], tuple[int, ...]] = {
    iceberg.IntegerType: (4,),
    iceberg.LongType: (4, 8),  # four bytes if the column was an int when it was written
    iceberg.DateType: (4,),
    iceberg.TimeType: (8,),
    iceberg.TimestampType: (8,),
    iceberg.TimestamptzType: (8,),
}
"""Types with numeric values, and the byte lengths that their bounds may have."""
_SURROGATES = "\ud800"
"""From here on UTF-16 and UTF-8 order characters differently, and writers use both."""


def lists_data(manifest: ManifestFile) -> bool:
    """Whether a manifest lists data files, as opposed to delete files."""
    return bool(manifest.content == ManifestContent.DATA)


def is_live(manifest: ManifestFile) -> bool:
    """Whether a manifest may list live files, and not only removed ones."""
    return bool(manifest.has_added_files() or manifest.has_existing_files())


def group_partitions(files: Iterable[DataFile]) -> PartitionsBySpec:
    """Return the partitions of files, by partition spec."""
    found: PartitionsBySpec = defaultdict(set)
    for file in files:
        found[file.spec_id or 0].add(file.partition)
    return found


class ManifestPruner:
    """Decides which manifests of a table may list a file, by their summaries."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._types: dict[int, list[IcebergType] | None] = {}

    def may_list(self, manifest: ManifestFile, wanted: PartitionsBySpec) -> bool:
        """Whether a manifest may list a file of one of these partitions."""
        if not is_live(manifest):
            return False
        partitions = wanted.get(manifest.partition_spec_id)
        if not partitions:
            return False
        return self.may_hold(manifest, partitions)

    def may_hold(
        self, manifest: ManifestFile, partitions: Iterable[Record | tuple[Any, ...]]
    ) -> bool:
        """Whether a manifest may list a file of one of these partitions of its own spec."""
        types, summaries = self._types_of(manifest.partition_spec_id), manifest.partitions
        if types is None or summaries is None or len(summaries) != len(types):
            return True
        ranges = [_FieldRange(kind, one) for kind, one in zip(types, summaries, strict=True)]
        return any(
            len(record) != len(ranges)
            or all(each.may_hold(record[index]) for index, each in enumerate(ranges))
            for record in partitions
        )

    def max_partition_count(self, manifests: Iterable[ManifestFile]) -> int | None:
        """Return an upper bound of the non-empty partitions of the current spec, or None."""
        spec = self._table.spec().spec_id
        live = [m for m in manifests if is_live(m) and m.partition_spec_id == spec]
        types = self._types_of(spec)
        if types is None or any(len(m.partitions or ()) != len(types) for m in live):
            return None
        count = 1
        for index, kind in enumerate(types):
            ranges = [_FieldRange(kind, (m.partitions or [])[index]) for m in live]
            if not all(each.is_number for each in ranges):
                return None
            count *= _count_values(ranges) + any(each.may_be_null for each in ranges)
        return count if live else 0

    def _types_of(self, spec_id: int) -> list[IcebergType] | None:
        if spec_id not in self._types:
            self._types[spec_id] = self._find_types(spec_id)
        return self._types[spec_id]

    def _find_types(self, spec_id: int) -> list[IcebergType] | None:
        spec = self._table.specs().get(spec_id)
        if spec is None:
            return None
        try:
            fields = spec.partition_type(self._table.schema()).fields
        except ValueError:
            return None  # a column of the spec was dropped since
        return [field.field_type for field in fields]


class _FieldRange:
    """The range of one partition field in a manifest, as far as its bounds are reliable."""

    def __init__(self, kind: IcebergType, summary: PartitionFieldSummary) -> None:
        self._kind = kind
        self.may_be_null = summary.contains_null is not False
        self.low = _bound(kind, summary.lower_bound)
        self.high = _bound(kind, summary.upper_bound)

    def may_hold(self, value: Any) -> bool:
        """Whether a file in the manifest may have the value."""
        if value is None:
            return self.may_be_null
        if self.low is None or self.high is None or not _is_comparable(self._kind, value):
            return True
        if isinstance(value, str) and max(value + self.low + self.high, default="") >= _SURROGATES:
            return True
        # A bound may be truncated, and not every writer then increments the upper bound.
        is_truncated = isinstance(value, str) and value.startswith(self.high)
        return is_truncated or bool(self.low <= value <= self.high)

    @property
    def is_number(self) -> bool:
        """Whether both bounds are integers."""
        return isinstance(self.low, int) and isinstance(self.high, int)


def _bound(kind: IcebergType, raw: bytes | None) -> Any:
    if raw is None:
        return None
    lengths = _NUMBERS.get(type(kind))
    if lengths is not None:
        return int.from_bytes(raw, "little", signed=True) if len(raw) in lengths else None
    if isinstance(kind, DecimalType):
        return from_bytes(kind, raw)
    if isinstance(kind, StringType):
        try:
            return bytes(raw).decode()
        except UnicodeDecodeError:
            return None
    return None


def _is_comparable(kind: IcebergType, value: Any) -> bool:
    """Whether a partition value has the Python type that bounds are compared in."""
    if isinstance(kind, DecimalType):
        return isinstance(value, Decimal)
    if isinstance(kind, StringType):
        return isinstance(value, str)
    return type(kind) in _NUMBERS and type(value) is int


def _count_values(ranges: Iterable[_FieldRange]) -> int:
    """Count the integers that lie in at least one of the ranges."""
    count, end = 0, None
    for low, high in sorted((each.low, each.high) for each in ranges):
        begin = low if end is None else max(low, end + 1)
        count += max(0, high - begin + 1)
        end = high if end is None else max(end, high)
    return count
