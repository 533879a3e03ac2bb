"""Files that nothing references are removed in two steps; whatever is unclear keeps all of them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table.statistics import StatisticsFile
from tests.integration.removal_project import (
    DAY,
    TABLE,
    RemovalOutcome,
    RemovalProject,
    ShiftedClock,
)

from thermocline.lake.atomic_commit import replace_metadata
from thermocline.lake.data_file_writer import write_files
from thermocline.lake.file_commit import snapshot_changes
from thermocline.lake.groupcommit.entry import CommitEntry
from thermocline.lake.metadata import MAIN
from thermocline.lake.naming import new_run_id
from thermocline.lake.orphans import find_orphans
from thermocline.lake.snapshot_producer import FileChange, write_snapshot
from thermocline.maintain import removal
from thermocline.maintain.removal_journal import load_journal
from thermocline.maintain.service import MaintenanceService


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    """A clock that the test moves."""
    return ShiftedClock(monkeypatch)


@pytest.fixture
def project(tmp_path: Path, clock: ShiftedClock) -> RemovalProject:
    """A project with a table of three commits."""
    return RemovalProject(tmp_path, clock)


def test_files_are_removed_a_grace_period_after_they_were_found(
    project: RemovalProject, clock: ShiftedClock
) -> None:
    path, before = project.leave_file(), project.read_snapshots()
    clock.wait(days=3)  # its modification time alone is old enough
    first = project.maintain()
    assert (first.found, first.removed) == (1, 0)
    clock.wait(days=0.9)
    assert project.maintain().planned == []
    assert path.exists()
    clock.wait(days=0.2)
    last = project.maintain()
    assert last.planned[0].details["files"] == last.removed == 1
    assert not path.exists()
    assert find_orphans(project.lake.iceberg(TABLE)) == []
    assert project.read_snapshots() == before
    assert project.maintain().planned == []


def test_files_of_expired_snapshots_are_removed(
    project: RemovalProject, clock: ShiftedClock
) -> None:
    table = project.lake.iceberg(TABLE)
    old = [task.file for task in table.scan().plan_files()]
    made = write_snapshot(table, FileChange(removed=old), project.state.head(), {})
    project.lake.commit(snapshot_changes(table, made, MAIN, project.state.head()))
    project.append()
    before = project.read_snapshots()
    project.lake.iceberg(TABLE).maintenance.expire_snapshots().by_ids(
        [s for s in project.state.snapshots if s not in {made.id, project.state.head()}]
    ).commit()
    for days in (2, 2):
        clock.wait(days)
        outcome = project.maintain()
    assert outcome.removed >= len(old)
    assert not any(Path(file.file_path.removeprefix("file://")).exists() for file in old)
    assert project.read_snapshots() == {s: before[s] for s in project.state.snapshots}


def test_a_file_that_is_needed_again_is_kept(project: RemovalProject, clock: ShiftedClock) -> None:
    table = project.lake.iceberg(TABLE)
    [file] = write_files(table, table.scan().to_arrow())
    clock.wait(days=2)
    assert project.maintain().found == 1
    clock.wait(days=2)
    # A writer that is not known here commits a file days after it wrote it: after the plan.
    made = write_snapshot(table, FileChange([file], appends=True), project.state.head(), {})
    service = MaintenanceService(project.open(), project.policy)
    plan = service.plan([TABLE])
    project.lake.commit(snapshot_changes(table, made, MAIN, project.state.head()))
    outcome = RemovalOutcome(plan, service.apply(plan))
    assert (len(outcome.planned), outcome.removed) == (1, 0)
    assert project.read_snapshots()[made.id].total() == 12
    assert load_journal(project.lake, project.state).candidates == {}


Protection = Callable[[RemovalProject, Path], object]


def _share_files(project: RemovalProject, path: Path) -> None:
    with project.lake.iceberg(TABLE).transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})


def _create_inside(project: RemovalProject, path: Path) -> None:
    schema = project.lake.iceberg(TABLE).schema()
    project.lake.catalog.create_table("bronze.inner", schema, f"{project.state.location}/data/in")


def _create_around(project: RemovalProject, path: Path) -> None:
    schema = project.lake.iceberg(TABLE).schema()
    above = project.state.location.rpartition("/")[0].replace("file://", "file:")
    project.lake.catalog.create_namespace("silver")
    project.lake.catalog.create_table("silver.outer", schema, f"{above}//")


def _create_by_link(project: RemovalProject, path: Path) -> None:
    link = project.location.parent / "linked"
    link.symlink_to(project.location, target_is_directory=True)
    schema = project.lake.iceberg(TABLE).schema()
    project.lake.catalog.create_table("bronze.linked", schema, str(link))


def _write_data_into(project: RemovalProject, path: Path) -> None:
    schema = project.lake.iceberg(TABLE).schema()
    there = {"write.data.path": f"{project.state.location}/data"}
    project.lake.catalog.create_table("bronze.other", schema, properties=there)


def _damage_manifest(project: RemovalProject, path: Path) -> None:
    manifest = next(path for path in project.location.rglob("*-m0.avro"))
    manifest.write_bytes(manifest.read_bytes()[:-40])


def _lose_manifest_list(project: RemovalProject, path: Path) -> None:
    next(path for path in project.location.rglob("snap-*.avro")).unlink()


def _move_clock_back(project: RemovalProject, path: Path) -> None:
    project.clock.wait(days=-3)


def _modify_in_future(project: RemovalProject, path: Path) -> None:
    at = time.time() + project.clock.seconds + DAY
    os.utime(next(project.location.rglob("*.metadata.json")), (at, at))
    project.append()  # so that the table is listed again


BLOCKED: dict[str, tuple[Protection, str]] = {
    "files may be shared": (_share_files, "gc.enabled"),
    "a table inside": (_create_inside, "overlaps with that of bronze.inner"),
    "a table around": (_create_around, "overlaps with that of silver.outer"),
    "a table by a link": (_create_by_link, "overlaps with that of bronze.linked"),
    "another table's data": (_write_data_into, "overlaps with that of bronze.other"),
    "a damaged manifest": (_damage_manifest, "cannot be read"),
    "a lost manifest list": (_lose_manifest_list, "cannot be read"),
    "a clock that went back": (_move_clock_back, "the clock went back"),
    "a file of the future": (_modify_in_future, "modified in the future"),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_nothing_is_removed_and_the_report_says_why(
    name: str, project: RemovalProject, clock: ShiftedClock
) -> None:
    protect, reason = BLOCKED[name]
    path = project.leave_file()
    clock.wait(days=2)
    assert project.maintain().found == 1
    clock.wait(days=2)
    protect(project, path)
    files = set(project.location.rglob("*"))
    outcome = project.maintain()
    assert reason in outcome.reason
    assert outcome.removed == 0
    assert path.exists()
    assert files <= set(project.location.rglob("*"))
    assert project.maintain().removed == 0


def test_a_folder_that_cannot_be_listed_keeps_all_files(
    project: RemovalProject, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = project.leave_file()
    clock.wait(days=2)
    project.maintain()
    clock.wait(days=2)
    project.append()
    original = os.scandir

    def scan(at: Path) -> object:
        if str(at).endswith("metadata"):
            raise PermissionError(13, "Permission denied", str(at))
        return original(at)

    monkeypatch.setattr(os, "scandir", scan)
    outcome = project.maintain()
    assert "cannot be listed" in outcome.reason
    assert path.exists()
    monkeypatch.undo()


def _queue_commit(project: RemovalProject, path: Path) -> None:
    table = project.lake.iceberg(TABLE)
    [file] = write_files(table, table.scan().to_arrow())
    Path(file.file_path.removeprefix("file://")).unlink()
    moved = _with_path(file, f"file:{path}")
    project.lake.group_commit.submit(CommitEntry.of(table, "waiting", [moved]))


def _begin_run(project: RemovalProject, path: Path) -> object:
    draft = project.lake.draft(new_run_id())
    draft.begin(TABLE)
    return draft


def _begin_late_run(project: RemovalProject, path: Path) -> object:
    draft = project.lake.draft(new_run_id(), late_branches=True)
    draft.begin(TABLE)
    return draft


def _leave_branch(project: RemovalProject, path: Path) -> None:
    draft = project.lake.draft(new_run_id())
    draft.begin(TABLE)
    draft.release()


WORK: dict[str, Protection] = {
    "a waiting commit": _queue_commit,
    "a run at work": _begin_run,
    "a run at work without branches": _begin_late_run,
    "a run that may resume": _leave_branch,
}


@pytest.mark.parametrize("name", WORK)
def test_files_of_work_in_progress_are_kept(
    name: str, project: RemovalProject, clock: ShiftedClock
) -> None:
    path = project.leave_file()
    kept = WORK[name](project, path)
    for _ in range(3):
        clock.wait(days=2)
        assert project.maintain().removed == 0
    assert path.exists()
    del kept


def test_only_files_of_the_table_are_removed(
    project: RemovalProject, clock: ShiftedClock, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs.parquet").write_bytes(b"1")
    data = project.location / "data"
    (data / "link").symlink_to(outside, target_is_directory=True)
    (data / "link.parquet").symlink_to(outside / "theirs.parquet")
    kept = [data / "_temporary" / "a.parquet", data / ".hidden.parquet", data / "notes.txt",
            project.location / "own.parquet", project.location / "metadata" / "version-hint.text",
            project.location.parent / "events2.parquet"]  # fmt: skip
    gone = [data / "_day=1" / "lost.parquet", data / "deep" / "x" / "lost.orc"]
    for path in (*kept, *gone):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"2")
    for _ in range(2):
        clock.wait(days=2)
        outcome = project.maintain()
    assert outcome.removed == len(gone)
    assert all(path.exists() for path in kept)
    assert (outside / "theirs.parquet").read_bytes() == b"1"
    assert (data / "link.parquet").is_symlink()


def test_a_folder_replaced_by_a_link_is_not_followed(
    project: RemovalProject, clock: ShiftedClock, tmp_path: Path
) -> None:
    inside = project.location / "data" / "part" / "lost.parquet"
    inside.parent.mkdir()
    inside.write_bytes(b"2")
    clock.wait(days=2)
    assert project.maintain().found == 1
    inside.parent.rename(tmp_path / "part")
    inside.parent.symlink_to(tmp_path / "part", target_is_directory=True)
    clock.wait(days=2)
    assert project.maintain().removed == 0
    assert (tmp_path / "part" / "lost.parquet").exists()


def _spell(path: Path, name: str) -> str:
    folder, file = str(path.parent), path.name
    return {
        "path": f"{folder}/{file}",
        "one slash": f"file:{folder}/{file}",
        "three slashes": f"file://{folder}/{file}",
        "doubled slash": f"file:{folder}//{file}",
        "dot": f"file:{folder}/./{file}",
        "parent": f"file:{folder}/../data/{file}",
        "trailing slash": f"file:{folder}/{file}/",
        "encoded": f"file:{folder}/{file.replace('-', '%2D')}",
        "encoded twice": f"file:{folder}/{file.replace('-', '%252d')}",
        "another store": f"s3a://bucket/{file}",
        "through a link": f"file:{folder.replace('/data', '/linked')}/{file}",
    }[name]


SPELLINGS = (
    "path", "one slash", "three slashes", "doubled slash", "dot", "parent", "trailing slash",
    "encoded", "encoded twice", "another store", "through a link",
)  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_live_file_is_known_in_every_spelling(
    name: str, project: RemovalProject, clock: ShiftedClock
) -> None:
    table, path = project.lake.iceberg(TABLE), project.leave_file()
    [file] = write_files(table, table.scan().to_arrow())
    change = FileChange([_with_path(file, _spell(path, name))], appends=True)
    made = write_snapshot(table, change, project.state.head(), {})
    project.lake.commit(snapshot_changes(table, made, MAIN, project.state.head()))
    for _ in range(2):
        clock.wait(days=2)
        outcome = project.maintain()
    assert path.exists()
    assert outcome.removed == 1  # the file whose place it took


@pytest.mark.parametrize("damage", ["lost", "damaged", "moved", "another table's"])
def test_a_journal_that_is_lost_only_delays(
    damage: str, project: RemovalProject, clock: ShiftedClock
) -> None:
    path = project.leave_file()
    clock.wait(days=2)
    assert project.maintain().found == 1
    clock.wait(days=2)
    [journal] = (project.folder / ".thermocline" / "removal").iterdir()
    text = journal.read_text()
    if damage == "lost":
        journal.unlink()
    else:
        journal.write_text({
            "damaged": text[:-20],
            "moved": text.replace(project.state.location, "file:/elsewhere"),
            "another table's": text.replace(project.state.uuid, "0" * 36),
        }[damage])  # fmt: skip
    again = project.maintain()
    assert (again.found, again.removed, path.exists()) == (1, 0, True)
    clock.wait(days=2)
    assert project.maintain().removed == 1


def test_a_file_that_was_written_again_begins_again(
    project: RemovalProject, clock: ShiftedClock
) -> None:
    path = project.leave_file()
    clock.wait(days=2)
    assert project.maintain().found == 1
    path.write_bytes(b"another file of this name")
    clock.wait(days=2)
    assert project.maintain().removed == 0
    assert path.exists()


def test_a_large_removal_continues_in_the_next_pass(
    project: RemovalProject, clock: ShiftedClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removal, "MAX_FILES", 5)
    monkeypatch.setattr(removal, "BATCH_FILES", 2)
    paths = [project.leave_file() for _ in range(12)]
    clock.wait(days=2)
    assert project.maintain().found == 12
    clock.wait(days=2)
    began = time.monotonic()
    monkeypatch.setattr(removal, "FILES_PER_SECOND", 10)
    assert [project.maintain().removed for _ in range(4)] == [5, 5, 2, 0]
    assert time.monotonic() - began > 0.8
    assert not any(path.exists() for path in paths)


def test_statistics_are_kept(project: RemovalProject, clock: ShiftedClock) -> None:
    head = project.state.head()
    assert head is not None
    path = project.location / "metadata" / "counts.puffin"
    path.write_bytes(b"PFA1PFA1")
    statistics = StatisticsFile(
        snapshot_id=head, statistics_path=f"s3a://elsewhere//{path.name}",
        file_size_in_bytes=8, file_footer_size_in_bytes=4, blob_metadata=[],
    )  # fmt: skip
    raw = {**project.state.raw, "statistics": [statistics.model_dump(by_alias=True)]}
    replace_metadata(project.lake.catalog, project.lake.iceberg(TABLE), raw)
    for _ in range(3):
        clock.wait(days=2)
        project.maintain()
    assert path.exists()


def _with_path(file: DataFile, location: str) -> DataFile:
    values = list(file._data)
    values[1] = location
    made = DataFile(*values)
    made.spec_id = file.spec_id
    return made
