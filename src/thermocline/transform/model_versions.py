"""Which version of a model computed which partitions of its table.

A bookmark names the model version that computed the table. A backfill of an edited model computes
some partitions with another version, and any backfill computes them from newer rows than the
bookmark names. So a backfill's bookmark lists the ranges that it computed, with model version and
source snapshots; later ranges win over earlier ones. Runs, backfills and partition maps use this
list. The next run recomputes the outdated partitions and removes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thermocline.transform.workers.work_unit import decode_value, encode_value

if TYPE_CHECKING:
    from thermocline.lake.metadata import TableState

MODEL_KEY = "@model"
"""Bookmark key of the fingerprint of the model that computed the table."""
RANGES_KEY = "@models"
"""Bookmark key of the partition ranges that other versions of the model computed."""


@dataclass(frozen=True)
class PartitionRange:
    """Partitions from the first to the last, inclusive; None leaves a side open."""

    first: Any = None
    last: Any = None

    @property
    def is_open(self) -> bool:
        """Whether it has no limits, so that it holds all partitions."""
        return self.first is None and self.last is None

    def contains(self, values: Sequence[Any]) -> bool:
        """Return whether a partition lies in the range, by its first column."""
        value = values[0]
        if self.is_open or value is None:
            return self.is_open
        above = self.first is None or value >= self.first
        return bool(above and (self.last is None or value <= self.last))

    def covers(self, other: PartitionRange) -> bool:
        """Return whether the range includes all of another range."""
        begins = self.first is None or (other.first is not None and self.first <= other.first)
        ends = self.last is None or (other.last is not None and other.last <= self.last)
        return begins and ends

    def as_list(self) -> list[str | None]:
        """Return the range as JSON values."""
        return [None if each is None else str(each) for each in (self.first, self.last)]

    def __str__(self) -> str:
        return "–".join(dict.fromkeys("" if e is None else str(e) for e in (self.first, self.last)))


@dataclass(frozen=True)
class ComputedRange:
    """Partitions that a backfill computed, with the model version and the source snapshots."""

    model: str
    range: PartitionRange
    pins: Mapping[str, int]

    def is_current(
        self,
        states: Mapping[str, TableState],
        ends: Mapping[str, int],
        since: Mapping[str, Any],
    ) -> bool:
        """Return whether the changes since the bookmark cover all changes to the source rows.

        They do if the bookmark is an ancestor of the snapshot that the backfill read, and that
        snapshot is an ancestor of the source's end. A source that was rolled back before or after
        has another history.
        """

        def is_between(table: str, pin: int) -> bool:
            end, start = ends.get(table), since.get(table)
            state = states.get(table)
            if state is None or start is None:
                return False
            return state.is_ancestor(pin, of=end) and state.is_ancestor(start, of=pin)

        return all(pin == ends.get(t) or is_between(t, pin) for t, pin in self.pins.items())


@dataclass(frozen=True)
class ModelVersions:
    """The model versions that computed a table: the default, and those of some ranges."""

    default: str | None
    ranges: tuple[ComputedRange, ...] = ()

    @classmethod
    def from_bookmark(cls, bookmark: Mapping[str, Any]) -> ModelVersions:
        """Read the versions from a bookmark."""
        ranges = tuple(
            ComputedRange(model, PartitionRange(decode_value(first), decode_value(last)), pins)
            for model, first, last, pins in bookmark.get(RANGES_KEY, ())
        )
        return cls(bookmark.get(MODEL_KEY), ranges)

    def as_dict(self) -> dict[str, Any]:
        """Return the versions as bookmark entries."""
        ranges = [
            [each.model, encode_value(each.range.first), encode_value(each.range.last),
             dict(each.pins)]
            for each in self.ranges
        ]  # fmt: skip
        return {MODEL_KEY: self.default} | ({RANGES_KEY: ranges} if ranges else {})

    def without_lost_sources(
        self,
        states: Mapping[str, TableState],
        ends: Mapping[str, int],
        since: Mapping[str, Any],
    ) -> ModelVersions:
        """Return the versions with an empty name for ranges computed from lost source rows.

        `ends` are the sources' snapshots to read now, `since` the snapshots in the bookmark.
        """
        ranges = (
            each if each.is_current(states, ends, since) else replace(each, model="")
            for each in self.ranges
        )
        return replace(self, ranges=tuple(ranges))

    def version_of(self, values: Sequence[Any]) -> str | None:
        """Return the model version that computed a partition."""
        found = (each.model for each in reversed(self.ranges) if each.range.contains(values))
        return next(found, self.default)

    def includes(self, model: str) -> bool:
        """Return whether a model version computed any partition."""
        return model in {self.default, *(each.model for each in self.ranges)}

    def is_uniform(self, model: str) -> bool:
        """Return whether one model version computed all partitions."""
        return {model} == {self.default, *(each.model for each in self.ranges)}

    def find_stale(self, parts: Iterable[tuple[Any, ...]], model: str) -> set[tuple[Any, ...]]:
        """Return the partitions that another model version computed."""
        return {values for values in parts if self.version_of(values) != model}

    def describe_others(self, model: str) -> list[str]:
        """Return, for people, why some ranges differ from what a model would compute."""
        return [
            f"{each.range} was computed by another version of the model"
            if each.model
            else f"{each.range} was computed from rows that the sources do not have"
            for each in self.ranges
            if each.model != model
        ]

    def with_backfill(self, found: ComputedRange, bookmark: Mapping[str, Any]) -> ModelVersions:
        """Return the versions after a backfill; `bookmark` has the snapshots of the sources."""
        left = tuple(each for each in self.ranges if not found.range.covers(each.range))
        default = found.model if found.range.is_open else self.default
        same = all(bookmark.get(table) == pin for table, pin in found.pins.items())
        if found.model == default and same and not left:
            return ModelVersions(default)
        return ModelVersions(default, (*left, found))
