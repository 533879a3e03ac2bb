"""Expiry on a REST catalog: nothing that was consumed is forgotten, and no ref is lost."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from tests.conftest import clean_environment
from tests.integration.test_retention import (
    COLUMNS,
    CONTRACT,
    HARSHEST,
    MODEL,
    TARGET,
    head,
    ids,
    put,
    state,
    take,
)
from tests.servers import settings

from thermocline.api.maintenance import Maintenance
from thermocline.api.table import Table
from thermocline.config import load_settings
from thermocline.contract.definition import Contract
from thermocline.engine.spark import CATALOG
from thermocline.errors import CommitConflict, Permanent
from thermocline.ingest import marks
from thermocline.ingest.marks import Mark
from thermocline.lake import Lake, atomic_commit, carried_state, refs
from thermocline.lake.atomic_commit import TableChange
from thermocline.lake.bookmark import is_history_complete
from thermocline.lake.consumers import protect_sources
from thermocline.lake.metadata import REF_GUARD, location_path
from thermocline.lake.missing_files import find_missing_files
from thermocline.lake.naming import new_run_id
from thermocline.lake.orphans import find_orphans, referenced_files


@pytest.fixture
def environment(request: pytest.FixtureRequest) -> dict[str, str]:
    there: dict[str, str] = {}
    if getattr(request, "param", "rest") == "rest":
        there = settings.rest_lake_settings(request.getfixturevalue("rest_catalog_server"))
    return {**clean_environment(), **HARSHEST, **there}


@pytest.fixture
def lake(environment: dict[str, str], project: Path) -> Iterator[Lake]:
    """A lake on a REST catalog, whose every commit lets go all that it may."""
    opened = Lake(load_settings(project, environ=environment))
    yield opened
    opened.duck.stop()


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def runs_folder(lake: Lake) -> Path:
    return location_path(state(lake).location) / "_thermocline"


def land_many(lake: Lake, landing: Path, first: int, count: int) -> None:
    """Land so many files in one batch that their record is in a file."""
    for number in range(first, first + count):
        put(landing, f"{number}.jsonl", number)
    assert take(lake, landing)


@pytest.mark.parametrize("act", ["tag", "branch", "both", "again"])
def test_a_ref_made_between_plan_and_commit_is_kept(
    lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """The expiry is planned again, and the batch lands once."""
    for number in range(2):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    old, other = head(lake), Lake(lake.settings)
    if act == "again":  # the guard is at the snapshot already, of a tag that is gone
        other.commit([refs.new_ref(state(other), "before", old, tag=True)])
        other.commit([refs.remove_ref(state(other), "before")])
    names = ["one", "two"] if act == "both" else ["one"]
    real, made = atomic_commit._post, list[str]()

    def post(catalog: object, changes: list[TableChange]) -> None:
        expires = any(u.action == "remove-snapshots" for each in changes for u in each.updates)
        if expires and not made:
            made.extend(names)
            for name in names:
                other.commit([refs.new_ref(state(other), name, old, tag=act != "branch")])
        real(catalog, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(atomic_commit, "_post", post)
    monkeypatch.setattr(carried_state, "_MAX_RECENT", 1)
    put(landing, "2.jsonl", 2)
    assert take(lake, landing)
    if act != "again":
        assert made
    for name in made:
        assert state(lake).head(name) == old
        assert ids(lake, old) == [0, 1]
    assert ids(lake) == [0, 1, 2]
    put(landing, "3.jsonl", 3)
    assert take(lake, landing)
    assert set(state(lake).refs) == {"main", *made}
    if act != "branch":  # which holds all later snapshots, so that nothing expires
        assert REF_GUARD not in state(lake).raw["refs"]
    assert not take(lake, landing)


def test_a_ref_at_an_expired_snapshot_is_refused(lake: Lake, landing: Path) -> None:
    put(landing, "0.jsonl", 0)
    assert take(lake, landing)
    before = state(lake)
    put(landing, "1.jsonl", 1)
    assert take(lake, landing)
    with pytest.raises(CommitConflict, match="it expired"):
        lake.commit([refs.new_ref(before, "late", before.head(), tag=True)])


@dataclass
class Expected:
    """Which files each snapshot holds: a model in plain Python."""

    by_snapshot: dict[int, frozenset[int]] = field(default_factory=dict)
    main: frozenset[int] = frozenset()


class RandomHistory:
    """Landings, deliveries again, refs, rollbacks, and commits and expiries by other tools."""

    def __init__(self, lake: Lake, landing: Path, seed: int) -> None:
        self.lake, self.landing = lake, landing
        self.dice, self.expected, self.number = random.Random(seed), Expected(), 0
        self.delivered: list[int] = []
        self.was_expired_elsewhere = False

    def land(self) -> None:
        for path in self.landing.iterdir():
            path.unlink()
        new = list(range(self.number, self.number + self.dice.choice((1, 1, 3, 30))))
        self.number += len(new)
        again = self.dice.sample(self.delivered, min(len(self.delivered), 4))
        for each in (*new, *again):
            name = f"{each}.jsonl" if self.dice.random() < 0.5 else f"{each}-{self.number}.jsonl"
            put(self.landing, name, each)
        self.delivered += new
        assert take(self.lake, self.landing)
        self.expected.main |= {*new, *again}
        assert not take(self.lake, self.landing)

    def tag(self) -> None:
        at = self.dice.choice(list(self.expected.by_snapshot))
        if at in state(self.lake).snapshots:
            name, tag = f"r{self.dice.randrange(10**9)}", self.dice.random() < 0.7
            self.lake.commit([refs.new_ref(state(self.lake), name, at, tag=tag)])

    def drop(self) -> None:
        if names := sorted(set(state(self.lake).refs) - {"main"}):
            self.lake.commit([refs.remove_ref(state(self.lake), self.dice.choice(names))])

    def roll_back(self) -> None:
        now = state(self.lake)
        at = self.dice.choice(sorted({ref.snapshot for ref in now.refs.values()}))
        self.lake.commit([refs.set_ref(TARGET, "main", at, was=now.head())])
        self.expected.main = self.expected.by_snapshot[at]

    def commit_elsewhere(self) -> None:
        """Another tool commits rows of no file."""
        self.lake.iceberg(TARGET).append(self.lake.iceberg(TARGET).scan(limit=0).to_arrow())

    def replay(self) -> None:
        """A commit of ours that consumes nothing."""
        time.sleep(0.003)
        draft = self.lake.draft(new_run_id(), late_branches=True)
        draft.append(TARGET, (), bookmark=None, operation="replay")
        draft.publish()

    def expire_elsewhere(self) -> None:
        """Another tool expires whatever no ref needs."""
        now, self.was_expired_elsewhere = state(self.lake), True
        kept = {ref["snapshot-id"] for ref in now.raw["refs"].values()}
        table = self.lake.iceberg(TARGET)
        if gone := [each for each in now.snapshots if each not in kept]:
            table.maintenance.expire_snapshots().by_ids(gone).commit()

    def check(self) -> None:
        now = state(self.lake)
        self.expected.by_snapshot[now.head() or 0] = self.expected.main
        assert ids(self.lake) == sorted(self.expected.main)
        for ref in now.refs.values():
            assert is_history_complete(self.lake, now, ref.snapshot)
        assert not list(find_missing_files(self.lake, TARGET))
        if self.was_expired_elsewhere:
            return  # other tools leave our files
        named = {str(path) for path in runs_folder(self.lake).glob("*")}
        assert named.isdisjoint(path for path, _ in find_orphans(self.lake.iceberg(TARGET)))


@pytest.mark.parametrize("seed", range(4))
def test_each_file_is_in_main_once_after_any_history(
    lake: Lake, landing: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With odd seeds other tools expire, too, but only snapshots whose state is in a later one."""
    monkeypatch.setattr(carried_state, "_MAX_RECENT", 6)
    history = RandomHistory(lake, landing, seed)
    history.land()
    history.check()
    acts = [history.land] * 5 + [history.tag] * 3 + [history.roll_back] * 2
    acts += [history.drop, history.replay]
    for _ in range(30):
        act = history.dice.choice(acts)
        act()
        history.check()
        if seed % 2 and act == history.land:  # its snapshot has a state of its own
            history.expire_elsewhere()
            history.check()


@pytest.mark.parametrize("environment", ["sqlite", "rest"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
def test_files_whose_record_another_tool_expired_are_known_by_name(
    lake: Lake, landing: Path, seed: int
) -> None:
    """The head has no state, and the snapshots that have it are gone."""
    history = RandomHistory(lake, landing, seed)
    for _ in range(3):
        history.land()
        history.commit_elsewhere()
        history.expire_elsewhere()
        assert not is_history_complete(lake, state(lake), head(lake))
        assert not take(lake, landing)
        put(landing, f"new-{history.number}.jsonl", history.number)
        history.number += 1
        assert take(lake, landing)
        assert not take(lake, landing)
        rows = ids(lake)
        assert len(rows) == len(set(rows)) == history.number
        for path in landing.iterdir():
            path.unlink()
        history.delivered.clear()  # a content under another name is not known any more


@pytest.mark.parametrize("kinds", [("sqlite", "rest"), ("rest", "sqlite")])
def test_a_table_that_changes_its_catalog_is_not_ingested_again(
    project: Path, landing: Path, request: pytest.FixtureRequest, kinds: tuple[str, str]
) -> None:
    """The record stays behind, so names decide, also after snapshots expired."""
    server = request.getfixturevalue("rest_catalog_server")
    of = {"rest": settings.rest_lake_settings(server)}
    of["sqlite"] = {
        "THERMOCLINE_LAKE__WAREHOUSE": str(server.warehouse),
        "THERMOCLINE_LAKE__CATALOG__URI": str(project / "catalog.db"),
    }
    whole, little = clean_environment(), {**clean_environment(), **HARSHEST}
    before = Lake(load_settings(project, environ={**whole, **of[kinds[0]]}))
    after = Lake(load_settings(project, environ={**little, **of[kinds[1]]}))
    after.catalog.create_namespace("bronze")  # before its warehouse has tables that it lacks
    for number in range(3):
        put(landing, f"{number}.jsonl", number)
        assert take(before, landing)
    after.catalog.register_table(TARGET, state(before).metadata_location)
    assert not take(after, landing)
    for number in range(3, 6):
        put(landing, f"{number}.jsonl", number)
        assert take(after, landing)
        assert not take(after, landing)
    assert ids(after) == list(range(6))
    with pytest.raises(Permanent, match="no longer records"):
        marks.read(after, state(after), "stream")


@pytest.mark.parametrize("environment", ["sqlite", "rest"], indirect=True)
def test_a_position_that_another_tool_expired_is_no_beginning(lake: Lake) -> None:
    """However many snapshots expire with our own commits afterwards."""
    lake.ensure(CONTRACT)
    mark = Mark("s", 1, {"offset": 1})
    draft = lake.draft(new_run_id(), late_branches=True)
    draft.append(
        TARGET, (), bookmark=marks.to_bookmark("one", mark),
        operation="ingest", consumed=marks.to_consumed("one", mark),
    )  # fmt: skip
    draft.publish()
    lake.iceberg(TARGET).append(lake.iceberg(TARGET).scan().to_arrow())
    gone = [each for each in state(lake).snapshots if each != head(lake)]
    lake.iceberg(TARGET).maintenance.expire_snapshots().by_ids(gone).commit()
    for number in range(3):
        with pytest.raises(Permanent, match="no longer records"):
            marks.read(lake, state(lake), "one")
        assert marks.read(lake, state(lake), "one", accept_loss=True) is None
        time.sleep(0.003)
        draft = lake.draft(new_run_id(), late_branches=True)
        draft.append(TARGET, (), bookmark={"landed": number}, operation="replay")
        draft.publish()
    assert len(state(lake).snapshots) == 1


def test_positions_survive_in_the_snapshot_or_beside_it(lake: Lake) -> None:
    lake.ensure(CONTRACT)
    long = Mark("l", 0, {"offsets": {str(n): n for n in range(500)}})
    for number in range(1, 5):
        time.sleep(0.003)
        long = Mark("l", number, {"offsets": {str(n): n + number for n in range(500)}})
        short = Mark("s", number, {"offset": number})
        for source, mark in (("long", long), ("short", short)):
            draft = lake.draft(new_run_id(), late_branches=True)
            before = marks.read_all(state(lake), head(lake))
            draft.append(
                TARGET, (), bookmark=marks.merge(before, marks.to_bookmark(source, mark)),
                operation="ingest", consumed=marks.to_consumed(source, mark),
            )  # fmt: skip
            draft.publish()
        lake.iceberg(TARGET).append(lake.iceberg(TARGET).scan().to_arrow())  # has no state
        time.sleep(0.003)
        other = lake.draft(new_run_id(), late_branches=True)
        other.append(TARGET, (), bookmark=None, operation="replay")
        other.publish()
        assert marks.read(lake, state(lake), "long") == long
        assert marks.read(lake, state(lake), "short") == short
        assert len(list(runs_folder(lake).glob("*.json"))) == 1, "of the newest batch"
        assert len(state(lake).snapshots) <= 4
    (path,) = runs_folder(lake).glob("*.json")
    path.unlink()
    with pytest.raises(Permanent, match="is not there"):
        marks.read(lake, state(lake), "long")
    assert marks.read(lake, state(lake), "short") is not None


def test_positions_in_bookmarks_of_older_versions_are_carried_over(lake: Lake) -> None:
    lake.ensure(CONTRACT)
    old = {"stream": "s", "sequence": 4, "position": {"offset": 40}}
    draft = lake.draft(new_run_id(), late_branches=True)
    draft.append(TARGET, (), bookmark={"feeds": {"one": old}}, operation="ingest")
    draft.publish()
    assert marks.read(lake, state(lake), "one") == Mark("s", 4, {"offset": 40})
    for number in range(3):
        time.sleep(0.003)
        mark = Mark("t", number, {"lsn": number})
        before = marks.read_all(state(lake), head(lake))
        draft = lake.draft(new_run_id(), late_branches=True)
        draft.append(
            TARGET, (), bookmark=marks.merge(before, marks.to_bookmark("two", mark)),
            operation="ingest", consumed=marks.to_consumed("two", mark),
        )  # fmt: skip
        draft.publish()
        assert marks.read(lake, state(lake), "one") == Mark("s", 4, {"offset": 40})
    assert len(state(lake).snapshots) == 1


def test_a_lost_record_stops_ingestion_and_is_named(lake: Lake, landing: Path) -> None:
    put(landing, "first.jsonl", 1000)
    assert take(lake, landing)
    tag = Table(lake, TARGET, CONTRACT).tag("before")
    land_many(lake, landing, 0, 40)
    (run,) = runs_folder(lake).glob("*.run")
    content = run.read_bytes()
    run.unlink()
    carried_state_is_read_again()
    with pytest.raises(Permanent, match=run.name):
        take(lake, landing)
    assert [each.kind for each in find_missing_files(lake, TARGET)] == ["record"]
    run.write_bytes(content)
    assert not take(lake, landing)
    run.unlink()
    carried_state_is_read_again()
    Table(lake, TARGET, CONTRACT).rollback(tag)  # which names no such file
    assert take(lake, landing)
    assert ids(lake) == [*range(40), 1000]


def carried_state_is_read_again() -> None:
    from thermocline.lake import digest_runs
    from thermocline.lake.metadata_files import FileCache

    digest_runs._RUNS = FileCache(64 << 20)


CHILD = """
import sys
from pathlib import Path
from tests.integration.test_retention import take
from thermocline.config import load_settings
from thermocline.lake import Lake
print(take(Lake(load_settings(Path(sys.argv[1]))), Path(sys.argv[2])))
"""


@pytest.mark.parametrize(
    "point", ["consumed.written", "commit.after", "publish.swapping", "publish.swapped"]
)
def test_a_killed_ingestion_is_repeated_without_loss_or_duplicates(
    lake: Lake, landing: Path, environment: dict[str, str], project: Path, point: str
) -> None:
    land_many(lake, landing, 0, 40)
    for number in range(40, 80):
        put(landing, f"{number}.jsonl", number)
    command = [sys.executable, "-c", CHILD, str(project), str(landing)]
    crash = {**os.environ, **environment, "THERMOCLINE_CRASH_AT": point}
    killed = subprocess.run(command, env=crash, cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -9
    assert take(lake, landing) == (point != "publish.swapped")
    assert not take(lake, landing)
    assert ids(lake) == list(range(80))
    assert not list(find_missing_files(lake, TARGET))


def test_a_first_run_holds_what_it_reads(lake: Lake, landing: Path) -> None:
    """Until its first bookmark is published, a branch on its source does."""
    put(landing, "0.jsonl", 0)
    assert take(lake, landing)
    lake.ensure(Contract(MODEL, COLUMNS))
    pinned = head(lake)
    draft = lake.draft(new_run_id())
    draft.begin(MODEL)
    protect_sources(draft, {MODEL: {TARGET: pinned}})
    for number in range(1, 4):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    assert ids(lake, pinned) == [0]
    rows = pa.table({"id": pa.array([0], pa.int64())})
    draft.append(MODEL, rows, bookmark={TARGET: pinned}, operation="append")
    draft.publish()
    assert set(state(lake).refs) == {"main"}
    put(landing, "4.jsonl", 4)
    assert take(lake, landing)
    between = state(lake).between(pinned, head(lake))
    assert between is not None and len(between) == 4
    later = lake.draft(new_run_id())
    later.begin(MODEL)
    protect_sources(later, {MODEL: {TARGET: head(lake)}})
    assert set(state(lake).refs) == {"main"}, "its bookmark holds older ones"


def test_consumers_are_searched_seldom(
    lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer that stands still makes no batch read all tables."""
    many = {"history.expire.min-snapshots-to-keep": "40", "history.expire.max-snapshot-age-ms": "1"}
    put(landing, "0.jsonl", 0)
    assert take(lake, landing)
    lake.iceberg(TARGET).transaction().set_properties(many).commit_transaction()
    lake.ensure(Contract(MODEL, COLUMNS))
    draft = lake.draft(new_run_id())
    draft.append(MODEL, (), bookmark={TARGET: head(lake)}, operation="append")
    draft.publish()
    searches = 0
    real = lake.bookmarked_consumers.snapshots

    def count(source: str) -> list[int]:
        nonlocal searches
        searches += 1
        return real(source)

    monkeypatch.setattr(lake.bookmarked_consumers, "snapshots", count)
    for number in range(1, 60):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    assert len(state(lake).snapshots) >= 60, "the consumer holds them"
    assert 1 <= searches <= 5


def test_spark_expires_and_removes_orphans_and_leaves_what_was_consumed(
    lake: Lake, landing: Path
) -> None:
    put(landing, "first.jsonl", 1000)
    assert take(lake, landing)
    land_many(lake, landing, 0, 40)
    put(landing, "last.jsonl", 1001)
    assert take(lake, landing)
    lake.iceberg(TARGET).append(lake.iceberg(TARGET).scan(limit=0).to_arrow())
    folder = location_path(state(lake).location)
    orphan = folder / "metadata" / "orphan.avro"
    orphan.write_bytes(b"x")
    for path in folder.rglob("*"):
        os.utime(path, (1, 1))
    session, before = lake.spark.session, sorted(runs_folder(lake).iterdir())
    session.sql(f"CALL {CATALOG}.system.remove_orphan_files(table => '{TARGET}')").collect()
    assert not orphan.exists()
    assert sorted(runs_folder(lake).iterdir()) == before
    now = "TIMESTAMP '2100-01-01 00:00:00'"
    call = f"expire_snapshots(table => '{TARGET}', older_than => {now}, retain_last => 2)"
    session.sql(f"CALL {CATALOG}.system.{call}").collect()
    assert len(state(lake).snapshots) == 2
    for path in landing.iterdir():
        path.rename(path.with_name(f"again-{path.name}"))
    assert not take(lake, landing)
    assert ids(lake) == [*range(40), 1000, 1001]


def test_removal_keeps_the_files_that_record_what_was_consumed(
    lake: Lake, landing: Path, tmp_path: Path
) -> None:
    """Their names are in summaries, inside of a text, and nowhere else."""
    for first in (0, 50, 100):
        land_many(lake, landing, first, 50)
    needed = referenced_files(lake.iceberg(TARGET))
    named = {path for path in needed if str(runs_folder(lake)) in path}
    assert named
    left = location_path(state(lake).location) / "data" / "left-by-a-dead-writer.parquet"
    left.write_bytes(b"")
    for stored in location_path(state(lake).location).rglob("*"):
        os.utime(stored, (0, 0))
    maintenance = Maintenance(lake)
    report = maintenance.remove_unreferenced(TARGET, timedelta(hours=1), confirm=TARGET)
    assert [result.outcome for result in report.results] == ["done"]
    assert not left.exists()
    assert {str(path) for path in runs_folder(lake).iterdir()} == named
    for number in range(150):
        put(landing, f"again-{number}.jsonl", number)
    assert not take(lake, landing)
    assert ids(lake) == list(range(150))
