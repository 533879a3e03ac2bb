"""The last state of an hour and of a day stays, and a unit goes back to it, whatever expires."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tests.conftest import clean_environment
from tests.integration.test_retention import CONTRACT, TARGET, ids, put, take
from tests.servers import settings

from thermocline.api.table import Table
from thermocline.config import load_settings
from thermocline.errors import NotFound
from thermocline.lake import Lake, restore_points, retention
from thermocline.lake.carried_state import read_anchors
from thermocline.lake.commit_times import from_ms, now_ms
from thermocline.lake.companions import quarantine_of
from thermocline.lake.orphans import find_orphans
from thermocline.lake.restore_points import is_restore_point, restore_points_of
from thermocline.lake.time_travel import resolve_snapshot

QUARANTINE = quarantine_of(TARGET)
HOURS, DAYS = 3, 2
FEW = {
    "THERMOCLINE_LAKE__RETENTION__SNAPSHOTS": "2",
    "THERMOCLINE_LAKE__RETENTION__AGE": "0.001s",
    "THERMOCLINE_LAKE__RETENTION__HOURLY": str(HOURS),
    "THERMOCLINE_LAKE__RETENTION__DAILY": str(DAYS),
    "THERMOCLINE_LAKE__RETENTION__DEAD_AFTER": "1000d",
}


class Clock:
    """The time that commits see: it passes as it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = time.time_ns
        self._ahead = timedelta()
        monkeypatch.setattr(
            time, "time_ns", lambda: real() + int(self._ahead.total_seconds() * 1e9)
        )
        self._to_midnight()

    def _to_midnight(self) -> None:
        now = self.now()
        tomorrow = datetime(now.year, now.month, now.day, tzinfo=UTC) + timedelta(days=1)
        self.wait(tomorrow - now)

    def now(self) -> datetime:
        return datetime.fromtimestamp(time.time_ns() / 1e9, tz=UTC)

    def wait(self, span: timedelta) -> None:
        self._ahead += span


class SteppedClock(Clock):
    """The time by which restore points are chosen, where a server stamps commits itself.

    It maps the server's time to the test's, which has passed as it was told to.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = timedelta()
        self._steps: list[tuple[int, timedelta]] = []
        for module in (restore_points, retention):
            monkeypatch.setattr(module, "from_ms", self.at)
        self._to_midnight()

    def at(self, ms: int) -> datetime:
        ahead = next((ahead for since, ahead in reversed(self._steps) if ms >= since), timedelta())
        return from_ms(ms) + ahead

    def now(self) -> datetime:
        return self.at(now_ms())

    def wait(self, span: timedelta) -> None:
        super().wait(span)
        time.sleep(0.005)  # commits of one moment are a millisecond apart
        self._steps.append((now_ms(), self._ahead))
        time.sleep(0.002)


@dataclass
class Timeline:
    """What main held, and its quarantine, from which moment on: a model in plain Python."""

    states: list[tuple[datetime, frozenset[int], int]] = field(default_factory=list)

    def at_end_of(self, name: str) -> tuple[frozenset[int], int]:
        """The rows, and how many were set aside, at the end of the hour or day of a point."""
        kind, _, text = name.partition("-")
        span = timedelta(hours=1) if kind == "hourly" else timedelta(days=1)
        start = datetime.fromisoformat(f"{text}:00" if kind == "hourly" else text)
        end = start.replace(tzinfo=UTC) + span
        before = ((rows, aside) for at, rows, aside in reversed(self.states) if at < end)
        return next(before, (frozenset(), 0))  # a table begins empty


@pytest.fixture
def lake(request: pytest.FixtureRequest, project: Path) -> Iterator[Lake]:
    there = FEW
    if getattr(request, "param", "sqlite") == "postgres":
        server = request.getfixturevalue("postgres_server")
        there = FEW | settings.postgres_lake_settings(server, project)
    if getattr(request, "param", "sqlite") == "rest":
        server = request.getfixturevalue("rest_catalog_server")
        there = FEW | settings.rest_lake_settings(server)
    opened = Lake(load_settings(project, environ={**clean_environment(), **there}))
    yield opened
    opened.duck.stop()


@pytest.fixture
def clock(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> Clock:
    return (Clock if lake.consumption_store else SteppedClock)(monkeypatch)


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def points(lake: Lake, table: str = TARGET) -> dict[str, int]:
    return restore_points_of(lake.state(table))


def rows_at(lake: Lake, name: str) -> tuple[frozenset[int], int]:
    """What a table and its quarantine hold at a name."""
    aside = 0
    if lake.exists(QUARANTINE):
        snapshot = lake.state(QUARANTINE).refs[name].snapshot
        aside = lake.iceberg(QUARANTINE).scan(snapshot_id=snapshot).to_arrow().num_rows
    return frozenset(ids(lake, lake.state(TARGET).refs[name].snapshot)), aside


@pytest.mark.parametrize("lake", ["sqlite", "postgres"], indirect=True)
def test_of_each_hour_and_day_the_last_state_stays(lake: Lake, landing: Path, clock: Clock) -> None:
    number, last_of = 0, dict[str, list[int]]()
    for _ in range(4):
        for _ in range(5):  # the first five hours of a day, three commits each
            for _ in range(3):
                put(landing, f"{number}.jsonl", number)
                assert take(lake, landing)
                for kind in ("hourly-%Y-%m-%dT%H", "daily-%Y-%m-%d"):
                    last_of[f"{clock.now():{kind}}"] = list(range(number + 1))
                number += 1
                clock.wait(timedelta(minutes=10))
            clock.wait(timedelta(minutes=30))
        clock.wait(timedelta(hours=19))
    found = points(lake)
    hours = sorted(name for name in last_of if name.startswith("hourly"))
    days = sorted(name for name in last_of if name.startswith("daily"))
    # The newest hour and day are in the snapshots that are kept anyway.
    assert sorted(found) == sorted([*days[-1 - DAYS : -1], *hours[-1 - HOURS : -1]])
    for name, snapshot in found.items():
        assert ids(lake, snapshot) == last_of[name]
    assert len(lake.state(TARGET).snapshots) == len({*found.values()}) + 2
    assert find_orphans(lake.iceberg(TARGET)) == []

    history = Table(lake, TARGET, CONTRACT).history()
    assert {name for entry in history for name in entry.refs} == {"main", *found}
    oldest = min(found)
    with pytest.raises(NotFound, match="its history begins") as asked:
        resolve_snapshot(lake.state(TARGET), clock.now() - timedelta(days=1, hours=12))
    assert max(name for name in found if name.startswith("daily")) in str(asked.value)

    Table(lake, TARGET, CONTRACT).rollback(oldest)
    assert ids(lake) == last_of[oldest]
    clock.wait(timedelta(hours=1))
    assert take(lake, landing)  # what landed since is new again, once
    assert ids(lake) == list(range(number))
    assert not take(lake, landing)


@pytest.mark.parametrize(
    ("lake", "seed"), [("sqlite", 0), ("sqlite", 1), ("sqlite", 2), ("rest", 3)], indirect=["lake"]
)
def test_a_unit_goes_back_to_any_of_them(
    lake: Lake, landing: Path, clock: Clock, seed: int
) -> None:
    """Random commits, waits, tags and rollbacks, beside a timeline in plain Python."""
    dice, timeline, number = random.Random(seed), Timeline(), 0
    table: Table | None = None
    seen: dict[str, int] = {}
    for step in range(35):
        clock.wait(timedelta(minutes=dice.choice((1, 5, 25, 60, 300, 24 * 60))))
        known = list(points(lake)) if table else []
        act = dice.random()
        if table is not None and act < 0.12 and known:
            name = dice.choice(known)
            expected = timeline.at_end_of(name)
            table.rollback(name)
            timeline.states.append((clock.now(), *expected))
            for path in landing.iterdir():
                path.unlink()  # what landed after it is not delivered again
        elif table is not None and act < 0.2:
            table.tag(f"mine-{step}")
        else:
            bad = dice.random() < 0.3
            rows, aside = timeline.states[-1][1:] if timeline.states else (frozenset[int](), 0)
            put(landing, f"{number}.jsonl", number)
            if bad:
                with (landing / f"{number}.jsonl").open("a") as file:
                    file.write('{"id": "none"}\n')
                os.utime(landing / f"{number}.jsonl", (1, 1))
            assert take(lake, landing)
            table = Table(lake, TARGET, CONTRACT)
            timeline.states.append((clock.now(), rows | {number}, aside + bad))
            number += 1
        for name, _ in points(lake).items() - seen.items():
            assert rows_at(lake, name) == timeline.at_end_of(name), (seed, step, name)
        seen = points(lake)
        if lake.exists(QUARANTINE):
            assert set(points(lake, QUARANTINE)) == set(points(lake))
    assert points(lake)
    # However many restore points came and went, what is carried on is about those that are left.
    if lake.consumption_store is None:
        assert len(read_anchors(lake.state(TARGET))) <= len(lake.state(TARGET).snapshots)
        return
    anchors = lake.consumption_store.anchors(lake.state(TARGET).uuid)
    assert len({*anchors.values()}) == len(anchors) <= len(lake.state(TARGET).snapshots) + 1


def test_names_of_others_are_left_alone() -> None:
    assert is_restore_point("hourly-2026-11-19T03")
    assert is_restore_point("daily-2026-11-19")
    for other in ("hourly-report", "daily-2026-11-19T03", "hourly-2026-11-19", "daily-2026-11-190"):
        assert not is_restore_point(other)
