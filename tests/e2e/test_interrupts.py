"""Ctrl-C and SIGTERM at the moments when most goes on: one exit code, no process left, no bug.

`python -m benchmarks.interrupts` does the same at random moments of every command.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.e2e.shop_project import SMALL, environment, generate, thermo
from tests.integration.worker_project import content, land, make, many
from tests.interrupted import Ended, started

from thermocline.api import init

SEED = 20261119
ORDERS = ("ingest", "orders")
COUNTED = """
select count(*), count(distinct (_source_file, _position)),
       (select count(*) from quarantine.raw_orders)
from bronze.raw_orders
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shop with its landing files, and nothing in the lake."""
    folder = tmp_path_factory.mktemp("shop")
    init(folder)
    generate(folder, *SMALL)
    return folder


def test_ingest_while_its_jvm_starts_at_work_and_on_its_way_out(shop: Path, tmp_path: Path) -> None:
    chance, small = random.Random(SEED), environment({})
    # The scripts that launch the JVM, and the JVM before it listens.
    for way in ("group", "process"):
        with started(["-C", shop, *ORDERS], small, tmp_path) as process:
            process.wait_until(lambda it: bool(it.commands()))
            later = process.seconds + chance.uniform(0, 0.7)
            process.wait_until(lambda it, later=later: it.seconds > later)  # type: ignore[misc]
            ended = assert_ended(process.interrupt(way), signal.SIGINT)
            assert ended.running
    # In a Spark job: it writes data files that nobody sees yet.
    with started(["-C", shop, *ORDERS], small, tmp_path) as process:
        process.wait_until(lambda _: any(shop.glob("lake/**/raw_orders/**/*.parquet")))
        assert_ended(process.interrupt("group", signal.SIGTERM), signal.SIGTERM)
    # The result is printed, and engines and JVM are being closed.
    with started(["-C", shop, "--json", *ORDERS], small, tmp_path) as process:
        process.wait_until(lambda it: it.printed().endswith("}\n"))
        ended = assert_ended(process.interrupt("group"), signal.SIGINT)
    landed = json.loads(ended.printed)["targets"][0]
    assert landed["refused"] == []
    (rows, places, quarantined), *_ = thermo(shop, {}, "query", COUNTED)["rows"]
    assert rows == places
    assert rows + quarantined == sum(
        len(file.read_text().splitlines()) for file in (shop / "landing" / "orders").iterdir()
    )


def test_a_second_signal_ends_what_was_asked_to_finish(shop: Path, tmp_path: Path) -> None:
    with (shop / "sources" / "events.yaml").open("a") as source:
        source.write("lane: spark\n")  # it starts a JVM, which takes longer than the first signal
    with started(["-C", shop, "stream", "events"], environment({}), tmp_path) as process:
        process.wait_until(lambda it: bool(it.commands()))
        ended = process.interrupt("process", again=0.4)
    assert ended.flaw(signal.SIGINT) is None, ended
    assert "SIGINT: ending after the current batch." in ended.said
    assert ended.said.endswith("Interrupted.\n")
    assert ended.seconds < 2.5


def test_a_backfill_while_its_workers_compute(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "thermocline.toml").write_text(SETTINGS)
    house = make(project)
    land(house, many(range(12)))
    house.run(workers="dag", select=["silver.clean"])
    expected = content(house, "silver.clean")
    command = ["-C", project, "backfill", "silver.clean", "--batch", "1", "--workers", "2"]
    chance = random.Random(SEED)
    for way, number in (("group", signal.SIGINT), ("process", signal.SIGTERM)):
        with started(command, clean_environment(), tmp_path) as process:
            process.wait_until(lambda it: len(it.commands()) == 2)
            later = process.seconds + chance.uniform(0, 2.5)
            process.wait_until(lambda it, later=later: it.seconds > later)  # type: ignore[misc]
            assert_ended(process.interrupt(way, number), number)
    done = subprocess.run(
        [sys.executable, "-m", "thermocline", *command], env=clean_environment(), check=False
    )
    assert done.returncode == 0
    assert content(house, "silver.clean") == expected


@pytest.mark.parametrize("way", ["process", "group"])
def test_random_moments_of_a_command_without_spark(tmp_path: Path, way: str) -> None:
    (tmp_path / "thermocline.toml").write_text(SETTINGS)
    make(tmp_path)
    chance = random.Random(f"{SEED} {way}")
    command = ["-C", tmp_path, "query", "select count(*) from bronze.raw, range(400000000)"]
    moments = [chance.uniform(0, 0.8) for _ in range(5)] + [2.0]
    for moment, number in zip(moments, [signal.SIGINT, signal.SIGTERM] * 3, strict=True):
        with started(command, clean_environment(), tmp_path) as process:
            start: float = process.seconds
            process.wait_until(
                lambda it, until=start + moment: it.seconds > until  # type: ignore[misc]
            )
            assert_ended(process.interrupt(way, number), number)


def test_what_ignores_signals_stays_so(tmp_path: Path) -> None:
    """`nohup` and a shell's background jobs are not ended by what they are to ignore."""
    (tmp_path / "thermocline.toml").write_text(SETTINGS)
    code = (
        "import os, signal; signal.signal(signal.SIGHUP, signal.SIG_IGN);"
        "from thermocline import interrupt; interrupt.install();"
        "os.kill(os.getpid(), signal.SIGHUP); print(signal.getsignal(signal.SIGHUP).name)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "SIG_IGN\n")


def test_a_child_that_is_about_to_start_is_not_forgotten(tmp_path: Path) -> None:
    """The end waits for it, and nothing is started once the end has begun."""
    code = (
        "import os, signal, time\n"
        "from thermocline import interrupt\n"
        "interrupt.install()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "while True: interrupt.start_child(['sleep', '77777'])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (130, "Interrupted.\n")
    assert not [it for it in Path("/proc").glob("[0-9]*/cmdline") if b"77777" in _content(it)]


def assert_ended(ended: Ended, number: int) -> Ended:
    """The end is as promised; the error says what was seen."""
    assert ended.flaw(number) is None, (ended.flaw(number), ended)
    return ended


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
