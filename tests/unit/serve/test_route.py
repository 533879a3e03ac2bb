"""The routes of queries, and the reasons for them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from tests.unit.serve.data_files import file, sums

from thermocline.serve.analysis.time_range import UNBOUNDED, TimeRange
from thermocline.serve.route import Engines, Route, SnapshotRequirements, decide_route
from thermocline.serve.values import HotCopy, LakeState, TableHead

NOW = datetime(2026, 11, 16, 12, tzinfo=UTC)
SINCE = datetime(2026, 11, 9, tzinfo=UTC)
MB = 1_000_000


def day(number: int) -> datetime:
    return datetime(2026, 11, number)


def head(table: str, snapshots: tuple[int, ...] = (3, 2, 1), time: str | None = "at") -> TableHead:
    files = sums(*(file(100 * MB, 1000, day(n), day(n + 1)) for n in range(1, 16)))
    return TableHead(
        table, "u", snapshots[0], "m", NOW, {"at": "timestamp"}, time, snapshots, files, 1
    )


def routed(
    span: TimeRange = UNBOUNDED,
    held: dict[str, dict[str, HotCopy]] | None = None,
    *,
    busy: dict[str, int] | None = None,
    cold: tuple[str, ...] = ("spark",),
    exactly: dict[str, int] | None = None,
    at_least: dict[str, int] | None = None,
    superseded_at: dict[tuple[str, int], datetime] | None = None,
    tolerance: float = 2.0,
    distrusted: frozenset[str] = frozenset(),
    tables: tuple[str, ...] = ("s.t",),
) -> Route:
    lake_state = LakeState(1, NOW, {name: head(name) for name in tables}, held or {})
    engines = Engines(busy or dict.fromkeys(held or {}, 0), True, cold, 300 * MB)
    wanted = SnapshotRequirements(exactly or {}, at_least or {}, tolerance, superseded_at or {})
    spans = dict.fromkeys(tables, span)
    return decide_route(spans, lake_state, wanted, engines, now=NOW, distrusted=distrusted)


def access_paths(route: Route) -> list[str]:
    return [way.node or way.engine for way in route.access_paths]


def test_inside_the_window_is_hot_and_falls_back_to_direct_and_then_cold() -> None:
    route = routed(TimeRange(day(14)), {"n0": {"s.t": HotCopy(3, SINCE)}})
    assert access_paths(route) == ["n0", "direct", "spark"]
    assert route.access_paths[0].snapshots == {"s.t": 3}
    assert "reads s.t from 2026-11-14 00:00 to now" in route.access_paths[0].because


@pytest.mark.parametrize("start", [None, datetime(2026, 11, 8, 23, 59, 59, 999999)])
def test_one_microsecond_before_the_window_is_not_hot(start: datetime | None) -> None:
    held = {"n0": {"s.t": HotCopy(3, SINCE)}}
    assert "n0" in access_paths(routed(TimeRange(day(9)), held))
    assert "n0" not in access_paths(routed(TimeRange(start), held))


def test_a_copy_that_is_whole_answers_everything() -> None:
    assert access_paths(routed(UNBOUNDED, {"n0": {"s.t": HotCopy(3, None)}}))[0] == "n0"


def test_bytes_after_pruning_choose_between_direct_and_cold() -> None:
    # A file per day, 100 MB each; a file that ends where the span begins counts as well.
    small = routed(TimeRange(day(14)))
    assert (small.files, small.bytes) == (3, 300 * MB)
    assert access_paths(small) == ["direct", "spark"]
    large = routed(TimeRange(day(13), day(15)))
    assert large.bytes == 400 * MB
    assert access_paths(large) == ["spark", "direct"]
    assert access_paths(routed(UNBOUNDED, cold=("trino", "spark"))) == ["trino", "spark", "direct"]


def test_a_join_needs_one_node_that_holds_all_of_it() -> None:
    apart = {"n0": {"s.a": HotCopy(3, None)}, "n1": {"s.b": HotCopy(3, None)}}
    assert access_paths(routed(UNBOUNDED, apart, tables=("s.a", "s.b")))[0] == "spark"
    together = {**apart, "n2": {"s.a": HotCopy(3, None), "s.b": HotCopy(3, None)}}
    assert access_paths(routed(UNBOUNDED, together, tables=("s.a", "s.b")))[0] == "n2"


def test_the_least_busy_node_comes_first() -> None:
    copy = {"s.t": HotCopy(3, None)}
    route = routed(UNBOUNDED, {"n0": copy, "n1": copy}, busy={"n0": 5, "n1": 1})
    assert access_paths(route)[:2] == ["n1", "n0"]


def test_a_node_that_is_down_is_not_a_way() -> None:
    copy = {"s.t": HotCopy(3, None)}
    assert "n0" not in access_paths(routed(UNBOUNDED, {"n0": copy}, busy={"n1": 0}))


def test_a_named_snapshot_is_hot_only_where_it_is_held() -> None:
    held = {"n0": {"s.t": HotCopy(2, None)}}
    route = routed(UNBOUNDED, held, exactly={"s.t": 2})
    assert access_paths(route)[0] == "n0"
    route = routed(UNBOUNDED, held, exactly={"s.t": 1})
    assert "n0" not in access_paths(route)
    assert all(way.snapshots == {"s.t": 1} for way in route.access_paths)


def test_own_writes_are_never_answered_from_an_older_copy() -> None:
    left = {("s.t", 2): NOW, ("s.t", 1): NOW}
    for snapshot, hot in ((3, True), (2, True), (1, False)):
        held = {"n0": {"s.t": HotCopy(snapshot, None)}}
        route = routed(UNBOUNDED, held, at_least={"s.t": 2}, superseded_at=left)
        assert ("n0" in access_paths(route)) is hot, snapshot
        assert all(way.snapshots["s.t"] >= 2 for way in route.access_paths)


@pytest.mark.parametrize(
    ("held", "seconds", "is_node_catching_up"),
    [
        ({"n0": {"s.t": HotCopy(2, None), "s.u": HotCopy(3, None)}}, 5, True),
        ({"n0": {"s.t": HotCopy(2, None), "s.u": HotCopy(2, None)}}, 5, True),
        ({"n0": {}, "n1": {"s.t": HotCopy(2, None), "s.u": HotCopy(3, None)}}, 5, True),
        ({"n0": {"s.t": HotCopy(2, None), "s.u": HotCopy(3, None)}}, 11, False),
        (
            {"n0": {"s.t": HotCopy(1, None), "s.u": HotCopy(3, None)}},
            5,
            False,
        ),  # since when is not known
        ({"n0": {"s.t": HotCopy(2, None)}}, 5, False),
        ({"n0": {"s.t": HotCopy(2, SINCE), "s.u": HotCopy(3, None)}}, 5, False),
    ],
)
def test_a_node_that_lacks_nothing_but_the_newest_will_soon_do(
    held: dict[str, dict[str, HotCopy]], seconds: float, is_node_catching_up: bool
) -> None:
    left = dict.fromkeys([("s.t", 2), ("s.u", 2)], NOW - timedelta(seconds=seconds))
    route = routed(UNBOUNDED, held, superseded_at=left, tables=("s.t", "s.u"))
    assert access_paths(route)[0] != "n0"
    assert route.is_node_catching_up is is_node_catching_up
    asked = routed(UNBOUNDED, held, superseded_at=left, tables=("s.t", "s.u"), at_least={"s.t": 3})
    assert asked.is_node_catching_up is is_node_catching_up


def test_a_copy_that_is_behind_serves_for_a_moment_only() -> None:
    held = {"n0": {"s.t": HotCopy(2, None)}}
    just = {("s.t", 2): NOW - timedelta(seconds=1)}
    long_ago = {("s.t", 2): NOW - timedelta(seconds=3)}
    assert access_paths(routed(UNBOUNDED, held, superseded_at=just))[0] == "n0"
    assert "n0" not in access_paths(routed(UNBOUNDED, held, superseded_at=long_ago))
    assert "n0" not in access_paths(routed(UNBOUNDED, held, superseded_at=just, tolerance=0))
    assert "n0" not in access_paths(routed(UNBOUNDED, held))


def test_a_copy_in_doubt_is_not_used() -> None:
    held = {"n0": {"s.t": HotCopy(3, None)}}
    route = routed(UNBOUNDED, held, distrusted=frozenset({"s.t"}))
    assert "n0" not in access_paths(route)
    assert "s.t is being rebuilt" in route.access_paths[0].because
