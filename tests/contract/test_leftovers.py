"""What failed and killed runs leave: dropped by one command or by age, never under a live run."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest

from thermocline.api.leftovers import clean
from thermocline.config import private_files
from thermocline.contract import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.errors import BadInput, NotFound
from thermocline.lake import Draft, Lake, run_branches, run_locks
from thermocline.lake.naming import RUN_PREFIX, new_run_id

TABLE, QUIET = "silver.t", "silver.quiet"

OTHER_PROCESS = """
import os, sys, time
from pathlib import Path
from thermocline.config import load_settings
from thermocline.lake import Lake
draft = Lake(load_settings(Path(sys.argv[1]))).draft(sys.argv[2])
draft.begin("silver.t", "silver.quiet")
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def lake(lake: Lake) -> Lake:
    for table in (TABLE, QUIET):
        lake.ensure(Contract(table, (Column("id", Primitive("long"), True),)))
    return lake


@pytest.fixture
def elsewhere(
    lake: Lake, catalog_environ: dict[str, str]
) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Another process of the project, at work on a run until it is killed or told to end."""
    begun: list[subprocess.Popen[str]] = []

    def begin(run: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", OTHER_PROCESS, str(lake.settings.project), run]
        process = subprocess.Popen(
            command, env={**os.environ, **catalog_environ}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        begun.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


def branches(lake: Lake) -> dict[str, set[str]]:
    return {t: set(state.refs) - {"main"} for t, state in lake.states((TABLE, QUIET)).items()}


def failed(lake: Lake) -> str:
    """A run of this process that left its branches in both tables, and ended."""
    draft = lake.draft(new_run_id())
    draft.begin(TABLE, QUIET)
    draft.release()
    return draft.run


def publish(lake: Lake, table: str = TABLE) -> None:
    draft: Draft = lake.draft(new_run_id())
    row = pa.table({"id": pa.array([1], pa.int64())})
    draft.append(table, row, bookmark=None, operation="test")
    draft.publish()


def test_a_killed_run_is_dropped_from_all_tables_and_a_live_one_is_kept(
    lake: Lake, elsewhere: Callable[[str], subprocess.Popen[str]]
) -> None:
    dead, alive, mine = new_run_id(), new_run_id(), failed(lake)
    elsewhere(alive)
    victim = elsewhere(dead)
    with pytest.raises(BadInput, match=f"Run {alive} is still running"):
        clean(lake, [alive])
    assert {r.run: str(r.status) for r in clean(lake, plan=True).runs} == {
        dead: "working", alive: "working", mine: "dead"
    }  # fmt: skip
    victim.kill()
    victim.wait()
    before = branches(lake)
    planned = clean(lake, plan=True)
    assert branches(lake) == before
    done = clean(lake)
    assert done.runs == planned.runs
    assert {r.run: (str(r.status), r.dropped) for r in done.runs} == {
        dead: ("dead", True), alive: ("working", False), mine: ("dead", True)
    }  # fmt: skip
    assert branches(lake) == {TABLE: {RUN_PREFIX + alive}, QUIET: {RUN_PREFIX + alive}}
    assert run_locks.known_runs(lake.settings.project) == [alive]
    assert clean(lake, force=True).runs[0].dropped is False


def test_a_run_is_named_by_the_beginning_of_its_id(lake: Lake) -> None:
    first, second = failed(lake), failed(lake)
    with pytest.raises(BadInput, match=r"2 runs with branches have an id that starts with 0"):
        clean(lake, ["0"])
    with pytest.raises(NotFound, match=r"No table has a branch of run nowhere"):
        clean(lake, ["nowhere"])
    common = next(n for n in range(26) if first[n] != second[n])
    [done] = clean(lake, [RUN_PREFIX + first[: common + 1]]).runs
    assert (done.run, done.dropped) == (first, True)
    assert branches(lake)[TABLE] == {RUN_PREFIX + second}


def test_a_run_of_another_machine_is_kept_until_it_is_old(lake: Lake) -> None:
    run = failed(lake)
    run_locks.forget_run(lake.settings.project, run)
    [kept] = clean(lake).runs
    assert (str(kept.status), kept.dropped) == ("unknown", False)
    with pytest.raises(BadInput, match=f"Run {run} was started on another machine"):
        clean(lake, [run])
    [forced] = clean(lake, [run], force=True).runs
    assert (forced.run, forced.dropped) == (run, True)
    assert branches(lake) == {TABLE: set(), QUIET: set()}


@pytest.mark.parametrize("known", [True, False])
def test_old_branches_go_by_themselves_also_where_nobody_commits(
    lake: Lake, open_lake: Callable[[], Lake], known: bool
) -> None:
    run = failed(lake)
    if not known:
        run_locks.forget_run(lake.settings.project, run)
    publish(lake)
    assert RUN_PREFIX + run in branches(lake)[QUIET]  # seven days are not over

    settings = replace(lake.settings, retention=replace(lake.settings.retention, dead_after="1s"))
    impatient = Lake(settings)
    alive = impatient.draft(new_run_id())
    alive.begin(TABLE, QUIET)
    swept = private_files.ensure_folder(settings.project) / "swept"
    while run_branches.find_unpublished_runs(impatient)[-1].touched.timestamp() > time.time() - 1.1:
        time.sleep(0.05)
    long_ago = time.time() - timedelta(hours=2).total_seconds()
    os.utime(swept, (long_ago, long_ago))
    publish(impatient)  # to one of the tables
    assert branches(impatient) == {TABLE: {alive.branch}, QUIET: {alive.branch}}
    assert run_locks.known_runs(settings.project) == [alive.run]
    alive.drop()
    assert run_locks.known_runs(settings.project) == []
    impatient.duck.stop()


def test_a_copy_of_the_project_knows_nothing_of_its_runs(lake: Lake, tmp_path: Path) -> None:
    draft = lake.draft(new_run_id())
    draft.begin(TABLE)
    copied = tmp_path / "copy"
    shutil.copytree(
        private_files.ensure_folder(lake.settings.project), copied / private_files.FOLDER
    )
    assert run_locks.is_working(lake.settings.project, draft.run) is True
    assert run_locks.is_working(copied, draft.run) is None
    draft.release()
    assert run_locks.is_working(lake.settings.project, draft.run) is False


def test_a_project_that_cannot_be_written_to_loses_nothing(lake: Lake) -> None:
    assert run_locks.is_working(Path("/nowhere"), new_run_id()) is None
    run_locks.RunLock(Path("/nowhere"), new_run_id()).release(done=True)
    assert not Path("/nowhere").exists()
