"""Disturbances during the load: a commit every few seconds, and killed nodes.

Commits are made by a process of their own, as they would be: in the one that asks, they would hold
up the clock.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa

from benchmarks.serving import lake as lakes

COMMIT_SECONDS = 5.0
ADDED = 500


@dataclass
class Disturbances:
    """The rows of each commit by its snapshot, and the number of killed nodes."""

    commits: dict[str, pa.Table] = field(default_factory=dict)
    kills: int = 0


@contextmanager
def disturbed(project: Path, server: int, kill_seconds: float) -> Iterator[Disturbances]:
    """Commit, and kill nodes of the server in turn, until the block ends."""
    happened = Disturbances()
    context = multiprocessing.get_context("spawn")
    ended, messages = context.Event(), context.SimpleQueue()
    committer = context.Process(target=_commit, args=(project, ended, messages))
    stopped = threading.Event()
    killer = threading.Thread(target=_kill, args=(server, kill_seconds, stopped, happened))
    committer.start()
    messages.get()  # it has started
    killer.start()
    try:
        yield happened
    finally:
        ended.set()
        stopped.set()
        killer.join()
        while (commit := messages.get()) is not None:
            snapshot, number, start = commit
            happened.commits[snapshot] = _rows(number, start)
        committer.join()


def _commit(project: Path, ended: Any, messages: Any) -> None:
    try:
        lake = lakes.opened(project)
        messages.put("begun")
        number = 1 << 40
        while not ended.wait(COMMIT_SECONDS):
            start = datetime.now(UTC) - timedelta(seconds=COMMIT_SECONDS)
            lake.iceberg(lakes.TABLE).append(_rows(number, start))
            messages.put((str(lake.state(lakes.TABLE).head()), number, start))
            number += ADDED
    finally:
        messages.put(None)


def _rows(number: int, start: datetime) -> pa.Table:
    return lakes.views(number, ADDED, start, timedelta(seconds=COMMIT_SECONDS))


def _kill(server: int, seconds: float, stopped: threading.Event, happened: Disturbances) -> None:
    while not stopped.wait(seconds):
        nodes = sorted(processes(server, "node-").items())
        if nodes:
            os.kill(nodes[happened.kills % len(nodes)][1].pid, signal.SIGKILL)
            happened.kills += 1


def processes(server: int, kind: str = "") -> dict[str, psutil.Process]:
    """Return the worker processes of a server by name, taken from their sockets."""
    found = {}
    for child in psutil.Process(server).children():
        try:
            sockets = [word for word in child.cmdline() if word.endswith(".sock")]
        except psutil.NoSuchProcess:
            continue
        if sockets and Path(sockets[0]).stem.startswith(kind):
            found[Path(sockets[0]).stem] = child
    return found
