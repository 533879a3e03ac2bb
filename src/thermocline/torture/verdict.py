"""What was sent against what the tables hold: lost, repeated, altered, out of order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thermocline.torture import expected
from thermocline.torture.expected import Expected
from thermocline.torture.lanes import Lane
from thermocline.torture.trial_project import Scratch
from thermocline.torture.workload import Events, State

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from thermocline.lake import Lake


@dataclass(frozen=True)
class LaneVerdict:
    """One lane's events, counted. `state_differs` are keys that silver has wrong.

    `disturbed` is how many landed while things were being done to the pipeline; the others did
    afterwards, in peace, and prove little.
    """

    lane: str
    sent: int
    landed: int
    quarantined: int
    lost: int
    duplicated: int
    altered: int
    reordered: int
    state_differs: int
    commits: int
    disturbed: int = 0

    @property
    def passed(self) -> bool:
        """Whether every event is where it belongs, once, in order."""
        flaws = (self.lost, self.duplicated, self.altered, self.reordered, self.state_differs)
        return not any(flaws)


@dataclass(frozen=True)
class Verdict:
    """A trial's end: what was done to the pipeline, and what became of the events.

    Of the rounds `planned`, those `in_vain` came to nothing: the process had ended before, or did
    not come to the point where it was to die. `surprises` are ends that nobody brought about.
    """

    seed: int
    seconds: float
    deeds: dict[str, int]
    planned: int
    in_vain: int
    lanes: tuple[LaneVerdict, ...]
    surprises: tuple[str, ...] = ()

    @property
    def kills(self) -> int:
        """How many times something was done to the pipeline."""
        return sum(self.deeds.values())

    @property
    def passed(self) -> bool:
        """Whether nothing was lost, repeated, altered or put out of order.

        A trial in which nothing was done, or a lane that only moved afterwards, has not passed.
        """
        tried = self.kills > 0 and all(lane.disturbed > 0 for lane in self.lanes)
        return tried and all(lane.passed for lane in self.lanes)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        lanes = [{**asdict(lane), "passed": lane.passed} for lane in self.lanes]
        return {**asdict(self), "lanes": lanes, "kills": self.kills, "passed": self.passed}


def judge(lake: Lake, scratch: Scratch, lane: Lane, sent: int) -> LaneVerdict:
    """Compare a lane's first `sent` events with its tables, and silver with the source as well,
    where that holds rows. Starts no JVM."""
    events = lane.workload.between(0, sent)
    op = scratch.op(lane)
    bronze = _rows(
        lake, scratch.bronze(lane),
        ("event", "key", "value", op, "_ingested_at", "_source_file", "_position"),
    ).rename_columns({op: "op"})  # fmt: skip
    silver = _rows(lake, scratch.silver(lane), ("key", "event", "value"))
    kept = _rows(lake, scratch.quarantine(lane), ("raw",))
    wanted = expected.of_changes(events, bronze) if lane.changes else expected.of_messages(events)
    landed = expected.steps_of(bronze, changes=lane.changes)
    aside = _spoiled_numbers(kept["raw"].to_pylist())
    lost, repeated = _missing(landed, wanted.steps)
    lost_aside, repeated_aside = _missing(aside, events.number[events.spoiled])
    return LaneVerdict(
        lane.kind,
        sent,
        len(landed),
        len(aside),
        lost + lost_aside,
        repeated + repeated_aside,
        _altered(bronze, landed, events, wanted),
        _reordered(bronze, landed),
        _state_differs(silver, expected.state(events), lane.state()),
        _commits(lake, scratch.bronze(lane)),
    )


def newest_landed(lake: Lake, scratch: Scratch, lane: Lane) -> int:
    """The highest number of an event in bronze; -1 when there is none."""
    landed = expected.numbers(_rows(lake, scratch.bronze(lane), ("event",))["event"])
    return int(landed.max(initial=-1))


def _rows(lake: Lake, table: str, columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    if not lake.exists(table):
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    return lake.iceberg(table).scan(selected_fields=tuple(columns)).to_arrow()


def _spoiled_numbers(texts: Sequence[str]) -> NDArray[np.int64]:
    import json

    import numpy as np

    return np.asarray([json.loads(text).get("event", -1) for text in texts], dtype=np.int64)


def _missing(found: NDArray[np.int64], wanted: NDArray[np.int64]) -> tuple[int, int]:
    """How many of the wanted numbers are not there, and how many rows are too many."""
    import numpy as np

    distinct = np.unique(found)
    lost = len(np.setdiff1d(wanted, distinct, assume_unique=True))
    strangers = len(np.setdiff1d(distinct, wanted, assume_unique=True))
    return lost, len(found) - len(distinct) + strangers


def _altered(bronze: pa.Table, landed: NDArray[np.int64], events: Events, wanted: Expected) -> int:
    """Rows that do not say what their event said, or are marked as another operation."""
    import numpy as np

    known = (landed >= 0) & (landed < len(events) * 2)
    number, second = landed[known] // 2, landed[known] % 2 == 1
    values = expected.numbers(bronze["value"])[known]
    keys, ops = (
        np.asarray(bronze[name].to_pylist(), dtype=object)[known] for name in ("key", "op")
    )
    wanted_keys = np.asarray([f"k{key}" for key in events.key[number].tolist()], dtype=object)
    wanted_ops = np.where(second, expected.DELETED, wanted.ops[number])
    differ = (values != events.value[number]) | (keys != wanted_keys) | (ops != wanted_ops)
    return int(np.count_nonzero(differ))


def _reordered(bronze: pa.Table, landed: NDArray[np.int64]) -> int:
    """Rows that landed behind a later step of their own key.

    The order of landing is that of the commits, and in a commit that of file or partition and
    position.
    """
    import pyarrow.compute as pc

    names = ("_ingested_at", "_source_file", "_position")
    order = pc.sort_indices(bronze, sort_keys=[(name, "ascending") for name in names])
    keys = bronze["key"].take(order).to_pylist()
    last: dict[str, int] = {}
    count = 0
    for key, step in zip(keys, landed[order.to_numpy()].tolist(), strict=True):
        count += last.get(key, -1) > step
        last[key] = max(last.get(key, -1), step)
    return count


def _state_differs(silver: pa.Table, model: State, source: State | None) -> int:
    """Keys whose row in silver is not their newest event, is there after a delete, or is not what
    the source has; and rows too many."""
    listed = [silver[name].to_pylist() for name in ("key", "event", "value")]
    found: State = {key: (event, value) for key, event, value in zip(*listed, strict=True)}
    wrong: set[str] = set()
    for truth in (model, source):
        if truth is not None:
            keys = truth.keys() | found.keys()
            wrong |= {key for key in keys if found.get(key) != truth.get(key)}
    return len(wrong) + len(silver) - len(found)


def rows_of(lake: Lake, table: str) -> int:
    """How many rows main holds, from the table's metadata alone."""
    state = lake.state(table) if lake.exists(table) else None
    head = state.head() if state else None
    if state is None or head is None:
        return 0
    return int(state.snapshot(head).summary.get("total-records", 0))


def _commits(lake: Lake, table: str) -> int:
    state = lake.state(table) if lake.exists(table) else None
    return 0 if state is None else sum(1 for _ in state.ancestry(state.head()))
