"""What a snapshot's manifest list says of its manifests, so that most of them are not opened.

A manifest list has for each manifest how many files it lists, and for each partition field the
smallest and the largest value among them. All answers here default to "it may": a manifest is
ruled out only by a bound that is there, of a type whose order is the same for all writers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import ManifestContent
from pyiceberg.types import (
    DateType,
    DecimalType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile, ManifestFile, PartitionFieldSummary
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record

Places = dict[int, set["Record"]]
"""Partitions by the partition spec that they are of."""

_NUMBERS: dict[type[IcebergType], tuple[int, ...]] = {
    IntegerType: (4,),
    LongType: (4, 8),  # four bytes where the column was an int when the manifest was written
    DateType: (4,),
    TimeType: (8,),
    TimestampType: (8,),
    TimestamptzType: (8,),
}
"""Types whose values are numbers, and how many bytes a bound of them may have."""
_SURROGATES = "\ud800"
"""From here on UTF-16 and UTF-8 put characters in different orders, and writers use both."""


def lists_data(manifest: ManifestFile) -> bool:
    """Whether a manifest lists data files, and not delete files."""
    return bool(manifest.content == ManifestContent.DATA)


def is_live(manifest: ManifestFile) -> bool:
    """Whether a manifest may list files that are in the table, and not only removed ones."""
    return bool(manifest.has_added_files() or manifest.has_existing_files())


def places(files: Iterable[DataFile]) -> Places:
    """The partitions of some files."""
    found: Places = defaultdict(set)
    for file in files:
        found[file.spec_id or 0].add(file.partition)
    return found


class Manifests:
    """Judges the manifests of one table."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._types: dict[int, list[IcebergType] | None] = {}

    def may_list(self, manifest: ManifestFile, wanted: Places) -> bool:
        """Whether a manifest may list a file that is in one of some partitions."""
        if not is_live(manifest):
            return False
        partitions = wanted.get(manifest.partition_spec_id)
        if not partitions:
            return False
        return self.may_hold(manifest, partitions)

    def may_hold(
        self, manifest: ManifestFile, partitions: Iterable[Record | tuple[Any, ...]]
    ) -> bool:
        """The same for partitions of the manifest's own partition spec."""
        types, summaries = self._types_of(manifest.partition_spec_id), manifest.partitions
        if types is None or summaries is None or len(summaries) != len(types):
            return True
        ranges = [_Range(kind, one) for kind, one in zip(types, summaries, strict=True)]
        return any(
            len(record) != len(ranges)
            or all(each.may_hold(record[place]) for place, each in enumerate(ranges))
            for record in partitions
        )

    def most_partitions(self, manifests: Iterable[ManifestFile]) -> int | None:
        """At most how many partitions of today's spec have files; None where that is not told."""
        spec = self._table.spec().spec_id
        live = [m for m in manifests if is_live(m) and m.partition_spec_id == spec]
        types = self._types_of(spec)
        if types is None or any(len(m.partitions or ()) != len(types) for m in live):
            return None
        most = 1
        for place, kind in enumerate(types):
            ranges = [_Range(kind, (m.partitions or [])[place]) for m in live]
            if not all(each.is_number for each in ranges):
                return None
            most *= _union(ranges) + any(each.may_be_null for each in ranges)
        return most if live else 0

    def _types_of(self, spec_id: int) -> list[IcebergType] | None:
        if spec_id not in self._types:
            self._types[spec_id] = self._found_types(spec_id)
        return self._types[spec_id]

    def _found_types(self, spec_id: int) -> list[IcebergType] | None:
        spec = self._table.specs().get(spec_id)
        if spec is None:
            return None
        try:
            fields = spec.partition_type(self._table.schema()).fields
        except ValueError:
            return None  # it is cut by a column that was dropped since
        return [field.field_type for field in fields]


class _Range:
    """The values of one partition field in a manifest, as far as they can be relied on."""

    def __init__(self, kind: IcebergType, summary: PartitionFieldSummary) -> None:
        self._kind = kind
        self.may_be_null = summary.contains_null is not False
        self.low = _bound(kind, summary.lower_bound)
        self.high = _bound(kind, summary.upper_bound)

    def may_hold(self, value: Any) -> bool:
        """Whether a file in the manifest may have the value."""
        if value is None:
            return self.may_be_null
        if self.low is None or self.high is None or not _is_of(self._kind, value):
            return True
        if isinstance(value, str) and max(value + self.low + self.high, default="") >= _SURROGATES:
            return True
        # A text may be cut short, and not every writer makes the upper one greater for it.
        cut = isinstance(value, str) and value.startswith(self.high)
        return cut or bool(self.low <= value <= self.high)

    @property
    def is_number(self) -> bool:
        """Whether both bounds are whole numbers."""
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


def _is_of(kind: IcebergType, value: Any) -> bool:
    """Whether a partition's value is of the type that bounds are compared in."""
    if isinstance(kind, DecimalType):
        return isinstance(value, Decimal)
    if isinstance(kind, StringType):
        return isinstance(value, str)
    return type(kind) in _NUMBERS and type(value) is int


def _union(ranges: Iterable[_Range]) -> int:
    """How many whole numbers lie in at least one of some ranges."""
    count, end = 0, None
    for low, high in sorted((each.low, each.high) for each in ranges):
        begin = low if end is None else max(low, end + 1)
        count += max(0, high - begin + 1)
        end = high if end is None else max(end, high)
    return count
