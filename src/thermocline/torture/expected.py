"""Derive the required contents of the tables from known events, for messages and CDC changes.

A row of bronze is a step. Step 2n is event n itself, or its change of a row; step 2n + 1 is the
following delete, if bronze gets changes and event n deletes.
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
    """The required rows of bronze: each of the `steps` once.

    `ops` is by event number the operation of the row of step 2n.
    """

    steps: NDArray[np.int64]
    ops: NDArray[Any]


def expect_messages(events: Events) -> Expected:
    """Expect a row for every event that is not spoiled."""
    import numpy as np

    ops = np.where(events.deletes, DELETED, UPDATED)
    return Expected(events.number[~events.spoiled] * 2, ops)


def expect_changes(events: Events, bronze: pa.Table) -> Expected:
    """Expect changes for all events after the initial snapshot of the table.

    The initial snapshot has only the newest row of each key. If changes right after it were lost,
    it differs from the one expected here.
    """
    import numpy as np

    ops = np.asarray(bronze["op"].to_pylist(), dtype=object)
    changed = parse_numbers(bronze["event"])[ops != READ]
    first = int(changed.min()) if len(changed) else len(events)
    before, after = events.part(0, first), events.part(first, len(events))
    newest = np.full(int(events.key.max(initial=0)) + 1, -1, dtype=np.int64)
    np.maximum.at(newest, before.key, before.number)
    newest = newest[newest >= 0]
    kept = newest[~events.deletes[newest]]
    steps = (kept * 2, after.number * 2, after.number[after.deletes] * 2 + 1)
    marks = np.where(_row_exists_before(events), UPDATED, CREATED)
    marks[:first] = READ
    return Expected(np.concatenate(steps), marks)


def _row_exists_before(events: Events) -> NDArray[np.bool_]:
    """Return for each event whether its key had a row: an earlier event that is no delete."""
    import numpy as np

    order = np.argsort(events.key, kind="stable")
    keys, deletes = events.key[order], events.deletes[order]
    exists = np.zeros(len(events), dtype=bool)
    exists[order[1:]] = (keys[1:] == keys[:-1]) & ~deletes[:-1]
    return exists


def read_steps(bronze: pa.Table, *, changes: bool) -> NDArray[np.int64]:
    """Return the steps of the rows of bronze."""
    import numpy as np

    steps = parse_numbers(bronze["event"]) * 2
    if changes:
        steps[np.asarray(bronze["op"].to_pylist(), dtype=object) == DELETED] += 1
    return steps


def parse_numbers(column: Any) -> NDArray[np.int64]:
    """Return a column of integers; null becomes -1, which is no event."""
    import numpy as np

    listed = [-1 if each is None else each for each in column.to_pylist()]
    return np.asarray(listed, dtype=np.int64)


def expect_state(events: Events) -> State:
    """Expect the contents of silver after all events."""
    found: State = {}
    columns = (events.number, events.key, events.value, events.deletes, events.spoiled)
    for number, key, value, deletes, spoiled in zip(*(c.tolist() for c in columns), strict=True):
        if deletes and not spoiled:
            found.pop(f"k{key}", None)
        elif not spoiled:
            found[f"k{key}"] = (number, value)
    return found
