"""The events of a trial: each is a function of the seed and its number, so all are known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DELETE_ONE_IN = 40
SPOIL_ONE_IN = 100
STRETCHES, SPOILED_STRETCH_ONE_IN = 200, 4
"""Unreadable events occur in some stretches only: a batch without any may use another lane into
bronze than a batch with some, and both must be tested."""
EVENTS_PER_KEY = 20

State = dict[str, tuple[int, int]]
"""By key its newest event and value; deleted keys are absent."""


@dataclass(frozen=True)
class Events:
    """Consecutive events as columns. A spoiled event cannot land and must be quarantined."""

    number: NDArray[np.int64]
    key: NDArray[np.int64]
    value: NDArray[np.int64]
    deletes: NDArray[np.bool_]
    spoiled: NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.number)

    def part(self, start: int, stop: int) -> Events:
        """Return the events from index `start` up to but excluding `stop`."""
        return Events(
            self.number[start:stop], self.key[start:stop], self.value[start:stop],
            self.deletes[start:stop], self.spoiled[start:stop],
        )  # fmt: skip

    def messages(self) -> Iterator[tuple[str, str]]:
        """Yield each event's key, and the event as JSON text."""
        columns = zip(
            self.number.tolist(), self.key.tolist(), self.value.tolist(),
            self.deletes.tolist(), self.spoiled.tolist(),
        )  # fmt: skip
        for number, key, value, deletes, spoiled in columns:
            shown = f'"no number {value}"' if spoiled else str(value)
            op = "d" if deletes else "u"
            yield (
                f"k{key}",
                f'{{"event": {number}, "key": "k{key}", "value": {shown}, "op": "{op}"}}',
            )


@dataclass(frozen=True)
class Workload:
    """As many events as wanted, from number 0 on. An event's number is its order within a key.

    Unless it `spoils`, none of them is spoiled.
    """

    seed: int
    events: int
    spoils: bool = True

    def readable(self) -> Workload:
        """The same events, with none of them spoiled."""
        return replace(self, spoils=False)

    @property
    def keys(self) -> int:
        """How many keys the events are about."""
        return max(1, self.events // EVENTS_PER_KEY)

    def between(self, first: int, last: int) -> Events:
        """The events from one number up to, and without, another."""
        import numpy as np

        number = np.arange(first, last, dtype=np.int64)
        salt = np.uint64((self.seed * 0x9E37) & 0xFFFFFFFF)
        drawn = _mix(number.astype(np.uint64) + salt)
        again = _mix(drawn)
        stretch = number.astype(np.uint64) // np.uint64(max(1, self.events // STRETCHES))
        bad_stretch = _mix(stretch + salt) % np.uint64(SPOILED_STRETCH_ONE_IN) == 0
        bad = drawn % np.uint64(SPOIL_ONE_IN) == np.uint64(SPOIL_ONE_IN - 1)
        return Events(
            number,
            (drawn % np.uint64(self.keys)).astype(np.int64),
            (again >> np.uint64(12)).astype(np.int64),
            again % np.uint64(DELETE_ONE_IN) == 0,
            bad & bad_stretch & self.spoils,
        )


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Numbers that look like chance, one for each given (splitmix64)."""
    import numpy as np

    with np.errstate(over="ignore"):
        mixed = numbers * np.uint64(0x9E3779B97F4A7C15)
        mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return mixed ^ (mixed >> np.uint64(31))
