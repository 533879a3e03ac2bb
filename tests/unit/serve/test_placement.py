"""Which node holds which tables, and what moves when nodes join and leave."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.unit.serve.data_files import file, sums

from thermocline.serve.replicator.catalog_poller import PolledTable
from thermocline.serve.replicator.desired_state import NodeCapacity, plan_desired_states
from thermocline.serve.replicator.hot_policy import Policy
from thermocline.serve.replicator.placement import place_tables, select_fitting
from thermocline.serve.replicator.query_log import HALF_LIFE, QueryLog
from thermocline.serve.values import HotCopy, TableHead

names = st.text("abcdefghij_", min_size=1, max_size=8)
tables = st.sets(names.map(lambda name: f"gold.{name}"), max_size=30)
nodes = st.sets(names, min_size=1, max_size=8)


def alone(of: Iterable[str]) -> dict[str, str]:
    return {table: table for table in of}


@given(tables, nodes, st.integers(1, 4), st.data())
def test_a_node_that_leaves_moves_only_its_own_tables(
    of: set[str], on: set[str], replicas: int, data: st.DataObject
) -> None:
    before = place_tables(alone(of), on, replicas=replicas)
    gone = data.draw(st.sampled_from(sorted(on)))
    after = place_tables(alone(of), on - {gone}, replicas=replicas)
    for node, held in after.items():
        assert before[node] <= held
        assert held - before[node] <= before[gone]


@given(tables, nodes, st.integers(1, 4))
def test_every_table_has_its_copies(of: set[str], on: set[str], replicas: int) -> None:
    placed = place_tables(alone(of), on, replicas=replicas, everywhere={"gold.small"})
    assert placed.keys() == on
    for table in of:
        assert sum(table in held for held in placed.values()) == min(replicas, len(on))
    assert all("gold.small" in held for held in placed.values())


def test_tables_spread_over_the_nodes() -> None:
    many = [f"gold.t{number}" for number in range(400)]
    placed = place_tables(alone(many), ["node-0", "node-1", "node-2", "node-3"])
    assert all(50 < len(held) < 170 for held in placed.values())


def test_no_node_holds_nothing() -> None:
    assert place_tables(alone(["gold.t"]), []) == {}


def test_tables_that_are_asked_together_live_together() -> None:
    asked = QueryLog()
    sizes = dict.fromkeys(("gold.a", "gold.b", "gold.c", "gold.d"), 10)
    assert asked.group_tables(sizes, limit=100) == alone(sizes)
    for _ in range(3):
        asked.record(["gold.d", "gold.b"])
    asked.record(["gold.a", "gold.c"])
    keys = asked.group_tables(sizes, limit=100)
    assert keys == {"gold.a": "gold.a", "gold.b": "gold.b", "gold.c": "gold.c", "gold.d": "gold.b"}
    placed = place_tables(keys, [f"node-{number}" for number in range(5)])
    assert [{"gold.b", "gold.d"} <= held for held in placed.values()].count(True) == 1


def test_a_group_never_outgrows_a_node() -> None:
    asked = QueryLog()
    for _ in range(5):
        asked.record(["gold.a", "gold.b"])
    for _ in range(9):
        asked.record(["gold.b", "gold.c"])
    keys = asked.group_tables({"gold.a": 40, "gold.b": 40, "gold.c": 40}, limit=100)
    assert keys == {"gold.a": "gold.a", "gold.b": "gold.b", "gold.c": "gold.b"}


def test_questions_are_forgotten_and_pairs_with_them() -> None:
    now = [0.0]
    asked = QueryLog(clock=lambda: now[0])
    for _ in range(4):
        asked.record(["gold.a", "gold.b"])
    assert asked.weight("gold.a") == 4.0
    now[0] += HALF_LIFE
    asked.record(["gold.z"])
    assert asked.weight("gold.a") == 2.0
    both = {"gold.a": 1, "gold.b": 1}
    assert asked.group_tables(both, 10)["gold.b"] == "gold.a", "a pair does not part at once"
    now[0] += 20 * HALF_LIFE
    asked.record(["gold.z"])
    assert asked.group_tables(both, 10) == alone(both)
    assert asked.weight("gold.a") < 0.01


def test_the_least_valuable_goes_first_when_room_is_short() -> None:
    sizes = {"gold.big": 60, "gold.mid": 30, "gold.small": 20, "gold.huge": 500}
    asked = QueryLog()
    assert select_fitting(sizes, sizes, asked.weight, 100) == {"gold.small", "gold.mid"}
    asked.record(["gold.big"])
    assert select_fitting(sizes, sizes, asked.weight, 100) == {"gold.big", "gold.small"}
    asked.record(["gold.huge"])
    asked.record(["gold.huge"])
    assert select_fitting(sizes, sizes, asked.weight, 100) == {"gold.big", "gold.small"}


def sight(name: str, size: int) -> Any:
    now = datetime(2026, 11, 16, tzinfo=UTC)
    head = TableHead(name, "", 1, "", now, {}, None, (1,), sums(file(size, 1)), hot=math.inf)
    return PolledTable(head, table=None, schema=None, time_id=None)  # type: ignore[arg-type]


def wanted(
    rooms: Mapping[str, NodeCapacity], asked: QueryLog, replicas: int = 1, **sizes: int
) -> dict[str, set[str]]:
    sights = {f"gold.{name}": sight(f"gold.{name}", size) for name, size in sizes.items()}
    policy = Policy(budget=1000, whole_bytes=20, replicas=replicas)
    found = plan_desired_states(
        1, sights, rooms, set(rooms), asked, policy, datetime(2026, 11, 16, tzinfo=UTC)
    )
    return {node: set(goal.copies) for node, goal in found.items()}


def test_a_node_that_found_itself_full_keeps_what_is_worth_most() -> None:
    asked = QueryLog()
    held = {"gold.a": HotCopy(1, None, bytes=70)}
    both = {"gold.a", "gold.b"}
    assert wanted({"n": NodeCapacity(held)}, asked, a=20, b=20) == {"n": both}
    full = {"n": NodeCapacity(held, bytes=70 + 4 * 20 - 1)}
    assert wanted(full, asked, a=20, b=20) == {"n": {"gold.a"}}
    asked.record(["gold.b"])
    assert wanted(full, asked, a=20, b=20) == {"n": {"gold.b"}}
    for _ in range(2):
        asked.record(["gold.a"])
    assert wanted(full, asked, a=20, b=20) == {"n": {"gold.a"}}


def test_second_copies_take_only_what_the_first_ones_leave() -> None:
    rooms = {"node-0": NodeCapacity({}), "node-1": NodeCapacity({})}
    sizes = dict.fromkeys((f"t{number}" for number in range(8)), 50)  # 200 bytes in memory each
    names = {f"gold.{name}" for name in sizes}
    first = place_tables(alone(names), rooms)
    asked = QueryLog()
    asked.record(first["node-1"], times=5)
    found = wanted(rooms, asked, replicas=2, **sizes)
    for node, tables in found.items():
        assert len(tables) == 5 and len(tables & first[node]) == min(5, len(first[node]))
    few = wanted(rooms, QueryLog(), replicas=2, a=50, b=50)
    assert few == {node: {"gold.a", "gold.b"} for node in rooms}


def test_a_table_that_moves_stays_until_it_has_arrived() -> None:
    asked = QueryLog()
    names = [f"t{number}" for number in range(5, 13)]
    sizes = dict.fromkeys(names, 21)
    every = {f"gold.{name}": HotCopy(1, None, bytes=1) for name in names}
    placed = place_tables(alone(every), ["node-0", "node-1"])
    assert all(placed.values())
    joined = wanted({"node-0": NodeCapacity(every), "node-1": NodeCapacity({})}, asked, **sizes)
    assert joined == {"node-0": set(every), "node-1": set(placed["node-1"])}
    there = {table: every[table] for table in placed["node-1"]}
    arrived = wanted({"node-0": NodeCapacity(every), "node-1": NodeCapacity(there)}, asked, **sizes)
    assert arrived == {node: set(tables) for node, tables in placed.items()}
