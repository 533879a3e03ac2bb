"""Which version of a model computed which partitions of its table.

A bookmark names the model that computed the table. A backfill of an edited model computes some
partitions by another one, and any backfill computes them from newer rows than the bookmark says.
So the bookmark of its own commit says which ranges it computed, by which model and from which
snapshots; later ranges count before earlier ones. Whatever computes or reports partitions goes by
that, and the next run leaves nothing of it to say.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from thermocline.transform.workers.work_unit import read_value, written_value

if TYPE_CHECKING:
    from thermocline.lake.metadata import TableState

MODEL_KEY = "@model"
"""Where a bookmark keeps the fingerprint of the model that computed the table."""
RANGES_KEY = "@models"
"""Where it keeps the partitions that other versions of the model computed."""


@dataclass(frozen=True)
class Range:
    """Which partitions: from the first to the last, both among them; None leaves a side open."""

    first: Any = None
    last: Any = None

    @property
    def open(self) -> bool:
        """Whether it is everything."""
        return self.first is None and self.last is None

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether a partition lies in it, by its first column."""
        value = values[0]
        if self.open or value is None:
            return self.open
        above = self.first is None or value >= self.first
        return bool(above and (self.last is None or value <= self.last))

    def covers(self, other: Range) -> bool:
        """Whether all of another range lies in it."""
        begins = self.first is None or (other.first is not None and self.first <= other.first)
        ends = self.last is None or (other.last is not None and other.last <= self.last)
        return begins and ends

    def as_list(self) -> list[str | None]:
        """For a note."""
        return [None if each is None else str(each) for each in (self.first, self.last)]

    def __str__(self) -> str:
        return "–".join(dict.fromkeys("" if e is None else str(e) for e in (self.first, self.last)))


@dataclass(frozen=True)
class Computed:
    """Partitions that a backfill computed: by which model, and from which snapshots."""

    model: str
    where: Range
    pins: Mapping[str, int]

    def stands(
        self,
        states: Mapping[str, TableState],
        ends: Mapping[str, int],
        since: Mapping[str, Any],
    ) -> bool:
        """Whether the changes after the bookmark say all that happened to what was read.

        That is so where the bookmark leads to the snapshot that was read, and that one to the
        source's end; a source that was rolled back before or after is another history.
        """

        def leads(table: str, pin: int) -> bool:
            end, begin = ends.get(table), since.get(table)
            state = states.get(table)
            if state is None or begin is None:
                return False
            return state.is_ancestor(pin, of=end) and state.is_ancestor(begin, of=pin)

        return all(pin == ends.get(t) or leads(t, pin) for t, pin in self.pins.items())


@dataclass(frozen=True)
class Formulas:
    """The fingerprints of the models that computed a table: of all of it, and of some ranges."""

    default: str | None
    ranges: tuple[Computed, ...] = ()

    @classmethod
    def of(cls, bookmark: Mapping[str, Any]) -> Formulas:
        """What a bookmark says."""
        ranges = tuple(
            Computed(model, Range(read_value(first), read_value(last)), pins)
            for model, first, last, pins in bookmark.get(RANGES_KEY, ())
        )
        return cls(bookmark.get(MODEL_KEY), ranges)

    def as_dict(self) -> dict[str, Any]:
        """For a bookmark."""
        said = [
            [each.model, written_value(each.where.first), written_value(each.where.last),
             dict(each.pins)]
            for each in self.ranges
        ]  # fmt: skip
        return {MODEL_KEY: self.default} | ({RANGES_KEY: said} if said else {})

    def beside(
        self,
        states: Mapping[str, TableState],
        ends: Mapping[str, int],
        since: Mapping[str, Any],
    ) -> Formulas:
        """The same, without the names of models that read what the sources do not hold.

        `ends` are the sources' snapshots to read now, `since` those that the bookmark says.
        """
        ranges = (
            each if each.stands(states, ends, since) else replace(each, model="")
            for each in self.ranges
        )
        return replace(self, ranges=tuple(ranges))

    def of_part(self, values: Sequence[Any]) -> str | None:
        """The model that computed a partition."""
        found = (each.model for each in reversed(self.ranges) if each.where.holds(values))
        return next(found, self.default)

    def known(self, model: str) -> bool:
        """Whether a model computed any of it."""
        return model in {self.default, *(each.model for each in self.ranges)}

    def uniform(self, model: str) -> bool:
        """Whether a model computed all of it."""
        return {model} == {self.default, *(each.model for each in self.ranges)}

    def stale(self, parts: Iterable[tuple[Any, ...]], model: str) -> set[tuple[Any, ...]]:
        """Those of some partitions that another model computed."""
        return {values for values in parts if self.of_part(values) != model}

    def others(self, model: str) -> list[str]:
        """Why some ranges are not what a model would compute, for people."""
        return [
            f"{each.where} was computed by another version of the model"
            if each.model
            else f"{each.where} was computed from rows that the sources do not have"
            for each in self.ranges
            if each.model != model
        ]

    def computed(self, found: Computed, bookmark: Mapping[str, Any]) -> Formulas:
        """The same after a backfill, for a bookmark that says the snapshots of the sources."""
        left = tuple(each for each in self.ranges if not found.where.covers(each.where))
        default = found.model if found.where.open else self.default
        same = all(bookmark.get(table) == pin for table, pin in found.pins.items())
        if found.model == default and same and not left:
            return Formulas(default)
        return Formulas(default, (*left, found))
