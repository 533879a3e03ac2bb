"""Many writer processes on one table, killed and frozen: every key lands once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import clean_environment
from tests.contract.concurrent_writers import (
    CONTRACT,
    PER_WRITER,
    TABLE,
    Job,
    WriterResults,
    key,
    run,
)

from thermocline.lake import Lake
from thermocline.lake import bookmark as bookmarks

RunJob = Callable[[Job], WriterResults]
SQL_POINTS = ("groupcommit.queued", "groupcommit.leased", "publish.staged", "publish.swapping",
              "publish.swapped")  # fmt: skip
REST_POINTS = ("publish.swapping", "publish.swapped", "groupcommit.landed")


@pytest.fixture
def run_job(lake: Lake, project: Path, catalog_environ: dict[str, str]) -> RunJob:
    lake.ensure(CONTRACT)
    environ = {**clean_environment(), **catalog_environ}
    return lambda job: run(project, job, environ)


def check(lake: Lake, job: Job, outcome: WriterResults) -> None:
    """Every key was acknowledged, and its row is there once, in the snapshot that was named."""
    assert outcome.failures == []
    wanted = {w: [key(w, n) for n in range(job.commits)] for w in range(job.writers)}
    assert {w: [k for k, *_ in a] for w, a in outcome.answers.items()} == wanted
    found: list[int] = lake.iceberg(TABLE).scan().to_arrow()["id"].to_pylist()
    expected = [w * PER_WRITER + n for w in range(job.writers) for n in range(job.commits)]
    assert sorted(found) == expected
    summaries = {s.id: s.summary for s in lake.state(TABLE).snapshots.values()}
    named = [k for summary in summaries.values() for k in bookmarks.read_entry_keys(summary)]
    assert sorted(named) == sorted(k for keys in wanted.values() for k in keys)
    for answers in outcome.answers.values():
        for name, snapshot, *_ in answers:
            assert name in bookmarks.read_entry_keys(summaries[snapshot])


def test_twelve_writers_commit_and_nobody_starves(run_job: RunJob, lake: Lake) -> None:
    job = Job(writers=12, commits=10)
    check(lake, job, run_job(job))
    if lake.settings.catalog.type != "rest":
        snapshots = len(lake.state(TABLE).snapshots)
        assert snapshots < 100, "waiting commits share a snapshot"


def test_a_writer_that_dies_at_any_point_lands_once(run_job: RunJob, lake: Lake) -> None:
    points = REST_POINTS if lake.settings.catalog.type == "rest" else SQL_POINTS
    dying = [{"THERMOCLINE_CRASH_AT": point} for point in points]
    job = Job(writers=len(points), commits=1, together=False, first=dying)
    outcome = run_job(job)
    check(lake, job, outcome)
    assert outcome.deaths == len(points), "each point was reached"


def test_a_writer_that_freezes_past_its_lease_commits_nothing_twice(
    run_job: RunJob, lake: Lake
) -> None:
    """While it stands still, another writer submits the same key and one of its own."""
    point = "publish.swapping" if lake.settings.catalog.type == "rest" else "publish.staged"
    job = Job(writers=2, commits=1, freeze=True, first=[{"THERMOCLINE_FREEZE_AT": point}])
    outcome = run_job(job)
    check(lake, job, outcome)
    assert len(lake.state(TABLE).snapshots) <= 3


def test_random_kills_lose_and_double_nothing(run_job: RunJob, lake: Lake) -> None:
    rest = lake.settings.catalog.type == "rest"
    job = Job(writers=6, commits=12 if rest else 30, kills=8, seed=7)
    outcome = run_job(job)
    check(lake, job, outcome)
    assert outcome.deaths >= 4
    if not rest:
        assert outcome.holders_killed >= 1
