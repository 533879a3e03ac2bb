"""Replicators and nodes over time: tables that belong together, damage, death, coming and going."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from tests.integration.serve.nodes.keeping import (
    WHOLE,
    head,
    make_lake,
    make_table,
    put,
    row,
    scanned,
)
from tests.integration.serve.nodes.replicators import (
    TOKEN,
    Process,
    Replicators,
    caught_up,
    held_rows,
    name_nodes,
    node_process,
    until,
)

from thermocline.lake import Lake, refs
from thermocline.lake.metadata import location_path
from thermocline.serve.fleet.state_sync import StateReplica, StateSync
from thermocline.serve.replicator import copy_delta
from thermocline.serve.replicator import replicator as keeping
from thermocline.serve.replicator.copy_delta import CopyDelta
from thermocline.serve.replicator.placement import place_tables
from thermocline.serve.replicator.replicator import Replicator
from thermocline.serve.values import LakeState
from thermocline.serve.wire.protocol import BlockingChannel


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path)


@pytest.fixture(scope="module")
def other(sockets: Path) -> Iterator[Process]:
    started = node_process(sockets, "node-1")
    yield started
    started.kill()


def publish_both(lake: Lake, one: Table, two: Table, number: int) -> None:
    """A row into each of two tables, in one catalog transaction."""
    moves = []
    for table in (one, two):
        was, branch = head(table), f"run-{number}"
        table.manage_snapshots().create_branch(was, branch).commit()
        rows = pa.Table.from_pylist([row(number)], schema=table.schema().as_arrow())
        table.refresh().append(rows, branch=branch)
        made = table.refresh().metadata.refs[branch].snapshot_id
        moves.append(refs.set_ref(".".join(table.name()), "main", made, was=was))
    lake.commit(moves)


def test_tables_of_one_commit_are_always_seen_together(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    one, two = make_table(lake, "gold.one"), make_table(lake, "gold.two", WHOLE)
    for table in (one, two):
        put(table, [row(0)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.one", "gold.two")
    ended = threading.Event()
    seen: list[tuple[int, int]] = []
    reader = threading.Thread(target=count_both, args=(replicator, node.address, ended, seen))
    looker = threading.Thread(target=look_often, args=(replicator, ended))
    reader.start()
    looker.start()
    for number in range(1, 13):
        publish_both(lake, one, two, number)
    held = caught_up(replicator, "node-0", "gold.one", "gold.two")
    until(lambda: bool(seen) and seen[-1] == (13, 13))
    ended.set()
    reader.join()
    looker.join()
    assert held["gold.one"].rows == held["gold.two"].rows == 13
    assert {a - b for a, b in seen} == {0}
    assert len({a for a, _ in seen}) > 4, "hardly any state was looked at"


def count_both(
    replicator: Replicator, address: str, ended: threading.Event, seen: list[tuple[int, int]]
) -> None:
    """Ask for both counts again and again, at the snapshots that the replicator tells of."""
    line = BlockingChannel.open(address, TOKEN, timeout=30)
    sql = 'SELECT (SELECT count(*) FROM "gold.one"), (SELECT count(*) FROM "gold.two")'
    while not ended.is_set():
        held = replicator.lake_state().hot_copies.get("node-0", {})
        asked = {t: {"table": t, "snapshot": str(copy.snapshot)} for t, copy in held.items()}
        frame = line.ask({"do": "query", "sql": sql, "tables": asked, "format": "json",
                          "rows": 9, "bytes": 999, "seconds": 9.0})  # fmt: skip
        if frame.error is None:
            one, two = (int(n) for n in bytes(frame.body).strip(b"[]\n").split(b","))
            seen.append((one, two))
        else:
            assert frame.error["code"] == "moved", frame.error
    line.close()


def look_often(replicator: Replicator, ended: threading.Event) -> None:
    while not ended.wait(0.01):
        replicator.poll()


def data_file(table: Table, number: int = 0) -> Path:
    files = sorted(task.file.file_path for task in table.refresh().scan().plan_files())
    return location_path(files[number])


def test_a_damaged_table_does_not_keep_others_from_moving_on(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    good, bad = make_table(lake, "gold.good"), make_table(lake, "gold.bad")
    for table in (good, bad):
        put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.good", "gold.bad")
    put(bad, [row(2, days=1)])
    fresh = max(data_file(bad, 0), data_file(bad, 1), key=lambda path: path.stat().st_mtime_ns)
    fresh.write_bytes(b"this is no Parquet file")
    put(good, [row(2)])
    caught_up(replicator, "node-0", "gold.good")
    until(lambda: "gold.bad" not in replicator.lake_state().hot_copies["node-0"])
    assert held_rows(node, "good", head(good)) == scanned(good)
    assert "gold.bad" in replicator.lake_state().table_heads
    bad.refresh().delete("id = 2")
    caught_up(replicator, "node-0", "gold.bad")
    assert held_rows(node, "bad", head(bad)) == scanned(bad)


def test_a_copy_that_takes_long_does_not_hold_up_other_tables(
    lake: Lake, node: Process, replicators: Replicators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of one table never ends: the other one is brought to its newest commit meanwhile."""
    quick, long = make_table(lake, "gold.quick"), make_table(lake, "gold.long")
    put(quick, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.quick")
    put(long, [row(number) for number in range(10)])
    sent, enough = threading.Event(), threading.Event()
    batches = CopyDelta.rows

    def slowly(difference: CopyDelta) -> Iterator[pa.RecordBatch]:
        yield from batches(difference)
        of_long = all(path.startswith(long.location()) for path in difference.added)
        while of_long and not enough.wait(0.01):
            sent.set()
            yield empty(long)

    monkeypatch.setattr(CopyDelta, "rows", slowly)
    replicator.poll()
    assert sent.wait(20)
    for number in range(2, 5):
        put(quick, [row(number)])
        caught_up(replicator, "node-0", "gold.quick")
        assert held_rows(node, "quick", head(quick)) == scanned(quick)
    assert "gold.long" not in replicator.lake_state().hot_copies["node-0"]
    put(long, [row(11)])
    enough.set()
    caught_up(replicator, "node-0", "gold.quick", "gold.long")
    assert held_rows(node, "long", head(long)) == scanned(long)


def empty(table: Table) -> pa.RecordBatch:
    """No rows, as a copy of the table takes them."""
    columns = [*table.schema().as_arrow(), *copy_delta.POSITIONS]
    nothing = [pa.array([], field.type) for field in columns]
    return pa.RecordBatch.from_arrays(nothing, [field.name for field in columns])


def test_a_damaged_metadata_file_hides_that_table_only(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    good, bad = make_table(lake, "gold.good"), make_table(lake, "gold.bad")
    for table in (good, bad):
        put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.good", "gold.bad")
    put(bad, [row(2)])
    location_path(lake.state("gold.bad").metadata_location).write_bytes(b"{")
    put(good, [row(2)])
    caught_up(replicator, "node-0", "gold.good")
    assert "gold.bad" not in replicator.lake_state().table_heads
    until(lambda: "gold.bad" not in replicator.lake_state().hot_copies["node-0"])
    began = time.monotonic()
    replicator.poll()
    assert time.monotonic() - began < 0.5, "what is known to be damaged is not read at every look"


def test_a_file_that_comes_late_is_waited_for(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t", WHOLE)
    put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    first = data_file(table)
    put(table, [row(2)])
    late = next(p for p in (data_file(table, 0), data_file(table, 1)) if p != first)
    away = late.with_suffix(".away")
    late.rename(away)
    timer = threading.Timer(0.4, lambda: away.rename(late))
    timer.start()
    caught_up(replicator, "node-0", "gold.t")
    timer.join()
    assert held_rows(node, "t", head(table)) == scanned(table)


def test_a_node_that_dies_is_filled_again(
    lake: Lake, sockets: Path, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t")
    put(table, [row(1)])
    mortal = node_process(sockets, "node-m")
    replicator = replicators(lake, mortal)
    caught_up(replicator, "node-m", "gold.t")
    epoch = replicator.lake_state().epoch
    mortal.kill()
    until(lambda: "node-m" not in replicator.lake_state().hot_copies, seconds=5)
    assert replicator.lake_state().epoch > epoch
    put(table, [row(2)])
    again = node_process(sockets, "node-m")
    caught_up(replicator, "node-m", "gold.t")
    assert held_rows(again, "t", head(table)) == scanned(table)
    again.kill()


def test_tables_move_when_nodes_come_and_go(
    lake: Lake,
    node: Process,
    other: Process,
    replicators: Replicators,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keeping, "GRACE_SECONDS", 0.0)
    names = [f"gold.t{number}" for number in range(5, 13)]
    tables = {name: make_table(lake, name) for name in names}
    put(make_table(lake, "gold.small", WHOLE), [row(1)])
    for table in tables.values():
        put(table, [row(1)])
    owners = place_tables({name: name for name in names}, ["node-0", "node-1"])
    assert all(owners.values()), "the names were chosen so that both nodes have some"

    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", *names, "gold.small")
    missing: list[str] = []
    with watched(replicator, names, missing):
        name_nodes(replicator, node, other)
        for name, owned in owners.items():
            until(partial(holds, replicator, name, {*owned, "gold.small"}))
    assert not missing, "a table was nowhere while it moved"
    name_nodes(replicator, other)
    assert set(replicator.lake_state().hot_copies) == {"node-1"}
    caught_up(replicator, "node-1", *names)


def holds(replicator: Replicator, node: str, tables: set[str]) -> bool:
    return set(replicator.lake_state().hot_copies.get(node, {})) == tables


class watched:
    """Takes note of tables that no node holds, for as long as it is open."""

    def __init__(self, replicator: Replicator, names: list[str], missing: list[str]) -> None:
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(replicator, names, missing))

    def _watch(self, replicator: Replicator, names: list[str], missing: list[str]) -> None:
        while not self._ended.wait(0.002):
            held = {
                table for copies in replicator.lake_state().hot_copies.values() for table in copies
            }
            missing.extend(set(names) - held)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def test_what_is_asked_for_stays_when_room_is_short(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    for name in ("gold.a", "gold.b"):
        put(make_table(lake, name, WHOLE), [row(number) for number in range(100)])
    size = replicators(lake).lake_state().table_heads["gold.a"].files.total.bytes
    replicator = replicators(lake, node, budget=6 * size)
    caught_up(replicator, "node-0", "gold.a")
    assert "gold.b" not in replicator.lake_state().hot_copies["node-0"]
    replicator.verbs()["record_queries"]({"queries": [[["gold.b", "no.such"], 3]]}, b"")
    replicator.node_changed()
    caught_up(replicator, "node-0", "gold.b")
    until(lambda: "gold.a" not in replicator.lake_state().hot_copies["node-0"])


def test_the_process_answers_the_router_and_ends_with_it(
    lake: Lake, node: Process, sockets: Path
) -> None:
    table = make_table(lake, "gold.t")
    put(table, [row(1)])
    project = str(lake.settings.project)
    replicator = Process(
        "thermocline.serve.replicator", f"unix:{sockets / 'replicator'}.sock", "--project", project
    )
    replica = StateReplica()

    def asked(**said: Any) -> LakeState:
        talk = StateSync(replica)
        following: dict[str, Any] | None = {**said, **talk.request()}
        while following is not None:
            reply = replicator.ask(**{"do": "state", **following})["state"]
            following = talk.take(reply)
        talk.finish(reply)
        return replica.state

    seen = asked(wait=10.0)
    assert seen.table_heads["gold.t"].snapshot == head(table)
    replicator.ask(do="nodes", nodes=[{"name": "n", "address": node.address, "token": TOKEN}])

    def held() -> Any:
        nonlocal seen
        after = seen.epoch
        seen = asked(wait=10.0)
        assert seen.epoch > after
        return seen.hot_copies.get("n", {}).get("gold.t")

    while held() is None:
        pass
    put(table, [row(2)])
    new = head(table)
    began = time.monotonic()
    while (copy := held()) is None or copy.snapshot != new:
        pass
    assert time.monotonic() - began < 2.0
    put(table, [row(3)])
    looked = asked(do="poll")
    assert looked.table_heads["gold.t"].snapshot == head(table)
    assert "epoch" in replicator.ask(do="rebuild", tables=["gold.t"])
    assert replicator.line.ask({"do": "query", "sql": "select 1"}).error is not None
    assert replicator.ends() == 0
    assert not (sockets / "replicator.sock").exists()


def test_a_look_at_a_lake_that_stands_still_is_cheap(lake: Lake, replicators: Replicators) -> None:
    for number in range(20):
        put(make_table(lake, f"gold.t{number}"), [row(1)])
    replicator = replicators(lake)
    epoch = replicator.lake_state().epoch
    began = time.process_time()
    for _ in range(50):
        replicator.poll()
    assert (time.process_time() - began) / 50 < 0.005
    assert replicator.lake_state().epoch == epoch
