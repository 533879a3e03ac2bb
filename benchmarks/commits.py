"""Many writer processes on one table: group commit, compared with PyIceberg's own appends.

Each writer writes small files and commits them one after the other, while a compactor runs. The
peer's writers append with PyIceberg's defaults and retry whenever it gives up, for a fixed time and
without a compactor. In a third phase the leaseholder is killed repeatedly. Run it with
`make bench-commits`.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tests.contract.concurrent_writers import CONTRACT, PER_WRITER, TABLE, Job, WriterResults, run
from tests.servers import postgres, settings

from benchmarks.measure import Cost, machine, measured
from thermocline.config import load_settings
from thermocline.lake import Lake

CATALOGS = ("sqlite", "postgres")
PROJECT = '[lake]\nname = "bench"\n'
P95_GOAL, RATIO_GOAL = 1.0, 50.0


@dataclass(frozen=True)
class Result:
    """One phase: the landed commits, their latencies and the cost."""

    job: Job
    outcome: WriterResults
    cost: Cost
    rows: list[int]
    snapshots: int

    @property
    def seconds(self) -> list[float]:
        return [a[2] for each in self.outcome.answers.values() for a in each]

    @property
    def rate(self) -> float:
        """Commits per second, from the first submission to the last answer."""
        every = [a for each in self.outcome.answers.values() for a in each]
        if self.job.peer_seconds:
            return len(every) / self.job.peer_seconds
        return len(every) / (max(a[3] for a in every) - min(a[3] - a[2] for a in every))

    @property
    def by_writer(self) -> list[int]:
        return [len(each) for each in self.outcome.answers.values()]

    @property
    def is_complete(self) -> bool:
        """Whether every row of every writer landed once."""
        every = [
            w * PER_WRITER + n for w in range(self.job.writers) for n in range(self.job.commits)
        ]
        return sorted(self.rows) == every and not self.outcome.failures

    def line(self, name: str) -> str:
        p50, p95, p99 = np.percentile(self.seconds or [float("nan")], (50, 95, 99))
        counts = self.by_writer
        return (
            f"| {name} | {sum(counts):,} | {self.rate:,.1f} | {min(counts)}–{max(counts)} | "
            f"{counts.count(0)} | {p50:.2f} | {p95:.2f} | {p99:.2f} | {self.snapshots:,} | "
            f"{self.cost.cpu:,.0f} | {self.outcome.holders_killed} | "
            f"{'yes' if self.is_complete else 'no'} |"
        )


def main() -> None:
    """Run all phases on each catalog; print the results and whether goals were met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=50)
    parser.add_argument("--commits", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--budget", type=float, default=60.0, help="seconds for the peer")
    parser.add_argument("--catalog", choices=CATALOGS, action="append")
    options = parser.parse_args()
    print("| | commits | commits/s | per writer | starved | p50 s | p95 s | p99 s | snapshots "
          "| CPU s | killed | complete |\n"
          "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---|", flush=True)  # fmt: skip
    verdicts = [v for kind in options.catalog or CATALOGS for v in _run_phases(kind, options)]
    print(f"\n{options.writers} writers, {options.commits} commits each, the peer for "
          f"{options.budget:g} s, {datetime.now(UTC):%Y-%m-%d}, {machine()}\n")  # fmt: skip
    print("\n".join(verdicts))


def _run_phases(kind: str, options: argparse.Namespace) -> Iterator[str]:
    ours = Job(options.writers, options.commits, compact=True, timeout=600)
    killed = Job(options.writers, options.commits, kills=options.kills, holders_only=True,
                 timeout=600)  # fmt: skip
    peer = _measure(kind, Job(options.writers, options.commits, peer_seconds=options.budget))
    print(peer.line(f"PyIceberg, {kind}"), flush=True)
    group = _measure(kind, ours)
    print(group.line(f"group commit, {kind}"), flush=True)
    deaths = _measure(kind, killed)
    print(deaths.line(f"group commit, {kind}, committer killed"), flush=True)
    expected = options.writers * options.commits
    p95 = float(np.percentile(group.seconds, 95))
    ratio = group.rate / peer.rate if peer.rate else float("inf")
    compactions = group.outcome.compactions
    yield _verdict(group.is_complete, f"{kind}: all {expected:,} landed once, none failed, "
                   f"{compactions} compactions meanwhile")  # fmt: skip
    yield _verdict(min(group.by_writer) == options.commits, f"{kind}: no writer starved")
    yield _verdict(p95 < P95_GOAL, f"{kind}: p95 {p95:.2f} s, goal under {P95_GOAL:g} s")
    yield _verdict(ratio >= RATIO_GOAL, f"{kind}: {ratio:,.0f} times the peer's commits, "
                   f"goal {RATIO_GOAL:g}")  # fmt: skip
    yield _verdict(
        deaths.is_complete and deaths.outcome.holders_killed >= options.kills,
        f"{kind}: committer killed {deaths.outcome.holders_killed} times, all {expected:,} landed",
    )


def _verdict(met: bool, text: str) -> str:
    return f"{'met   ' if met else 'MISSED'}  {text}"


def _measure(kind: str, job: Job) -> Result:
    """Measure one phase on a separate lake."""
    with _lake(kind) as (project, environ):
        lake = Lake(load_settings(project, environ={**os.environ, **environ}))
        lake.ensure(CONTRACT)
        if job.peer_seconds:
            with lake.iceberg(TABLE).transaction() as transaction:
                transaction.remove_properties("commit.retry.num-retries")
        with measured(without=_servers()) as cost:
            outcome = run(project, job, {**os.environ, **environ}, timeout=1800)
        rows = lake.iceberg(TABLE).scan().to_arrow()["id"].to_pylist()
        return Result(job, outcome, cost, rows, len(lake.state(TABLE).snapshots))


@contextmanager
def _lake(kind: str) -> Iterator[tuple[Path, dict[str, str]]]:
    project = Path(tempfile.mkdtemp(prefix="bench-commits-"))
    (project / "thermocline.toml").write_text(PROJECT)
    try:
        if kind == "sqlite":
            yield project, {}
            return
        with postgres.serve() as server:
            yield project, settings.postgres_lake_settings(server, project)
    finally:
        shutil.rmtree(project, ignore_errors=True)


def _servers() -> list[int]:
    """Return the processes of PostgreSQL, which are excluded from the cost."""
    import psutil

    children = psutil.Process().children(recursive=True)
    return [child.pid for child in children if "postgres" in child.name()]


if __name__ == "__main__":
    main()
