"""The replicator and real nodes: what a node answers is what the lake holds at that snapshot."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)
from tests.integration.serve.nodes.keeping import (
    BY_DAY,
    NOW,
    WHOLE,
    delete_positions,
    head,
    make_lake,
    make_table,
    put,
    row,
    scanned,
)
from tests.integration.serve.nodes.replicators import (
    SINCE,
    Process,
    Replicators,
    caught_up,
    held_rows,
    until,
)

from thermocline.lake import Lake, refs
from thermocline.serve.replicator import node_client, node_sync


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return make_lake(tmp_path)


@pytest.mark.parametrize("most", [100_000, 2])
def test_a_window_follows_appends_deletes_and_rewrites(
    lake: Lake, node: Process, replicators: Replicators, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when what goes is told in many messages."""
    monkeypatch.setattr(node_client, "MAX_REMOVED_FILES", most)
    monkeypatch.setattr(node_client, "MAX_DELETED_ROWS", most)
    table = make_table(lake, "gold.t")
    put(table, [row(n, days=n) for n in range(12)] + [row(99, note=None), {**row(98), "at": None}])
    replicator = replicators(lake, node)

    def check() -> None:
        held = caught_up(replicator, "node-0", "gold.t")["gold.t"]
        assert held.since == SINCE
        expected = scanned(table, since=SINCE)
        assert held_rows(node, "t", head(table)) == expected
        assert held.rows == len(expected)

    check()
    put(table, [row(20, days=1), row(21, days=30)])
    check()
    table.refresh().delete("id = 3")
    check()
    files = sorted(task.file.file_path for task in table.refresh().scan().plan_files())
    delete_positions(lake, table, {path: [0] for path in files[:6]})
    check()
    table.refresh().overwrite(table.scan().to_arrow())
    check()
    table.refresh().delete("id >= 0")
    check()
    put(table, [row(1, days=2)])
    check()


def test_a_table_without_a_time_is_held_whole(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t", WHOLE)
    put(table, [row(n, days=100 * n) for n in range(5)])
    replicator = replicators(lake, node)
    assert caught_up(replicator, "node-0", "gold.t")["gold.t"].since is None
    assert held_rows(node, "t", head(table)) == scanned(table)


def test_a_copy_follows_a_rollback_and_back_again(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t")
    first = put(table, [row(1), row(2)])
    files = [task.file.file_path for task in table.scan().plan_files()]
    second = delete_positions(lake, table, {files[0]: [0]})
    third = put(table, [row(3)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    for target in (first, third, second, first):
        lake.commit([refs.rollback(lake.state("gold.t"), target)])
        held = caught_up(replicator, "node-0", "gold.t")["gold.t"]
        assert held.snapshot == target
        assert held_rows(node, "t", target) == scanned(table, target)


def test_a_new_column_makes_a_new_copy(lake: Lake, node: Process, replicators: Replicators) -> None:
    table = make_table(lake, "gold.t")
    put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    with table.refresh().update_schema() as update:
        update.add_column("size", IntegerType())
        update.rename_column("note", "remark")
    put(table, [{"id": 2, "at": NOW, "remark": "r", "size": 7}])
    caught_up(replicator, "node-0", "gold.t")
    assert replicator.lake_state().table_heads["gold.t"].columns["size"] == "int"
    found = node.rows('SELECT id, remark, size FROM "gold.t" ORDER BY id', t=head(table))
    assert found == [(1, "", None), (2, "r", 7)]


def test_a_table_made_anew_under_the_old_name(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t")
    put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    lake.catalog.drop_table("gold.t")
    replicator.poll()
    until(lambda: not replicator.lake_state().hot_copies["node-0"])
    assert "gold.t" not in node.ask(do="held")["tables"]
    table = make_table(lake, "gold.t")
    put(table, [row(5)])
    caught_up(replicator, "node-0", "gold.t")
    assert held_rows(node, "t", head(table)) == scanned(table)


def test_the_snapshot_that_a_copy_is_at_may_expire(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t")
    old = put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    put(table, [row(2)])
    table.refresh().maintenance.expire_snapshots().by_id(old).commit()
    assert old not in lake.state("gold.t").snapshots
    caught_up(replicator, "node-0", "gold.t")
    assert held_rows(node, "t", head(table)) == scanned(table)


def test_every_type_survives(lake: Lake, node: Process, replicators: Replicators) -> None:
    kinds = (
        BooleanType(), IntegerType(), LongType(), FloatType(), DoubleType(), DecimalType(12, 2),
        DateType(), TimeType(), TimestampType(), TimestamptzType(), StringType(), UUIDType(),
        BinaryType(), FixedType(3), ListType(50, IntegerType(), element_required=False),
        StructType(NestedField(51, "x", LongType()), NestedField(52, "y", StringType())),
        MapType(53, StringType(), 54, LongType(), value_required=False),
    )  # fmt: skip
    schema = Schema(*(NestedField(n, f"c{n}", kind) for n, kind in enumerate(kinds, 1)))
    values: tuple[Any, ...] = (
        True, -1, 2**62, 1.5, -0.1, Decimal("-123.45"), NOW.date(), NOW.time(),
        NOW.replace(tzinfo=None), NOW, "é\n\0", UUID(int=7).bytes, b"\xff\x00", b"abc",
        [1, None], {"x": 1, "y": None}, [("k", None)],
    )  # fmt: skip
    table = make_table(lake, "gold.t", WHOLE, schema)
    full = {f"c{n}": value for n, value in enumerate(values, 1)}
    put(table, [full, dict.fromkeys(full)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    found = node.arrow('SELECT * FROM "gold.t" ORDER BY c1', t=head(table))
    assert found.to_pylist() == [{**full, "c12": str(UUID(int=7))}, dict.fromkeys(full)]


def test_a_day_passes_and_the_window_with_it(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t")
    put(table, [row(n, days=n) for n in range(10)])
    replicator = replicators(lake, node)
    assert caught_up(replicator, "node-0", "gold.t")["gold.t"].since == SINCE
    replicators.now += timedelta(days=2)
    replicator.node_changed()
    tomorrow = SINCE + timedelta(days=2)
    until(lambda: replicator.lake_state().hot_copies["node-0"]["gold.t"].since == tomorrow)
    assert held_rows(node, "t", head(table)) == scanned(table, since=tomorrow)
    replicators.now -= timedelta(days=2)
    replicator.node_changed()
    until(lambda: replicator.lake_state().hot_copies["node-0"]["gold.t"].since == SINCE)
    assert held_rows(node, "t", head(table)) == scanned(table, since=SINCE)


def test_a_large_change_is_a_new_copy(
    lake: Lake, node: Process, replicators: Replicators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_sync, "BUILD_BYTES", 1)
    table = make_table(lake, "gold.t")
    put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    put(table, [row(2)])
    caught_up(replicator, "node-0", "gold.t")
    assert held_rows(node, "t", head(table)) == scanned(table)


def test_a_distrusted_copy_is_out_of_sight_until_it_is_made_anew(
    lake: Lake, node: Process, replicators: Replicators
) -> None:
    table = make_table(lake, "gold.t")
    put(table, [row(1)])
    replicator = replicators(lake, node)
    caught_up(replicator, "node-0", "gold.t")
    seen = []
    with replicator._changed:
        epoch = replicator.verbs()["rebuild"]({"tables": ["gold.t"]}, b"")["epoch"]
        seen.append(replicator.lake_state())
    assert seen[0].epoch == epoch
    assert "gold.t" not in seen[0].hot_copies["node-0"]
    caught_up(replicator, "node-0", "gold.t")
    assert replicator.lake_state().epoch > epoch
    assert held_rows(node, "t", head(table)) == scanned(table)


numbers = count(1)
days = st.floats(0, 14)
operations = st.one_of(
    st.tuples(st.just("put"), st.lists(days | st.none(), min_size=1, max_size=8)),
    st.tuples(st.just("delete"), st.integers(0, 30)),
    st.tuples(st.just("places"), st.lists(st.integers(0, 3), min_size=1, max_size=4)),
    st.tuples(st.just("rewrite"), st.none()),
    st.tuples(st.just("rollback"), st.integers(1, 3)),
    st.tuples(st.just("column"), st.none()),
    st.tuples(st.just("expire"), st.none()),
)


@pytest.mark.parametrize("spec", [BY_DAY, WHOLE], ids=["window", "whole"])
@given(steps=st.lists(operations, min_size=3, max_size=6), often=st.booleans())
@settings(
    max_examples=8,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_whatever_happens_a_node_holds_the_snapshot(
    lake: Lake,
    node: Process,
    replicators: Replicators,
    spec: PartitionSpec,
    steps: list[tuple[str, Any]],
    often: bool,
) -> None:
    name = f"t{next(numbers)}"
    table = make_table(lake, f"gold.{name}", spec)
    put(table, [row(n, days=n) for n in range(6)])
    replicator = replicators(lake, node)
    since = SINCE if spec is BY_DAY else None
    for number, (kind, what) in enumerate(steps):
        change(lake, table, kind, what, number)
        if often or number == len(steps) - 1:
            held = caught_up(replicator, "node-0", f"gold.{name}")[f"gold.{name}"]
            assert held.snapshot == head(table)
            assert held_rows(node, name, head(table)) == scanned(table, head(table), since)
    replicators.stop()
    lake.catalog.drop_table(f"gold.{name}")


def change(lake: Lake, table: Table, kind: str, what: Any, number: int) -> None:
    """Do something to a table that a writer or a maintainer might."""
    table.refresh()
    state = lake.state(".".join(table.name()))
    match kind:
        case "put":
            rows = [row(10 + n, days=d or 0) for n, d in enumerate(what)]
            at = [
                r if d is not None else {**r, "at": None} for r, d in zip(rows, what, strict=True)
            ]
            put(table, at)
        case "delete":
            table.delete(f"id >= {what}")
        case "places":
            live = {task.file.file_path: task.file for task in table.scan().plan_files()}
            places = {p: [n for n in what if n < f.record_count] for p, f in live.items()}
            found = {p: at for p, at in list(places.items())[:3] if at}
            if found:
                delete_positions(lake, table, found)
        case "rewrite":
            table.overwrite(table.scan().to_arrow())
        case "rollback":
            past = [snapshot.id for snapshot in state.ancestry(state.head())]
            lake.commit([refs.rollback(state, past[min(what, len(past) - 1)])])
        case "column":
            with table.update_schema() as update:
                update.add_column(f"more_{number}", IntegerType())
            put(table, [row(70 + number)])
        case "expire":
            old = [each for each in state.snapshots if each != state.head()]
            expiry = table.maintenance.expire_snapshots()
            for each in old:
                expiry = expiry.by_id(each)
            if old:
                expiry.commit()
