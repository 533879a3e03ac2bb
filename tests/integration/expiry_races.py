"""Snapshots expire while somebody makes, moves or drops a ref: no ref is lost, whoever is first.

A race is a table of a few commits in which maintenance expires all that it may. At a random point
between its plan and the swap of the pointer another writer, or another process, changes the refs.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from thermocline.errors import ThermoclineError
from thermocline.lake import Lake, atomic_commit, refs
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.snapshot_producer import FileChange, write_snapshot
from thermocline.maintain import expiry
from thermocline.maintain.expiry import plan_table_expiry
from thermocline.maintain.task import Discarded

TABLE = "silver.t"
SCHEMA = Schema(NestedField(1, "id", LongType()))
HARSHEST = {
    "THERMOCLINE_LAKE__RETENTION__SNAPSHOTS": "1",
    "THERMOCLINE_LAKE__RETENTION__AGE": "0.001s",
    "THERMOCLINE_LAKE__RETENTION__HOURLY": "0",
    "THERMOCLINE_LAKE__RETENTION__DAILY": "0",
}
# Where the other writer gets in: the crash points from the plan to the swap.
POINTS = ("expiry.before-commit", "publish.staged", "never")


def append(lake: Lake, number: int) -> int:
    """Append one row in one commit; return the snapshot."""
    table = lake.iceberg(TABLE)
    parent = lake.state(TABLE).head()
    files = write_files(table, pa.table({"id": [number]}))
    made = write_snapshot(table, FileChange(files, appends=True), parent, {})
    lake.commit(snapshot_changes(table, made, "main", parent))
    return made.id


class ExpiryRace:
    """One table, and what its refs must be at the end."""

    def __init__(self, lake: Lake, other: Lake, seed: int) -> None:
        self.lake, self.other = lake, other
        self.random = random.Random(seed)
        self.rows: dict[int, int] = {}
        if lake.exists(TABLE):
            lake.catalog.drop_table(TABLE)
        lake.catalog.create_namespace_if_not_exists("silver")
        lake.catalog.create_table(TABLE, SCHEMA)
        for number in range(self.random.randint(3, 6)):
            self.rows[append(lake, number)] = number + 1
        self.expected = {"main": list(self.rows)[-1]}
        for number in range(self.random.randint(0, 2)):
            self._make_ref(f"before-{number}")

    def run(self) -> str:
        """Expire while the refs change; return what became of the expiry."""
        time.sleep(0.002)  # older than the age
        point, act = self.random.choice(POINTS), self.random.choice([
            self._make_ref, self._make_ref, self._move_branch, self._drop_ref, self._roll_back,
            self._append,
        ])  # fmt: skip
        task = plan_table_expiry(self.lake, self.lake.state(TABLE))
        if task is None:
            return "nothing"
        with _Disturbance(point, act) as failed:
            try:
                task.apply(self.lake)
                outcome = "published"
            except Discarded:
                outcome = "discarded"
        if point == "never":
            try:
                act()
            except ThermoclineError:
                failed.append(point)  # the snapshot is gone, and the writer knows it
        self.compare()
        return f"{outcome} {'alone' if failed else 'beside'}"

    def compare(self) -> None:
        """Every ref that was made is there, and can be read whole."""
        state = self.other.state(TABLE)
        found = {name: ref.snapshot for name, ref in state.refs.items()}
        assert found == self.expected, (found, self.expected)
        for snapshot in found.values():
            rows = self.other.iceberg(TABLE).scan(snapshot_id=snapshot).to_arrow()
            assert sorted(rows["id"].to_pylist()) == list(range(self.rows[snapshot]))

    # What the other writer does ------------------------------------------------------------------

    def _make_ref(self, name: str = "new") -> None:
        state, snapshot = self.other.state(TABLE), self.random.choice(list(self.rows))
        self.other.commit([refs.new_ref(state, name, snapshot, tag=self.random.random() < 0.5)])
        self.expected[name] = snapshot

    def _move_branch(self) -> None:
        state, snapshot = self.other.state(TABLE), self.random.choice(list(self.rows))
        names = [n for n, ref in state.refs.items() if ref.type == "branch" and n != "main"]
        if names:
            name = self.random.choice(names)
            change = refs.set_ref(TABLE, name, snapshot, was=state.head(name))
            self.other.commit([change])
            self.expected[name] = snapshot

    def _drop_ref(self) -> None:
        state = self.other.state(TABLE)
        names = [name for name in state.refs if name != "main"]
        if names:
            name = self.random.choice(names)
            self.other.commit([refs.remove_ref(state, name)])
            del self.expected[name]

    def _roll_back(self) -> None:
        state, snapshot = self.other.state(TABLE), self.random.choice(list(self.rows))
        self.other.commit([refs.rollback(state, snapshot)])
        self.expected["main"] = snapshot

    def _append(self) -> None:
        head = self.other.state(TABLE).head()
        assert head is not None
        number = self.rows[head]
        made = append(self.other, number)
        self.rows[made] = number + 1
        self.expected["main"] = made


class _Disturbance:
    """Have another writer act when the expiry reaches a point of its commit, once."""

    def __init__(self, point: str, act: Callable[[], None]) -> None:
        self._point, self._act = point, act
        self._failed: list[str] = []
        self._originals: dict[Any, Any] = {}

    def __enter__(self) -> list[str]:
        for module in (expiry, atomic_commit):
            self._originals[module] = module.crash_point
            module.crash_point = self._reach
        return self._failed

    def __exit__(self, *_: object) -> None:
        for module, original in self._originals.items():
            module.crash_point = original

    def _reach(self, name: str) -> None:
        if name == self._point:
            self._point = ""
            try:
                self._act()
            except ThermoclineError:
                self._failed.append(name)


def race(lake: Lake, other: Lake, seeds: range) -> Counter[str]:
    """Run races; return how often the expiry came first, and how often the other writer."""
    return Counter(ExpiryRace(lake, other, seed).run() for seed in seeds)
