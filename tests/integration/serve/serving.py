"""`thermo serve` as a process of its own, on a lake of the tests, and what it tells of itself."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.conftest import clean_environment
from tests.integration.serve import shop_lake

COLD = """
[serve]
direct_limit = "30KB"
max_seconds = 900
verify_share = 0.0
[engine.spark]
master = "local[1]"
memory = "1g"
shuffle_partitions = 2
"""
"""A day of orders is small enough to be read directly, all of them are left to Spark.
What is not cancelled would go on for longer than tests wait."""


@dataclass
class Serving:
    """A server that runs, and what it said when it was ready."""

    process: subprocess.Popen[str]
    told: dict[str, Any]
    project: Path

    @property
    def url(self) -> str:
        return str(self.told["url"])

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def counted(self, engine: str, outcome: str = "answered") -> float:
        """How many questions ended so."""
        line = f'shadow_warehouse_queries_total{{engine="{engine}",outcome="{outcome}"}} '
        lines = httpx.get(f"{self.url}/metrics").text.splitlines()
        return sum(float(each.removeprefix(line)) for each in lines if each.startswith(line))

    def settled(self, tables: int) -> None:
        """Wait until so many tables are held at their newest snapshots."""

        def held() -> bool:
            listed = httpx.get(f"{self.url}/tables").json()["tables"]
            fresh = [
                each["table"]
                for each in listed
                if any(copy["snapshot"] == each["snapshot"] for copy in each["hot"]["copies"])
            ]
            return len(fresh) == tables

        until(held, 60)

    def busy(self) -> bool:
        """Whether one of its processes works all the time, or would if it were let."""
        working = self._working()
        for _ in range(10):
            time.sleep(0.05)
            working &= self._working()
        return bool(working)

    def idle(self) -> None:
        """Wait until none of its processes works on anything."""
        until(lambda: not any(self.busy() for _ in range(3)), 60)

    def _working(self) -> set[int]:
        """Its processes, and theirs, that have a thread which runs or waits for a processor."""
        found, waiting = set(), children(self.process.pid)
        while waiting:
            pid = waiting.pop()
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                waiting += children(pid)
                if any(state(task / "stat") == "R" for task in Path(f"/proc/{pid}/task").iterdir()):
                    found.add(pid)
        return found


def until(true: Callable[[], bool], seconds: float) -> None:
    """Wait until something is true."""
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it did not become true in time"
        time.sleep(0.05)


def thermo(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command of ours, run to its end."""
    return subprocess.run(
        [sys.executable, "-m", "thermocline.cli.main", *arguments],
        cwd=cwd,
        env={**clean_environment(), **environ},
        capture_output=True,
        text=True,
        check=False,
    )


@contextlib.contextmanager
def started(project: Path, *arguments: str, **environ: str) -> Iterator[Serving]:
    """A server on any free port, for the time of the block."""
    command = [sys.executable, "-m", "thermocline.cli.main", "serve", "--port", "0", "--json"]
    process = subprocess.Popen(
        [*command, *arguments], cwd=project, env={**clean_environment(), **environ},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        text = ""
        while not text.startswith("{") or text.count("{") != text.count("}"):
            line = process.stdout.readline()
            assert line, process.stderr.read() if process.stderr else ""
            text += line
        yield Serving(process, json.loads(text), project)
    finally:
        if process.poll() is None:
            process.terminate()  # which ends its Spark too; that is in a session of its own
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def shop(project: Path, settings: str, **environ: str) -> Path:
    """A project with the small shop, whose three tables are hot where they are served."""
    shop_lake.build(project, **environ).close()
    with (project / "thermocline.toml").open("a") as file:
        file.write(settings)
    return project


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def gone(pid: int) -> bool:
    """Whether a process has ended."""
    try:
        return state(Path(f"/proc/{pid}/stat")) == "Z"
    except FileNotFoundError:
        return True


def state(stat: Path) -> str:
    """What a process or thread does at the moment, by the kernel's letter."""
    return stat.read_text().rpartition(")")[2].split()[0]
