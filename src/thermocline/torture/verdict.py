"""What was sent against what the tables hold: lost, repeated, altered, out of order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thermocline.torture.lanes import Lane
from thermocline.torture.project import Scratch
from thermocline.torture.workload import Events

if TYPE_CHECKING:
    import pyarrow as pa

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
    """Compare a lane's first `sent` events with its tables. Starts no JVM."""
    events = lane.workload.between(0, sent)
    good, spoiled = ~events.spoiled, events.spoiled
    bronze = _rows(
        lake, scratch.bronze(lane),
        ("event", "key", "value", "_ingested_at", "_source_file", "_position"),
    )  # fmt: skip
    kept = _rows(lake, scratch.quarantine(lane), ("raw",))
    landed, aside = _numbers(bronze["event"]), _spoiled_numbers(kept["raw"].to_pylist())
    lost, repeated = _missing(landed, events.number[good])
    lost_aside, repeated_aside = _missing(aside, events.number[spoiled])
    return LaneVerdict(
        lane.kind,
        sent,
        len(landed),
        len(aside),
        lost + lost_aside,
        repeated + repeated_aside,
        _altered(bronze, events),
        _reordered(bronze),
        _state_differs(lake, scratch.silver(lane), events),
        _commits(lake, scratch.bronze(lane)),
    )


def _rows(lake: Lake, table: str, columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    if not lake.exists(table):
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    return lake.iceberg(table).scan(selected_fields=tuple(columns)).to_arrow()


def _numbers(column: Any) -> Any:
    import numpy as np

    return np.asarray(column.to_pylist(), dtype=np.int64)


def _spoiled_numbers(texts: Sequence[str]) -> Any:
    import json

    import numpy as np

    return np.asarray([json.loads(text)["event"] for text in texts], dtype=np.int64)


def _missing(found: Any, wanted: Any) -> tuple[int, int]:
    """How many of the wanted numbers are not there, and how many rows are too many."""
    import numpy as np

    distinct = np.unique(found)
    lost = len(np.setdiff1d(wanted, distinct, assume_unique=True))
    strangers = len(np.setdiff1d(distinct, wanted, assume_unique=True))
    return lost, len(found) - len(distinct) + strangers


def _altered(bronze: pa.Table, events: Events) -> int:
    """Rows that do not say what their event said."""
    import numpy as np

    number = _numbers(bronze["event"])
    known = (number >= 0) & (number < len(events))
    number = number[known]
    values = _numbers(bronze["value"])[known]
    keys = np.asarray(bronze["key"].to_pylist(), dtype=object)[known]
    wanted = np.asarray([f"k{key}" for key in events.key[number].tolist()], dtype=object)
    return int(np.count_nonzero((values != events.value[number]) | (keys != wanted)))


def _reordered(bronze: pa.Table) -> int:
    """Rows that landed behind a later event of their own key.

    The order of landing is that of the commits, and in a commit that of file or partition and
    position.
    """
    last: dict[str, int] = {}
    count = 0
    order = [(name, "ascending") for name in ("_ingested_at", "_source_file", "_position")]
    ordered = bronze.sort_by(order).select(["key", "event"]) if len(bronze) else bronze
    for key, event in zip(ordered["key"].to_pylist(), ordered["event"].to_pylist(), strict=True):
        count += last.get(key, -1) > event
        last[key] = max(last.get(key, -1), event)
    return count


def _state_differs(lake: Lake, table: str, events: Events) -> int:
    """Keys whose row in silver is not their newest event, or is there after a delete."""
    wanted: dict[str, tuple[int, int]] = {}
    columns = (events.number, events.key, events.value, events.deletes, events.spoiled)
    for number, key, value, deletes, spoiled in zip(*(c.tolist() for c in columns), strict=True):
        if deletes and not spoiled:
            wanted.pop(f"k{key}", None)
        elif not spoiled:
            wanted[f"k{key}"] = (number, value)
    rows = _rows(lake, table, ("key", "event", "value"))
    listed = [rows[name].to_pylist() for name in ("key", "event", "value")]
    found = {key: (event, value) for key, event, value in zip(*listed, strict=True)}
    differ = sum(found.get(key) != row for key, row in wanted.items())
    return differ + len(found.keys() - wanted.keys()) + len(rows) - len(found)


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
