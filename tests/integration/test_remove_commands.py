"""`thermo maintain` removes files: what a kill leaves, and what must be confirmed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import clean_environment
from tests.integration.removal_project import TABLE, RemovalProject, ShiftedClock

from thermocline.lake.naming import new_run_id

AT_ONCE = {
    "THERMOCLINE_MAINTAIN__REMOVE_AFTER": "0.001s",
    "THERMOCLINE_MAINTAIN__REMOVE_EVERY": "0.001s",
    "THERMOCLINE_MAINTAIN__MIN_FILES": "1000",
}
FILES = 6


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RemovalProject:
    """A project with unreferenced files that are a day old."""
    made = RemovalProject(tmp_path, ShiftedClock(monkeypatch))
    day_ago = time.time() - 86_400
    for _ in range(FILES):
        os.utime(made.leave_file(), (day_ago, day_ago))
    return made


def start(project: RemovalProject, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start the command line in the project."""
    return subprocess.Popen(
        [sys.executable, "-m", "thermocline", "maintain", *arguments, "--json"],
        cwd=project.folder, env={**clean_environment(), **AT_ONCE, **variables},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def maintain(project: RemovalProject, *arguments: str, **variables: str) -> Any:
    """Call the command line; return its JSON."""
    process = start(project, *arguments, **variables)
    output, errors = process.communicate(timeout=120)
    return json.loads(output or errors)


def count(report: Any, name: str) -> int:
    """Sum a count of a report's results."""
    return sum(result[name] or 0 for result in report["results"] if result["kind"] == "remove")


def lost_files(project: RemovalProject) -> int:
    """Count the files that nothing references."""
    return sum(b"lost" in path.read_bytes() for path in project.location.rglob("*.parquet"))


@pytest.mark.parametrize(
    ("point", "left"),
    [("removal.recorded", FILES), ("removal.deleting:3", FILES - 3), ("removal.deleted", 0)],
)
def test_a_killed_removal_loses_nothing_and_is_continued(
    point: str, left: int, project: RemovalProject
) -> None:
    before = project.read_snapshots()
    if point != "removal.recorded":
        assert count(maintain(project), "files_found") == FILES
    process = start(project, THERMOCLINE_CRASH_AT=point)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert lost_files(project) == left
    assert project.read_snapshots() == before
    reports = [maintain(project) for _ in range(2)]
    assert sum(count(each, "files_removed") for each in reports) == left  # none is counted twice
    assert lost_files(project) == 0
    assert project.read_snapshots() == before
    [first, *_] = json.loads(start(project, "--history").communicate(timeout=60)[0])
    assert (first["kind"], first["outcome"]) == ("remove", "done")


def test_two_maintainers_remove_each_file_once(project: RemovalProject) -> None:
    before = project.read_snapshots()
    maintain(project)
    first = start(project, THERMOCLINE_FREEZE_AT="removal.deleting:2")
    _, status = os.waitpid(first.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    assert maintain(project)["error"]["cause"] == "Another process maintains this lake."
    first.send_signal(signal.SIGCONT)
    output, _ = first.communicate(timeout=60)
    assert count(json.loads(output), "files_removed") == FILES
    assert project.read_snapshots() == before


def test_files_are_removed_at_once_only_if_the_table_is_named_twice(
    project: RemovalProject,
) -> None:
    before, arguments = project.read_snapshots(), (TABLE, "--remove-unreferenced", "--older-than")
    shown = maintain(project, *arguments, "1h")
    assert [(task["kind"], task["files"]) for task in shown["tasks"]] == [("remove", FILES)]
    assert maintain(project, *arguments, "2d")["tasks"] == []
    wrong = maintain(project, *arguments, "1h", "--confirm", "bronze.other")
    assert wrong["error"]["code"] == "bad-input"
    assert lost_files(project) == FILES
    report = maintain(project, *arguments, "1h", "--confirm", TABLE)
    assert count(report, "files_removed") == FILES
    assert lost_files(project) == 0
    assert project.read_snapshots() == before


@pytest.mark.parametrize(
    "arguments",
    [
        (TABLE, "--remove-unreferenced"),
        ("--remove-unreferenced", "--older-than", "1h"),
        (TABLE, "bronze.other", "--remove-unreferenced", "--older-than", "1h"),
        (TABLE, "--older-than", "1h"),
        (TABLE, "--confirm", TABLE),
        (TABLE, "--remove-unreferenced", "--older-than", "0"),
        (TABLE, "--remove-unreferenced", "--older-than=-1h"),
        (TABLE, "--remove-unreferenced", "--older-than", "2099-01-01"),
        (TABLE, "--remove-unreferenced", "--older-than", "soon", "--confirm", TABLE),
        ("bronze.missing", "--remove-unreferenced", "--older-than", "1h"),
        (TABLE, "--remove-unreferenced", "--older-than", "1h", "--watch"),
    ],
)
def test_what_is_unclear_is_refused(arguments: tuple[str, ...], project: RemovalProject) -> None:
    assert maintain(project, *arguments)["error"]["code"] in {"bad-input", "not-found"}
    assert lost_files(project) == FILES


@pytest.mark.parametrize("late", [True, False])
def test_an_age_of_0_is_refused_while_a_run_works(late: bool, project: RemovalProject) -> None:
    before, arguments = (
        project.read_snapshots(), (TABLE, "--remove-unreferenced", "--older-than", "0s")
    )  # fmt: skip
    draft = project.lake.draft(new_run_id(), late_branches=late)
    draft.begin(TABLE)
    for more in ((), ("--confirm", TABLE)):
        found = maintain(project, *arguments, *more)
        assert "a run or a stream is at work" in json.dumps(found["skipped"])
    assert lost_files(project) == FILES
    draft.drop()
    assert count(maintain(project, *arguments, "--confirm", TABLE), "files_removed") == FILES
    assert project.read_snapshots() == before
