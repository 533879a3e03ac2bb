"""Snapshots expire as commits go, and nothing that was consumed is forgotten with them."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlalchemy import text
from tests.conftest import clean_environment
from tests.servers import settings

from thermocline.config import load_settings
from thermocline.contract.definition import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.ingest import marks
from thermocline.ingest.folder_stream import FolderIngester
from thermocline.ingest.marks import Mark
from thermocline.ingest.source import Source
from thermocline.lake import Lake, bookmark, metadata_updates, refs
from thermocline.lake.companions import load_unit
from thermocline.lake.metadata import location_path
from thermocline.lake.naming import RUN_PREFIX, new_run_id
from thermocline.lake.orphans import find_orphans
from thermocline.lake.retention import RetentionPolicy

if TYPE_CHECKING:
    from thermocline.lake import TableState

TARGET, MODEL = "bronze.raw_things", "silver.things"
COLUMNS = (Column("id", Primitive("long"), required=True),)
CONTRACT = Contract(TARGET, COLUMNS)
HARSHEST = {
    "THERMOCLINE_LAKE__RETENTION__SNAPSHOTS": "1",
    "THERMOCLINE_LAKE__RETENTION__AGE": "0.001s",
    "THERMOCLINE_LAKE__RETENTION__HOURLY": "0",
    "THERMOCLINE_LAKE__RETENTION__DAILY": "0",
}


@pytest.fixture(params=["sqlite", "postgres", "rest"])
def lake(request: pytest.FixtureRequest, project: Path) -> Iterator[Lake]:
    """A lake whose every commit lets go all that it may."""
    there = HARSHEST
    if request.param == "postgres":
        server = request.getfixturevalue("postgres_server")
        there = HARSHEST | settings.postgres_lake_settings(server, project)
    if request.param == "rest":
        server = request.getfixturevalue("rest_catalog_server")
        there = HARSHEST | settings.rest_lake_settings(server)
    opened = Lake(load_settings(project, environ={**clean_environment(), **there}))
    yield opened
    opened.duck.stop()


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    folder = tmp_path / "landing"
    folder.mkdir()
    return folder


def take(lake: Lake, landing: Path, contract: Contract = CONTRACT) -> bool:
    """A new process's look at the folder; whether it landed anything."""
    time.sleep(0.003)  # older than the age
    source = Source("things", str(landing), TARGET, format="jsonl")
    return FolderIngester(lake, source, contract).ingest_batch() is not None


def put(folder: Path, name: str, *ids: int) -> None:
    path = folder / name
    path.write_text("".join(json.dumps({"id": each}) + "\n" for each in ids))
    when = time.time() - 60
    os.utime(path, (when, when))


def ids(lake: Lake, snapshot: int | None = None, table: str = TARGET) -> list[int]:
    found = lake.iceberg(table).scan(snapshot_id=snapshot).to_arrow()
    return sorted(found["id"].to_pylist())


def state(lake: Lake) -> TableState:
    return lake.state(TARGET)


def head(lake: Lake) -> int:
    found = state(lake).head()
    assert found is not None
    return found


def has_guard(lake: Lake) -> bool:
    """Whether the snapshot of the newest ref stays for a while after the ref is gone."""
    return lake.consumption_store is None


def rows(lake: Lake, query: str) -> list[Any]:
    with lake.catalog.engine.connect() as connection:  # type: ignore[attr-defined]
        return list(connection.execute(text(query)))


def test_files_land_once_though_each_commit_leaves_one_snapshot(lake: Lake, landing: Path) -> None:
    for number in range(12):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
        assert len(state(lake).snapshots) == 1
        put(landing, f"again-{number}.jsonl", number // 2)  # some file that landed before
        assert not take(lake, landing)
    assert ids(lake) == list(range(12))
    if lake.consumption_store is None:
        return
    # However many were carried on, each is one row, and one anchor stands for all that is gone.
    assert rows(lake, "SELECT count(*) FROM thermocline_landed") == [(12,)]
    assert len(rows(lake, "SELECT DISTINCT anchor FROM thermocline_carried WHERE anchor <> 0")) == 1


def test_a_tag_stays_and_a_rollback_to_it_makes_later_files_new_again(
    lake: Lake, landing: Path
) -> None:
    tags: dict[int, int] = {}
    for number in range(9):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
        if number in {2, 5}:
            tags[number] = head(lake)
            lake.commit([refs.new_ref(state(lake), f"v{number}", None, tag=True)])
    assert set(state(lake).snapshots) == {*tags.values(), head(lake)}
    assert not take(lake, landing)
    newest = head(lake)
    lake.commit([refs.new_ref(state(lake), "newest", None, tag=True)])
    for number, snapshot in tags.items():
        lake.commit([refs.set_ref(TARGET, "main", snapshot, was=head(lake))])
        assert ids(lake) == list(range(number + 1))
        assert take(lake, landing)
        assert ids(lake) == list(range(9))
        assert not take(lake, landing)
        lake.commit([refs.set_ref(TARGET, "main", newest, was=head(lake))])
        assert not take(lake, landing)
        assert ids(lake) == list(range(9))


def test_each_commit_leaves_only_files_that_a_snapshot_or_ref_needs(
    lake: Lake, landing: Path
) -> None:
    for number in range(10):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
        if number in {3, 4, 7}:
            lake.commit([refs.new_ref(state(lake), f"v{number}", None, tag=number != 4)])
        assert find_orphans(lake.iceberg(TARGET)) == []
    for name, ref in state(lake).refs.items():
        last = 9 if name == "main" else int(name.removeprefix("v"))
        assert ids(lake, ref.snapshot) == list(range(last + 1))
    # What only a tag held goes with the next expiry after the tag itself.
    for name in ("v3", "v4", "v7"):
        lake.commit([refs.remove_ref(state(lake), name)])
    put(landing, "last.jsonl", 10)
    assert take(lake, landing)
    assert len(state(lake).snapshots) == 1 + has_guard(lake)
    assert find_orphans(lake.iceberg(TARGET)) == []
    assert ids(lake) == list(range(11))


def test_files_of_a_table_that_shares_them_are_left(lake: Lake, landing: Path) -> None:
    lake.ensure(CONTRACT)
    with lake.iceberg(TARGET).transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    folder = location_path(state(lake).location)
    assert folder is not None
    for number in range(5):
        lists = set(folder.glob("metadata/*.avro"))
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
        assert lists < set(folder.glob("metadata/*.avro"))
    assert len(state(lake).snapshots) == 1


def test_a_contract_says_how_far_back_a_table_goes(lake: Lake, landing: Path) -> None:
    kept = replace(CONTRACT, history=timedelta(hours=1))
    for number in range(4):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing, kept)
    assert len(state(lake).snapshots) == 5  # the first is empty
    lake.ensure(replace(kept, history=timedelta(milliseconds=1)))
    put(landing, "last.jsonl", 4)
    assert take(lake, landing, replace(kept, history=timedelta(milliseconds=1)))
    assert len(state(lake).snapshots) == 1


def test_a_stream_goes_on_from_its_mark_whatever_expires(lake: Lake) -> None:
    lake.ensure(CONTRACT)
    for number in range(1, 8):
        time.sleep(0.003)
        one, other = Mark("s", number, {"offset": number}), Mark("t", number, {"lsn": "x" * 50})
        for source, mark in (("one", one), ("other", other)):
            draft = lake.draft(new_run_id(), late_branches=True)
            before = marks.read_all(state(lake), head(lake))
            said = marks.merge(before, marks.to_bookmark(source, mark))
            given = pa.table({"id": pa.array([number], pa.int64())})
            draft.append(
                TARGET, given, bookmark=said, operation="ingest",
                consumed=marks.to_consumed(source, mark),
            )  # fmt: skip
            draft.publish()
        assert marks.read(lake, state(lake), "one") == one
        assert marks.read(lake, state(lake), "other") == other
        assert marks.read(lake, state(lake), "third") is None
        assert len(state(lake).snapshots) == 1
        if lake.consumption_store is not None:
            assert len(rows(lake, "SELECT * FROM thermocline_positions")) == 2


def test_a_consumer_holds_the_snapshots_that_it_has_not_read(lake: Lake, landing: Path) -> None:
    put(landing, "0.jsonl", 0)
    assert take(lake, landing)
    lake.ensure(Contract(MODEL, COLUMNS))
    since = head(lake)

    def consume() -> None:
        draft = lake.draft(new_run_id())
        given = pa.table({"id": pa.array([0], pa.int64())})
        draft.append(MODEL, given, bookmark={TARGET: head(lake)}, operation="append")
        draft.publish()

    consume()
    for number in range(1, 6):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    between = state(lake).between(since, head(lake))
    assert between is not None and len(between) == 5
    consume()
    put(landing, "6.jsonl", 6)
    assert take(lake, landing)
    assert since not in state(lake).snapshots
    assert len(state(lake).snapshots) == 2


def test_branches_hold_what_they_left_from_and_dead_runs_go(
    lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    base, run = head(lake), new_run_id()
    draft = lake.draft(run)
    draft.begin(TARGET)
    for number in range(2, 5):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    assert set(state(lake).refs) == {"main", RUN_PREFIX + run}
    assert base in state(lake).snapshots
    between = state(lake).between(base, head(lake))
    assert between is not None and len(between) == 3

    monkeypatch.setattr(Lake, "retention_policy", RetentionPolicy(count=1, age_ms=1, dead_ms=1))
    put(landing, "5.jsonl", 5)
    assert take(lake, landing)
    assert set(state(lake).refs) == {"main", RUN_PREFIX + run}, "it is at work"
    del draft  # as its process does when it dies, it lets go of its lock
    put(landing, "6.jsonl", 6)
    assert take(lake, landing)
    assert set(state(lake).refs) == {"main"}
    assert len(state(lake).snapshots) == 1 + has_guard(lake)
    assert not take(lake, landing)


def test_what_somebody_else_expired_is_no_beginning(lake: Lake, landing: Path) -> None:
    """PyIceberg takes away the parent of a snapshot whose parent it expires."""
    monkey = {"history.expire.min-snapshots-to-keep": "100"}
    lake.ensure(CONTRACT)
    lake.iceberg(TARGET).transaction().set_properties(monkey).commit_transaction()
    for number in range(3):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    assert len(state(lake).snapshots) == 4
    oldest = [s for s in state(lake).snapshots if s != head(lake)]
    lake.iceberg(TARGET).maintenance.expire_snapshots().by_ids(oldest).commit()
    if lake.consumption_store is not None:
        assert state(lake).snapshot(head(lake)).parent is None
    # On a REST catalog the snapshot itself has the whole record.
    is_complete = bookmark.is_history_complete(lake, state(lake), head(lake))
    assert is_complete == (lake.consumption_store is None)
    assert not take(lake, landing)
    put(landing, "again.jsonl", 2)
    assert not take(lake, landing)


def test_old_metadata_files_are_removed_and_their_number_is_constant(
    lake: Lake, landing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake.ensure(CONTRACT)
    few = {"write.metadata.previous-versions-max": "3"}
    lake.iceberg(TARGET).transaction().set_properties(few).commit_transaction()
    folder = location_path(state(lake).location) / "metadata"
    for number in range(8, 14):  # a query that has just begun may need them
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    if lake.consumption_store is not None:  # a REST catalog's server does not wait
        assert len(list(folder.glob("*.metadata.json"))) > 6
    monkeypatch.setattr(metadata_updates, "GRACE_MS", 0)
    counts = []
    for number in range(8):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
        counts.append(len(list(folder.glob("*.metadata.json"))))
    assert counts[-4:] == [4, 4, 4, 4]
    named = [entry["metadata-file"] for entry in state(lake).raw["metadata-log"]]
    assert all(location_path(location).exists() for location in named)


def test_a_table_says_itself_how_much_is_kept(lake: Lake, landing: Path) -> None:
    lake.ensure(CONTRACT)
    five = {"history.expire.min-snapshots-to-keep": "5"}
    lake.iceberg(TARGET).transaction().set_properties(five).commit_transaction()
    for number in range(9):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    assert len(state(lake).snapshots) == 5
    assert len(list(state(lake).ancestry(head(lake)))) == 5


def test_what_only_summaries_say_does_not_expire_before_it_is_a_row(
    lake: Lake, landing: Path
) -> None:
    """A table that an older version filled, and that another writer commits to first."""
    lake.ensure(CONTRACT)
    draft = lake.draft(new_run_id(), late_branches=True)
    put(landing, "0.jsonl", 0)
    content = sha256((landing / "0.jsonl").read_bytes()).hexdigest()
    given = pa.table({"id": pa.array([0], pa.int64())})
    draft.append(TARGET, given, bookmark={"files": {content: "0.jsonl"}}, operation="ingest")
    draft.publish()
    first = head(lake)
    for _ in range(3):
        time.sleep(0.003)
        other = lake.draft(new_run_id(), late_branches=True)
        other.append(TARGET, (), bookmark={"landed": 0}, operation="replay")
        other.publish()
    if lake.consumption_store is not None:
        assert first in state(lake).snapshots
    assert not take(lake, landing)
    put(landing, "1.jsonl", 1)
    assert take(lake, landing)
    put(landing, "2.jsonl", 2)
    assert take(lake, landing)
    assert first not in state(lake).snapshots
    put(landing, "again.jsonl", 0)
    assert not take(lake, landing)
    assert ids(lake) == [0, 1, 2]


def test_consumers_from_before_there_were_rows_are_known(lake: Lake, landing: Path) -> None:
    put(landing, "0.jsonl", 0)
    assert take(lake, landing)
    lake.ensure(Contract(MODEL, COLUMNS))
    draft, since = lake.draft(new_run_id()), head(lake)
    draft.append(MODEL, (), bookmark={TARGET: since}, operation="append")
    draft.publish()
    if lake.consumption_store is not None:
        with lake.catalog.engine.begin() as connection:  # type: ignore[attr-defined]
            connection.execute(text("DELETE FROM thermocline_consumers"))
            connection.execute(text("DELETE FROM thermocline_carried WHERE table_uuid = '*'"))
        lake.consumption_store.has_registered_consumers = False
    for number in range(1, 4):
        put(landing, f"{number}.jsonl", number)
        assert take(lake, landing)
    assert state(lake).between(since, head(lake)) is not None


def test_a_table_and_its_quarantine_go_back_together_after_expiry(
    lake: Lake, landing: Path
) -> None:
    """Each kept snapshot of the table still finds the quarantine that belongs to it."""
    lake.ensure(CONTRACT)
    kept = {"history.expire.min-snapshots-to-keep": "4"}
    lake.iceberg(TARGET).transaction().set_properties(kept).commit_transaction()
    quarantine, beside = "quarantine.raw_things", {}
    for number in range(12):
        (landing / f"{number}.jsonl").write_text(f'{{"id": {number}}}\n')
        os.utime(landing / f"{number}.jsonl", (1, 1))
        time.sleep(0.003)
        draft = lake.draft(new_run_id(), late_branches=True)
        given = pa.table({"id": pa.array([number], pa.int64())})
        draft.append(TARGET, given, bookmark={"landed": 1}, operation="ingest")
        if number % 3 == 0:
            lake.ensure(Contract(quarantine, COLUMNS, companion_of=TARGET))
            draft.append(quarantine, given, bookmark=None, operation="quarantine")
        draft.publish()
        beside[head(lake)] = ids(lake, table=quarantine)
    assert len(state(lake).snapshots) == 4
    unit = load_unit(lake, TARGET)
    for snapshot in state(lake).ancestry(head(lake)):
        at = unit.snapshots_at(snapshot.id)
        assert ids(lake, at[quarantine], quarantine) == beside[snapshot.id]
    assert len(lake.state(quarantine).snapshots) < 5
