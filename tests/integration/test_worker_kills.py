"""Kill -9 of coordinators, workers and leaseholders at random times during backfills."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.integration.worker_project import content, land, make, many
from tests.leases import find_leaseholder

from thermocline.api import Lakehouse

# `make soak` kills a hundred times.
KILLS = 100 if os.environ.get("SOAK") else 40
SEED, DAYS = 20261117, 40


def start(house: Lakehouse) -> subprocess.Popen[bytes]:
    """A backfill of everything by two workers, a partition at a time."""
    words = ["backfill", "silver.clean", "--batch", "1", "--workers", "2", "--from", "2026-01-01"]
    command = [sys.executable, "-m", "thermocline.cli.main", "-C", str(house.settings.project)]
    return subprocess.Popen(
        [*command, "--json", *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def workers_of(coordinator: int) -> list[int]:
    """The worker processes of a coordinator."""
    with suppress(FileNotFoundError, ProcessLookupError):
        tasks = Path(f"/proc/{coordinator}/task").glob("*/children")
        return [int(pid) for task in tasks for pid in task.read_text().split()]
    return []


def waited_for(house: Lakehouse, process: subprocess.Popen[bytes]) -> int | None:
    """The next worker that commits, if one does soon; on a busy machine that takes seconds."""
    until = time.monotonic() + 6
    while time.monotonic() < until and process.poll() is None:
        if (holder := find_leaseholder(house.settings)) in workers_of(process.pid):
            return holder
        time.sleep(0.002)
    return None


@pytest.mark.timeout(900)
def test_random_kills_change_nothing(project: Path) -> None:
    house = make(project)
    land(house, many(range(DAYS)))
    house.run(workers="dag", select=["silver.clean"])
    expected = content(house, "silver.clean")
    chance = random.Random(SEED)
    killed = {"coordinator": 0, "worker": 0, "leaseholder": 0}
    finished, deadline = 0, time.monotonic() + 600
    process = start(house)
    while sum(killed.values()) < KILLS:
        assert time.monotonic() < deadline, (killed, finished)
        time.sleep(chance.uniform(0.05, 0.9))
        if process.poll() is not None:
            _, errors = process.communicate()
            assert process.returncode in {0, -signal.SIGKILL}, errors.decode()
            finished += process.returncode == 0
            process = start(house)
            continue
        kind = chance.choices(["coordinator", "worker", "leaseholder"], [2, 5, 3])[0]
        holder = waited_for(house, process) if kind == "leaseholder" else None
        victims = workers_of(process.pid)
        if kind == "coordinator":
            victim = process.pid
        elif holder in victims:
            victim = holder
        elif victims:
            kind, victim = "worker", chance.choice(victims)
        else:
            continue
        with suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            killed[kind] += 1
    _, errors = process.communicate(timeout=300)
    if process.returncode == -signal.SIGKILL:
        process = start(house)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors.decode()
    assert content(house, "silver.clean") == expected
    assert min(killed.values()) > 0, killed
    house.run(workers="dag", full_refresh=True, select=["silver.clean"])
    assert content(house, "silver.clean") == expected
