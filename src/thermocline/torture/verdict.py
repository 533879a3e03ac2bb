"""Compare the sent events with the tables: lost, duplicated, altered and reordered events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from thermocline.torture import expected
from thermocline.torture.expected import Expected
from thermocline.torture.lanes import Lane
from thermocline.torture.trial_project import TrialProject
from thermocline.torture.workload import Events, State

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from thermocline.lake import Lake


@dataclass(frozen=True)
class LaneVerdict:
    """Counts of one lane's events. `state_differs` counts keys with a wrong row in silver.

    `landed_during_chaos` is how many landed during the rounds; the others landed undisturbed
    afterwards, and prove little.
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
    landed_during_chaos: int = 0

    @property
    def passed(self) -> bool:
        """Whether every event landed once, unaltered and in order."""
        flaws = (self.lost, self.duplicated, self.altered, self.reordered, self.state_differs)
        return not any(flaws)


@dataclass(frozen=True)
class Verdict:
    """The result of a trial: the actions on the pipeline, and the verdict on the events.

    `without_effect` counts the planned rounds without an action: the process had ended before, or
    did not reach its crash point. `warnings` are exits that no action caused, and failed
    compactions.
    """

    seed: int
    seconds: float
    actions: dict[str, int]
    planned: int
    without_effect: int
    lanes: tuple[LaneVerdict, ...]
    warnings: tuple[str, ...] = ()

    @property
    def kills(self) -> int:
        """The number of actions on the pipeline."""
        return sum(self.actions.values())

    @property
    def passed(self) -> bool:
        """Whether no event was lost, duplicated, altered or reordered.

        A trial without an action, or with a lane that landed only afterwards, has not passed.
        """
        was_tested = self.kills > 0 and all(lane.landed_during_chaos > 0 for lane in self.lanes)
        return was_tested and all(lane.passed for lane in self.lanes)

    def as_dict(self) -> dict[str, Any]:
        """For programs."""
        lanes = [{**asdict(lane), "passed": lane.passed} for lane in self.lanes]
        return {**asdict(self), "lanes": lanes, "kills": self.kills, "passed": self.passed}


def verify_lane(lake: Lake, project: TrialProject, lane: Lane, sent: int) -> LaneVerdict:
    """Verify a lane: compare its first `sent` events with its tables.

    Silver is also compared with the source, if the source keeps rows. No JVM is started.
    """
    events = lane.workload.between(0, sent)
    op = project.op(lane)
    bronze = _read_rows(
        lake, project.bronze(lane),
        ("event", "key", "value", op, "_ingested_at", "_source_file", "_position"),
    ).rename_columns({op: "op"})  # fmt: skip
    silver = _read_rows(lake, project.silver(lane), ("key", "event", "value"))
    kept = _read_rows(lake, project.quarantine(lane), ("raw",))
    required = (
        expected.expect_changes(events, bronze)
        if lane.changes
        else expected.expect_messages(events)
    )
    landed = expected.read_steps(bronze, changes=lane.changes)
    quarantined = _spoiled_numbers(kept["raw"].to_pylist())
    lost, repeated = _compare_numbers(landed, required.steps)
    lost_spoiled, repeated_spoiled = _compare_numbers(quarantined, events.number[events.spoiled])
    return LaneVerdict(
        lane.kind,
        sent,
        len(landed),
        len(quarantined),
        lost + lost_spoiled,
        repeated + repeated_spoiled,
        _count_altered(bronze, landed, events, required),
        _count_reordered(bronze, landed),
        _count_state_differences(silver, expected.expect_state(events), lane.read_state()),
        _count_commits(lake, project.bronze(lane)),
    )


def newest_landed(lake: Lake, project: TrialProject, lane: Lane) -> int:
    """Return the highest event number in bronze; -1 if it is empty."""
    landed = expected.parse_numbers(_read_rows(lake, project.bronze(lane), ("event",))["event"])
    return int(landed.max(initial=-1))


def _read_rows(lake: Lake, table: str, columns: Sequence[str]) -> pa.Table:
    import pyarrow as pa

    if not lake.exists(table):
        return pa.table({name: pa.array([], pa.string()) for name in columns})
    return lake.iceberg(table).scan(selected_fields=tuple(columns)).to_arrow()


def _spoiled_numbers(texts: Sequence[str]) -> NDArray[np.int64]:
    import json

    import numpy as np

    return np.asarray([json.loads(text).get("event", -1) for text in texts], dtype=np.int64)


def _compare_numbers(found: NDArray[np.int64], required: NDArray[np.int64]) -> tuple[int, int]:
    """Return how many expected numbers are missing, and how many rows are surplus."""
    import numpy as np

    distinct = np.unique(found)
    lost = len(np.setdiff1d(required, distinct, assume_unique=True))
    unknown = len(np.setdiff1d(distinct, required, assume_unique=True))
    return lost, len(found) - len(distinct) + unknown


def _count_altered(
    bronze: pa.Table, landed: NDArray[np.int64], events: Events, required: Expected
) -> int:
    """Count rows with other values than their event, or with another operation."""
    import numpy as np

    known = (landed >= 0) & (landed < len(events) * 2)
    number, second = landed[known] // 2, landed[known] % 2 == 1
    values = expected.parse_numbers(bronze["value"])[known]
    keys, ops = (
        np.asarray(bronze[name].to_pylist(), dtype=object)[known] for name in ("key", "op")
    )
    expected_keys = np.asarray([f"k{key}" for key in events.key[number].tolist()], dtype=object)
    expected_ops = np.where(second, expected.DELETED, required.ops[number])
    differ = (values != events.value[number]) | (keys != expected_keys) | (ops != expected_ops)
    return int(np.count_nonzero(differ))


def _count_reordered(bronze: pa.Table, landed: NDArray[np.int64]) -> int:
    """Count rows that landed after a later step of their own key.

    Rows are ordered by commit, then by file or partition and position.
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


def _count_state_differences(silver: pa.Table, model: State, source: State | None) -> int:
    """Count keys with a wrong row in silver, and surplus rows.

    A row is wrong if it is not the newest event, remains after a delete, or differs from the
    source.
    """
    listed = [silver[name].to_pylist() for name in ("key", "event", "value")]
    found: State = {key: (event, value) for key, event, value in zip(*listed, strict=True)}
    wrong: set[str] = set()
    for truth in (model, source):
        if truth is not None:
            keys = truth.keys() | found.keys()
            wrong |= {key for key in keys if found.get(key) != truth.get(key)}
    return len(wrong) + len(silver) - len(found)


def count_rows(lake: Lake, table: str) -> int:
    """Return the number of rows of main, by the table's metadata."""
    state = lake.state(table) if lake.exists(table) else None
    head = state.head() if state else None
    if state is None or head is None:
        return 0
    return int(state.snapshot(head).summary.get("total-records", 0))


def _count_commits(lake: Lake, table: str) -> int:
    state = lake.state(table) if lake.exists(table) else None
    return 0 if state is None else sum(1 for _ in state.ancestry(state.head()))
