"""What the tables must hold of known events, for messages and for the changes of a table.

A row of bronze is a step. Step 2n is event n itself, or the change that it made to a row; step
2n + 1 is the delete that follows it, where bronze gets changes and event n deletes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thermocline.torture.workload import Events, State

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

READ, CREATED, UPDATED, DELETED = "r", "c", "u", "d"


@dataclass(frozen=True)
class Expected:
    """The rows of bronze: `steps` are the ones that must be there, each once.

    `ops` says of each event, by its number, how its row of the step 2n is marked.
    """

    steps: NDArray[np.int64]
    ops: NDArray[Any]


def of_messages(events: Events) -> Expected:
    """Every event is a row, but for the spoiled ones."""
    import numpy as np

    ops = np.where(events.deletes, DELETED, UPDATED)
    return Expected(events.number[~events.spoiled] * 2, ops)


def of_changes(events: Events, bronze: pa.Table) -> Expected:
    """Every event is a change, but for those before the first one that was seen as such.

    They are in the first state of the table, which has of each key only the newest. If changes
    that came right behind it were lost, the first state is not the one that is expected here.
    """
    import numpy as np

    ops = np.asarray(bronze["op"].to_pylist(), dtype=object)
    changed = numbers(bronze["event"])[ops != READ]
    first = int(changed.min()) if len(changed) else len(events)
    before, after = events.part(0, first), events.part(first, len(events))
    newest = np.full(int(events.key.max(initial=0)) + 1, -1, dtype=np.int64)
    np.maximum.at(newest, before.key, before.number)
    newest = newest[newest >= 0]
    kept = newest[~events.deletes[newest]]
    steps = (kept * 2, after.number * 2, after.number[after.deletes] * 2 + 1)
    marks = np.where(_there_before(events), UPDATED, CREATED)
    marks[:first] = READ
    return Expected(np.concatenate(steps), marks)


def _there_before(events: Events) -> NDArray[np.bool_]:
    """Of each event, whether its key had a row: an event before it, and not a delete."""
    import numpy as np

    order = np.argsort(events.key, kind="stable")
    keys, deletes = events.key[order], events.deletes[order]
    there = np.zeros(len(events), dtype=bool)
    there[order[1:]] = (keys[1:] == keys[:-1]) & ~deletes[:-1]
    return there


def steps_of(bronze: pa.Table, *, changes: bool) -> NDArray[np.int64]:
    """Which steps the rows of bronze are."""
    import numpy as np

    steps = numbers(bronze["event"]) * 2
    if changes:
        steps[np.asarray(bronze["op"].to_pylist(), dtype=object) == DELETED] += 1
    return steps


def numbers(column: Any) -> NDArray[np.int64]:
    """A column of whole numbers; what is no number is event -1, which nobody sent."""
    import numpy as np

    listed = [-1 if each is None else each for each in column.to_pylist()]
    return np.asarray(listed, dtype=np.int64)


def state(events: Events) -> State:
    """What silver must hold when all events have come."""
    found: State = {}
    columns = (events.number, events.key, events.value, events.deletes, events.spoiled)
    for number, key, value, deletes, spoiled in zip(*(c.tolist() for c in columns), strict=True):
        if deletes and not spoiled:
            found.pop(f"k{key}", None)
        elif not spoiled:
            found[f"k{key}"] = (number, value)
    return found
