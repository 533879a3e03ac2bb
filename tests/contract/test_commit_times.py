"""Commit times never go back, on whichever catalog and whichever way a commit takes.

A clock that was set back is a table whose last commit is ahead of it: that is how it is made here.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from tests.contract.catalog_tables import ORDERS, add_orders, evolved, ids, order
from tests.contract.commit_entries import entry, overwriting

from thermocline.lake import Lake, refs
from thermocline.lake.commit_times import backward_ms, last_ms, now_ms, repair_times
from thermocline.lake.metadata import TableState, location_path
from thermocline.lake.time_travel import resolve_snapshot

TABLE = ORDERS.table
HOUR = 3_600_000


def rewrite(state: TableState, raw: Mapping[str, Any]) -> None:
    """Put another text into a table's metadata file; Hadoop's checksum beside it goes."""
    path = location_path(state.metadata_location)
    path.write_text(json.dumps(raw))
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def set_clock_back(lake: Lake, by: int, table: str = TABLE) -> None:
    """Make all that was committed so far so much later than the clock."""
    state = lake.state(table)
    raw = dict(state.raw)
    raw["last-updated-ms"] += by
    for log in ("snapshots", "snapshot-log", "metadata-log"):
        raw[log] = [{**e, "timestamp-ms": e["timestamp-ms"] + by} for e in raw.get(log) or ()]
    rewrite(state, raw)


def _draft(lake: Lake) -> None:
    draft = lake.draft("R1")
    draft.begin(TABLE)
    rows = pa.Table.from_pylist([order(5)], lake.iceberg(TABLE).schema().as_arrow())
    draft.append(TABLE, rows, bookmark={}, operation="append")
    draft.replace(TABLE, rows, bookmark={}, operation="replace")
    draft.publish()


def _rollback(lake: Lake) -> None:
    state = lake.state(TABLE)
    first = min(state.snapshots.values(), key=lambda each: each.sequence)
    lake.commit([refs.rollback(state, first.id)])


def _names(lake: Lake) -> None:
    lake.commit([refs.new_ref(lake.state(TABLE), "here", None, tag=True)])
    lake.commit([refs.remove_ref(lake.state(TABLE), "here")])


COMMITS: dict[str, Callable[[Lake], object]] = {
    "pyiceberg": lambda lake: add_orders(lake, TABLE, 2),
    "draft": _draft,
    "group commit": lambda lake: lake.group_commit.commit(entry(lake, "k1", 3)),
    "group commit that replaces": lambda lake: lake.group_commit.commit(overwriting(lake, "k2", 4)),
    "names": _names,
    "evolution": lambda lake: lake.ensure(evolved()),
    "rollback": _rollback,
}


@pytest.mark.parametrize("by", [HOUR, 30_000])
def test_commit_times_never_go_back(lake: Lake, by: int) -> None:
    lake.ensure(ORDERS)
    add_orders(lake, TABLE, 1)
    served = lake.settings.catalog.type == "rest"
    if served and by > 60_000:
        pytest.skip("the server of a REST catalog has a clock of its own, and refuses by itself")
    set_clock_back(lake, by)
    for name, commit in COMMITS.items():
        before = lake.state(TABLE)
        commit(lake)
        after = lake.state(TABLE)
        new = [s for s in after.snapshots.values() if s.id not in before.snapshots]
        assert all(s.timestamp_ms > last_ms(before.raw) for s in new), name
        if not served:
            assert backward_ms(after.raw) == 0, name
            assert last_ms(after.raw) > last_ms(before.raw), name


def test_all_tables_of_a_transaction_go_forward(lake: Lake) -> None:
    if lake.settings.catalog.type == "rest":
        pytest.skip("the server of a REST catalog keeps the times")
    tables = ("gold.a", "gold.b")
    for table in tables:
        lake.ensure(replace(ORDERS, table=table))
        set_clock_back(lake, HOUR, table)
    before = {table: last_ms(lake.state(table).raw) for table in tables}
    lake.commit([refs.new_ref(lake.state(table), "x", None, tag=True) for table in tables])
    for table in tables:
        raw = lake.state(table).raw
        assert last_ms(raw) > before[table] and backward_ms(raw) == 0


def test_a_time_finds_what_was_current_then(lake: Lake) -> None:
    if lake.settings.catalog.type == "rest":
        pytest.skip("the server of a REST catalog keeps the times")
    lake.ensure(ORDERS)
    first = add_orders(lake, TABLE, 1)
    then = datetime.fromtimestamp(last_ms(lake.state(TABLE).raw) / 1000, tz=UTC)
    set_clock_back(lake, HOUR)
    second = add_orders(lake, TABLE, 2)
    state = lake.state(TABLE)
    assert resolve_snapshot(state, then + timedelta(hours=1)) == first
    assert resolve_snapshot(state, then + timedelta(hours=1, seconds=1)) == second
    assert resolve_snapshot(state, "now") == second


def test_times_that_earlier_writers_left_are_mended(lake: Lake) -> None:
    if lake.settings.catalog.type == "rest":
        pytest.skip("the server of a REST catalog keeps the times")
    lake.ensure(ORDERS)
    for number in range(4):
        add_orders(lake, TABLE, number)
    for seed in range(20):
        _jumble(lake, Random(seed))
        before = lake.state(TABLE)
        lake.repair_commit_times(TABLE)
        after = lake.state(TABLE)
        assert backward_ms(after.raw) == 0
        assert last_ms(after.raw) <= now_ms()
        assert after.snapshots == before.snapshots and after.refs == before.refs
        assert _order(after) == _order(before)
        assert after.raw["metadata-log"][-1]["metadata-file"] == before.metadata_location
        assert ids(lake, TABLE) == [0, 1, 2, 3]


def _jumble(lake: Lake, dice: Random) -> None:
    """Move each time by up to two hours either way."""
    state = lake.state(TABLE)
    raw = dict(state.raw)
    raw["last-updated-ms"] += dice.randrange(-2 * HOUR, 2 * HOUR)
    for log in ("snapshot-log", "metadata-log"):
        raw[log] = [
            {
                **e,
                "timestamp-ms": e["timestamp-ms"] + dice.choice([0, 1, -1]) * dice.randrange(HOUR),
            }
            for e in raw.get(log) or ()
        ]
    rewrite(state, raw)


def _order(state: TableState) -> list[int]:
    return [entry["snapshot-id"] for entry in state.raw["snapshot-log"]]


def test_times_in_order_stay_as_they_are(lake: Lake) -> None:
    lake.ensure(ORDERS)
    add_orders(lake, TABLE, 1)
    state = lake.state(TABLE)
    assert repair_times(state)["snapshot-log"] == state.raw["snapshot-log"]
    assert repair_times(state)["metadata-log"][:-1] == state.raw["metadata-log"]
