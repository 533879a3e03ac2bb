"""Finished files from many writers, committed under keys: the same on every catalog."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import ManifestFile
from pyiceberg.types import StringType
from tests.contract.catalog_tables import EVERY_TYPE, ORDERS, add_orders, ids
from tests.contract.commit_entries import TABLE, compacting, entry, files, overwriting, summary

from thermocline.errors import CatalogUnavailable, CommitConflict, Permanent
from thermocline.lake import Lake, atomic_commit, refs
from thermocline.lake import bookmark as bookmarks
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.groupcommit import CommitEntry, ReplaceFiles, ReplacePartitions
from thermocline.lake.orphans import find_orphans
from thermocline.lake.retention import RetentionPolicy


@pytest.fixture
def made(lake: Lake) -> Lake:
    lake.ensure(ORDERS)
    return lake


def test_appended_files_are_there_under_their_key(made: Lake) -> None:
    marks = {bookmarks.BOOKMARK: '{"n":1}', bookmarks.RUN: "R"}
    first = made.group_commit.commit(entry(made, "job-1", 1, 2, properties=marks))
    second = made.group_commit.commit(entry(made, "job-2", 3))
    assert ids(made, TABLE) == [1, 2, 3]
    assert ids(made, TABLE, first) == [1, 2]
    state = made.state(TABLE)
    assert state.head() == second
    assert bookmarks.parse_bookmark(state.snapshot(first)) == {"n": 1}
    assert bookmarks.read(state) == {"n": 1}
    said = summary(made, first)
    assert (said[bookmarks.KEYS], said[bookmarks.RUN]) == ("job-1", "R")
    assert (said["added-records"], said["total-records"]) == ("2", "2")
    assert summary(made, second)["total-records"] == "3"
    assert (state.snapshot(second).operation, state.snapshot(second).parent) == ("append", first)


def test_every_type_is_committed_as_spark_would_find_it(lake: Lake) -> None:
    lake.ensure(EVERY_TYPE)
    table = lake.iceberg(EVERY_TYPE.table)
    blank = {field.name: None for field in table.schema().fields}
    row = {**blank, "id": 7, "country": "NÖ"}
    rows = pa.Table.from_pylist([row], table.schema().as_arrow())
    new = write_files(table, rows)
    lake.group_commit.commit(CommitEntry.of(table, "k", new, replaces=ReplacePartitions.of(new)))
    lake.group_commit.commit(
        CommitEntry.of(table, "l", write_files(table, rows), replaces=ReplacePartitions.of(new))
    )
    [found] = (
        lake.iceberg(EVERY_TYPE.table).scan(row_filter="country = 'NÖ'").to_arrow().to_pylist()
    )
    assert (found["id"], found["a_decimal"]) == (7, None)
    assert lake.iceberg(EVERY_TYPE.table).scan(row_filter="country = 'x'").to_arrow().num_rows == 0


def test_partitions_are_overwritten_whole(made: Lake) -> None:
    made.group_commit.commit(entry(made, "a", 1, 29, 2))
    snapshot = made.group_commit.commit(overwriting(made, "b", 57))
    assert ids(made, TABLE) == [2, 57]
    said = summary(made, snapshot)
    assert made.state(TABLE).snapshot(snapshot).operation == "overwrite"
    assert (said["deleted-records"], said["added-records"]) == ("2", "1")
    assert said["total-records"] == "2"
    table = made.iceberg(TABLE)
    emptied = ReplacePartitions.of(files(table, 2))
    made.group_commit.commit(CommitEntry.of(table, "c", (), replaces=emptied))
    assert ids(made, TABLE) == [57]
    made.group_commit.commit(entry(made, "d", 1))
    assert ids(made, TABLE) == [1, 57]


def test_a_key_lands_once_whatever_its_files_are(made: Lake, open_lake: Callable[[], Lake]) -> None:
    first = made.group_commit.commit(entry(made, "k", 1))
    add_orders(made, TABLE, 50)
    assert made.group_commit.commit(entry(made, "k", 1)) == first
    assert open_lake().group_commit.commit(entry(made, "k", 2)) == first
    assert ids(made, TABLE) == [1, 50]


def test_snapshots_expire_with_entries_and_keys_stay_known(
    made: Lake, open_lake: Callable[[], Lake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Lake, "retention_policy", RetentionPolicy(3, age_ms=1, dead_ms=1 << 40))
    for number in range(60):
        made.group_commit.commit(entry(made, f"job-{number}", number))
        assert len(made.state(TABLE).snapshots) <= 4
    assert find_orphans(made.iceberg(TABLE)) == []
    for number in (0, 30, 59):
        again = open_lake()
        again.group_commit.commit(entry(again, f"job-{number}", 1000 + number))
    assert ids(made, TABLE) == list(range(60))


def test_one_key_from_eight_writers_at_once_lands_once(
    made: Lake, open_lake: Callable[[], Lake]
) -> None:
    def write(number: int) -> int:
        mine = open_lake()
        return mine.group_commit.commit(entry(mine, "k", number))

    with ThreadPoolExecutor(8) as pool:
        snapshots = set(pool.map(write, range(8)))
    assert len(snapshots) == 1
    assert len(ids(made, TABLE)) == 1


def test_files_that_are_gone_are_a_conflict_and_the_key_may_be_used_again(made: Lake) -> None:
    made.group_commit.commit(entry(made, "a", 1, 2))
    late = compacting(made, "late", 1, 2)
    made.group_commit.commit(compacting(made, "early", 1, 2))
    with pytest.raises(CommitConflict, match="2 of the files that it replaces are gone"):
        made.group_commit.commit(late)
    assert ids(made, TABLE) == [1, 2]
    made.group_commit.commit(compacting(made, "late", 1, 2))
    assert ids(made, TABLE) == [1, 2]


def test_compaction_keeps_what_was_appended_meanwhile(made: Lake) -> None:
    for number in range(3):
        made.group_commit.commit(entry(made, f"a{number}", number))
    compaction = compacting(made, "compact", 0, 1, 2)
    made.group_commit.commit(entry(made, "b", 9))
    made.group_commit.commit(compaction)
    assert ids(made, TABLE) == [0, 1, 2, 9]


def test_a_branch_has_commits_of_its_own(made: Lake) -> None:
    base = add_orders(made, TABLE, 1)
    manage = made.iceberg(TABLE).manage_snapshots()
    manage.create_branch(base, "aside", max_ref_age_ms=10**9, min_snapshots_to_keep=7).commit()
    snapshot = made.group_commit.commit(entry(made, "k", 2, branch="aside"))
    assert (ids(made, TABLE), ids(made, TABLE, snapshot)) == ([1], [1, 2])
    kept = made.iceberg(TABLE).metadata.refs["aside"]
    assert (kept.max_ref_age_ms, kept.min_snapshots_to_keep) == (10**9, 7)
    made.group_commit.commit(entry(made, "l", 3))
    assert made.state(TABLE).head("aside") == snapshot
    made.commit([refs.new_ref(made.state(TABLE), "mark", None, tag=True)])
    with pytest.raises(Permanent, match="no branch nowhere"):
        made.group_commit.commit(entry(made, "m", 4, branch="nowhere"))
    with pytest.raises(Permanent, match=r"mark of silver\.orders is a tag"):
        made.group_commit.commit(entry(made, "n", 4, branch="mark"))
    assert ids(made, TABLE) == [1, 3]


def test_files_of_an_older_schema_land_unless_a_column_is_required_by_now(made: Lake) -> None:
    old, older = entry(made, "old", 1), entry(made, "older", 2)
    with made.iceberg(TABLE).update_schema() as update:
        update.add_column("more", StringType())
    made.group_commit.commit(old)
    with made.iceberg(TABLE).update_schema(allow_incompatible_changes=True) as update:
        update.update_column("old", required=True)
    with pytest.raises(Permanent, match="the schema moved, and now requires old"):
        made.group_commit.commit(older)
    made.group_commit.commit(entry(made, "new", 3))
    assert ids(made, TABLE) == [1, 3]


def test_partitions_of_an_older_partitioning_are_not_overwritten(made: Lake) -> None:
    old, overwrite = entry(made, "old", 1), overwriting(made, "overwrite", 1)
    with made.iceberg(TABLE).update_spec() as update:
        update.add_identity("quantity")
    with pytest.raises(Permanent, match="partitioned in another way"):
        made.group_commit.commit(overwrite)
    made.group_commit.commit(old)
    made.group_commit.commit(entry(made, "new", 2))
    made.group_commit.commit(overwriting(made, "again", 2))
    assert ids(made, TABLE) == [1, 2]
    assert {task.file.spec_id for task in made.iceberg(TABLE).scan().plan_files()} == {0, 1}


def test_files_for_a_table_that_was_dropped_are_not_for_its_successor(made: Lake) -> None:
    stranger = entry(made, "stranger", 4)
    made.catalog.drop_table(TABLE)
    with pytest.raises(Permanent, match=r"There is no table silver\.orders"):
        made.group_commit.commit(stranger)
    made.ensure(ORDERS)
    with pytest.raises(Permanent, match="created again"):
        made.group_commit.commit(stranger)
    assert ids(made, TABLE) == []


def test_others_who_commit_meanwhile_are_worked_around(
    made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody commits between looking and committing, to the same branch and to another one."""
    add_orders(made, TABLE, 1)
    made.commit([refs.new_ref(made.state(TABLE), "aside", None, tag=False)])
    name = "commit_once_rest" if made.settings.catalog.type == "rest" else "commit_once_sql"
    real = getattr(atomic_commit, name)
    others = iter(["main", "aside"])

    def beaten(*given: Any) -> None:
        branch = next(others, None)
        if branch is not None:
            add_orders(made, TABLE, 50, branch=branch)
        real(*given)

    monkeypatch.setattr(atomic_commit, name, beaten)
    made.group_commit.commit(entry(made, "k", 2))
    assert ids(made, TABLE) == [1, 2, 50]
    assert ids(made, TABLE, made.state(TABLE).head("aside")) == [1, 50]
    if made.settings.catalog.type != "rest":
        data = {path for path, _ in find_orphans(made.iceberg(TABLE))}
        assert not {path for path in data if path.endswith(".avro")}


def test_an_answer_that_was_lost_is_looked_for(made: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit landed, others came on top, and the connection broke before it was said."""
    name = "commit_once_rest" if made.settings.catalog.type == "rest" else "commit_once_sql"
    real = getattr(atomic_commit, name)
    lost = iter([True])

    def cut_off(*given: Any) -> None:
        real(*given)
        if next(lost, False):
            add_orders(made, TABLE, 50)
            raise CatalogUnavailable("cut off", "")

    monkeypatch.setattr(atomic_commit, name, cut_off)
    snapshot = made.group_commit.commit(entry(made, "k", 1))
    assert summary(made, snapshot)[bookmarks.KEYS] == "k"
    assert ids(made, TABLE) == [1, 50]


def test_manifests_do_not_become_more_without_end(made: Lake) -> None:
    wanted = {"commit.manifest.min-count-to-merge": "4"}
    made.iceberg(TABLE).transaction().set_properties(wanted).commit_transaction()
    rewritten = []
    for number in range(12):
        before = set(manifests(made))
        made.group_commit.commit(entry(made, f"k{number}", number))
        rewritten.append(len(before - set(manifests(made))))
    assert len(manifests(made)) <= 4
    assert rewritten.count(0) >= 8, "most commits leave the manifests alone"
    assert ids(made, TABLE) == list(range(12))


def test_an_overwriting_reads_and_rewrites_what_it_touches_alone(
    made: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        made.group_commit.commit(entry(made, f"k{number}", number))
    before = manifests(made)
    read: list[str] = []
    real = ManifestFile.fetch_manifest_entry

    def noted(self: ManifestFile, *given: Any, **more: Any) -> Any:
        read.append(self.manifest_path)
        return real(self, *given, **more)

    change = overwriting(made, "over", 29)
    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", noted)
    made.group_commit.commit(change)
    monkeypatch.undo()
    [gone] = set(before) - set(manifests(made))
    assert read == [gone]
    assert ids(made, TABLE) == [0, 2, 3, 29]


def manifests(lake: Lake) -> list[str]:
    table = lake.iceberg(TABLE)
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return [manifest.manifest_path for manifest in snapshot.manifests(table.io)]


def test_files_read_from_a_snapshot_that_expired_cannot_be_judged(made: Lake) -> None:
    made.group_commit.commit(entry(made, "a", 1))
    late = compacting(made, "late", 1)
    assert isinstance(late.replaces, ReplaceFiles)
    expired = ReplaceFiles(late.replaces.files, snapshot=42)
    with pytest.raises(CommitConflict, match="were deleted meanwhile"):
        made.group_commit.commit(replace(late, replaces=expired))
    made.group_commit.commit(late)
    assert ids(made, TABLE) == [1]


def test_no_rows_make_no_files(made: Lake) -> None:
    table = made.iceberg(TABLE)
    assert write_files(table, table.schema().as_arrow().empty_table()) == []
