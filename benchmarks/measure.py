"""What a piece of work costs: wall time, CPU and memory of a process and its children."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil


@dataclass
class Cost:
    """Seconds and bytes that a piece of work took."""

    wall: float = 0.0
    cpu: float = 0.0
    peak: int = 0
    stolen: float = 0.0
    """CPU seconds that the host of a virtual machine gave to others while somebody waited."""

    def __str__(self) -> str:
        stolen = f", {self.stolen:.1f} s CPU taken by others" if self.stolen >= 0.1 else ""
        return (
            f"{self.wall:8.1f} s wall {self.cpu:8.1f} s CPU {self.peak / 1e9:6.2f} GB peak{stolen}"
        )


@contextmanager
def measured(of: int | None = None, without: Collection[int] = ()) -> Iterator[Cost]:
    """Measure the block. The JVM and Spark's Python workers are children, so they count.

    `of` is the process that does the work, this one unless given; `without` are children that
    only stand by, such as a server that all contestants share.
    """
    cost = Cost()
    done = threading.Event()

    def tree() -> list[psutil.Process]:
        root = psutil.Process(of)
        return [each for each in (root, *root.children(recursive=True)) if each.pid not in without]

    def watch() -> None:
        while not done.wait(0.5):
            cost.peak = max(cost.peak, _memory(tree()))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    wall, cpu, stolen = time.perf_counter(), _cpu(tree()), stolen_seconds()
    try:
        yield cost
    finally:
        cost.wall = time.perf_counter() - wall
        cost.cpu = _cpu(tree()) - cpu
        cost.stolen = stolen_seconds() - stolen
        done.set()
        watcher.join()


def stolen_seconds() -> float:
    """CPU seconds that the host of a virtual machine gave to others, since it began."""
    return float(getattr(psutil.cpu_times(), "steal", 0.0))


def machine() -> str:
    """The machine in a line, without its name."""
    memory = psutil.virtual_memory().total / (1 << 30)
    return f"{psutil.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.machine()}"


def _cpu(processes: list[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def _memory(processes: list[psutil.Process]) -> int:
    """Resident bytes, each shared page once: a JVM that starts a program is there twice."""
    total = 0
    for process in processes:
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            total += process.memory_full_info().pss
    return total
