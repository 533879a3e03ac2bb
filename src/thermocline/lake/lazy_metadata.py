"""PyIceberg's table metadata with snapshots and logs that are parsed on access.

An old table has thousands of snapshots, and PyIceberg needs 0.2 ms to parse each. A commit needs
one or two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import cached_property
from typing import Any, Generic, TypeVar

from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil, TableMetadataV2
from pyiceberg.table.snapshots import MetadataLogEntry, Snapshot, SnapshotLogEntry

T = TypeVar("T")

_LISTS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "snapshots": ("snapshots", Snapshot.model_validate),
    "snapshot-log": ("snapshot_log", SnapshotLogEntry.model_validate),
    "metadata-log": ("metadata_log", MetadataLogEntry.model_validate),
}


class LazyList(Sequence[T], Generic[T]):
    """The entries of a JSON list, each parsed once, on access.

    A copy or a concatenation is an ordinary list, which PyIceberg can serialize.
    """

    def __init__(self, raw: Sequence[Any], parse: Callable[[Any], T]) -> None:
        self.raw = raw
        self._parse = parse
        self._parsed: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self.raw)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[number] for number in range(*at.indices(len(self)))]
        number = range(len(self))[at]
        if number not in self._parsed:
            self._parsed[number] = self._parse(self.raw[number])
        return self._parsed[number]

    def __iter__(self) -> Iterator[T]:
        return (self[number] for number in range(len(self)))

    def __add__(self, other: Sequence[T]) -> list[T]:
        return [*self, *other]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> list[T]:
        return [deepcopy(entry, memo) for entry in self]

    @cached_property
    def positions(self) -> dict[int, int]:
        """The index of each snapshot in the list, by its id."""
        return {entry["snapshot-id"]: number for number, entry in enumerate(self.raw)}


def log_times(log: Sequence[Any]) -> list[int]:
    """Return the times of a log, without parsing its entries."""
    if isinstance(log, LazyList):
        return [entry["timestamp-ms"] for entry in log.raw]
    return [entry.timestamp_ms for entry in log]


class LazyMetadata(TableMetadataV2):
    """Table metadata whose lists may be lazy."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TableMetadataV2) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def snapshot_by_id(self, snapshot_id: int) -> Snapshot | None:
        """Return the snapshot of an id, without parsing the others."""
        if not isinstance(self.snapshots, LazyList):
            return super().snapshot_by_id(snapshot_id)
        position = self.snapshots.positions.get(snapshot_id)
        return None if position is None else self.snapshots[position]


def parse_metadata(raw: Mapping[str, Any]) -> TableMetadata:
    """Parse a metadata file's JSON to PyIceberg's metadata. The JSON is not changed."""
    if raw.get("format-version") != 2:
        return TableMetadataUtil.parse_obj(deepcopy(dict(raw)))
    # PyIceberg adds the branch of the current snapshot if the file names no branch.
    parsed = LazyMetadata.model_validate({**raw, **{name: [] for name in _LISTS}})
    lists = {field: LazyList(raw.get(name) or [], parse) for name, (field, parse) in _LISTS.items()}
    return parsed.model_copy(update=lists)
