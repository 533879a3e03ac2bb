"""A per-second log of a loop: answers and CPU use of the processes."""

from __future__ import annotations

import csv
import threading
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from benchmarks.measure import stolen_seconds
from benchmarks.serving.disturb import Disturbances, processes
from benchmarks.serving.load import Heard
from benchmarks.serving.report import quantile

KINDS = ("router", "node", "replicator", "direct")


@dataclass(frozen=True)
class Sample:
    """CPU seconds so far, stolen by other guests and of each kind of process."""

    at: float
    kills: int
    stolen: float
    used: dict[str, float]


@dataclass
class Course:
    """Samples, one per second."""

    samples: list[Sample] = field(default_factory=list)

    def write(self, path: Path, heard: Iterable[Heard], hot: int) -> None:
        """Return a line per second: queries, outcomes and CPU; the first `hot` queries are hot."""
        begun: dict[int, list[Heard]] = defaultdict(list)
        for each in heard:
            begun[_second(self.samples, each.began)].append(each)
        with path.open("w", newline="", encoding="utf-8") as file:
            out = csv.writer(file)
            out.writerow(
                ["second", "asked", "failed", "p95 ms", "slowest ms", "hot read from files",
                 "kills", "stolen", *KINDS]
            )  # fmt: skip
            for number, (before, after) in enumerate(
                zip(self.samples, self.samples[1:], strict=False)
            ):
                of = begun[number]
                times = [each.seconds * 1000 for each in of if each.status == 200]
                direct = sum(each.engine == "direct" and each.question < hot for each in of)
                used = [after.used.get(k, 0) - before.used.get(k, 0) for k in KINDS]
                out.writerow(
                    [number, len(of), sum(each.status != 200 for each in of),
                     round(quantile(times, 0.95), 1), round(max(times, default=0), 1), direct,
                     after.kills - before.kills, round(after.stolen - before.stolen, 2),
                     *(round(each, 2) for each in used)]
                )  # fmt: skip


def _second(samples: list[Sample], at: float) -> int:
    """Return the sample in whose second something began."""
    return max(bisect_right(samples, at, key=lambda each: each.at) - 1, 0)


@contextmanager
def course(server: int, happened: Disturbances) -> Iterator[Course]:
    """Sample while the block runs."""
    found, done = Course(), threading.Event()

    def watch() -> None:
        counted: dict[int, tuple[str, float]] = {}
        while True:
            everybody = {"router": psutil.Process(server), **processes(server)}
            for name, each in everybody.items():
                try:
                    times = each.cpu_times()
                except psutil.NoSuchProcess:
                    continue
                counted[each.pid] = name.split("-")[0], times.user + times.system
            used: dict[str, float] = defaultdict(float)
            for kind, seconds in counted.values():
                used[kind] += seconds
            now, stolen = time.perf_counter(), stolen_seconds()
            found.samples.append(Sample(now, happened.kills, stolen, dict(used)))
            if done.wait(1.0):
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()
