"""The standing maintenance service: beside streams and servers, paused, resting and failing."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest
from tests.conftest import SETTINGS, clean_environment
from tests.integration.odcs import HEAD
from tests.integration.serve.serving import started, until

from thermocline.config import load_settings
from thermocline.contract import Column, Contract, WriteMode
from thermocline.contract.types import Primitive
from thermocline.lake import Lake
from thermocline.lake.file_commit import append_rows, commit_files
from thermocline.lake.live_files import live_files
from thermocline.lake.metadata import MAIN
from thermocline.maintain import service_status
from thermocline.maintain.maintenance_policy import MaintenancePolicy
from thermocline.maintain.service import MaintenanceReport, MaintenanceService
from thermocline.maintain.standing_service import StandingService

TABLE = "bronze.raw_things"
CONTRACT = Contract(TABLE, (Column("id", Primitive("long"), True),), write=WriteMode.APPEND)
FREEZE_POINT = "maintain.before-commit"
SERVICE_ON = {
    "THERMOCLINE_MAINTAIN__SERVICE": "on",
    "THERMOCLINE_MAINTAIN__EVERY": "0.2s",
    "THERMOCLINE_MAINTAIN__COOL_DOWN": "0s",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Create a project with a landing folder of JSON lines, which needs no Spark."""
    contract = HEAD.format(name="raw_things") + (
        "      - {name: id, physicalType: long, required: true}\n"
        "customProperties:\n  - {property: write, value: append}\n"
    )
    source = "name: things\npath: landing\nformat: jsonl\ntarget: bronze.raw_things\n"
    for name, text in {
        "thermocline.toml": SETTINGS, "sources/things.yaml": source,
        "contracts/bronze/raw_things.odcs.yaml": contract, "landing/.keep": "",
    }.items():  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def open_lake(folder: Path, **maintain: Any) -> Lake:
    settings = load_settings(folder, environ=clean_environment())
    changed = replace(settings.maintain, every="0.05s", cool_down="0s", **maintain)
    return Lake(replace(settings, maintain=changed))


def append(lake: Lake, *ids: int) -> None:
    """Append a file of these ids."""
    import pyarrow as pa

    lake.ensure(CONTRACT)
    rows = append_rows(pa.table({"id": pa.array(ids, pa.int64())}))
    commit_files(lambda: lake.iceberg(TABLE), rows, MAIN, {})


def ids(lake: Lake) -> list[int]:
    return sorted(lake.iceberg(TABLE).scan().to_arrow()["id"].to_pylist())


def file_count(lake: Lake) -> int:
    head = lake.state(TABLE).head()
    return 0 if head is None else len(live_files(lake.iceberg(TABLE), head))


def build_service(lake: Lake) -> StandingService:
    return StandingService(lake, MaintenancePolicy.from_settings(lake.settings.maintain))


@contextmanager
def running(service: StandingService) -> Iterator[list[MaintenanceReport]]:
    """Run a service in a thread; yield the list that receives its reports."""
    stop, reports = Event(), list[MaintenanceReport]()
    thread = Thread(target=lambda: reports.extend(service.run(stop)))
    thread.start()
    try:
        yield reports
    finally:
        stop.set()
        thread.join(60)
        assert not thread.is_alive()


def status_of(folder: Path) -> str:
    found = service_status.read_status(folder)
    return "" if found is None else found.state


def test_files_are_joined_as_they_arrive_and_a_settled_table_is_not_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = open_lake(folder)
    for each in range(8):
        append(lake, each)
    planned: list[list[str]] = []
    plan_states = MaintenanceService.plan_states

    def count(self: MaintenanceService, states: Any, *more: Any) -> Any:
        planned.append(sorted(states))
        return plan_states(self, states, *more)

    monkeypatch.setattr(MaintenanceService, "plan_states", count)
    with running(build_service(lake)) as reports:
        until(lambda: len(reports) == 1, 60)
        until(lambda: len(planned) > 10, 60)
        assert planned[0] == [TABLE]
        assert planned[-5:] == [[]] * 5
        append(lake, 8)
        until(lambda: [TABLE] in planned[-3:], 60)
    assert ids(lake) == list(range(9))
    assert file_count(lake) == 2
    found = service_status.read_status(folder)
    assert found is not None and found.last_success is not None
    assert found.tables[TABLE].files == 2


def test_a_paused_service_rests_until_it_is_resumed(folder: Path) -> None:
    lake = open_lake(folder)
    for each in range(8):
        append(lake, each)
    service_status.pause(folder)
    with running(build_service(lake)) as reports:
        until(lambda: status_of(folder) == "paused", 60)
        time.sleep(0.3)
        assert file_count(lake) == 8
        service_status.resume(folder)
        until(lambda: len(reports) == 1, 60)
    assert file_count(lake) == 1


def test_nothing_is_done_in_quiet_hours_or_without_budget(folder: Path) -> None:
    hour = datetime.now(UTC).hour
    around = f"{(hour - 1) % 24:02}:00-{(hour + 2) % 24:02}:00"
    for maintain, state in (
        ({"quiet_hours": around}, "quiet hours"),
        ({"hourly_budget": "0.000001s"}, "the budget of this hour is used up"),
    ):
        lake = open_lake(folder, **maintain)
        for each in range(8):
            append(lake, each)
        with running(build_service(lake)) as reports:
            until(lambda state=state: status_of(folder) == state, 60)  # type: ignore[misc]
            time.sleep(0.2)
        # A budget that is nearly nothing still lets one task begin, or none would ever.
        assert len(reports) == (0 if state == "quiet hours" else 1)


def test_while_another_maintains_the_service_waits_and_then_works(folder: Path) -> None:
    lake = open_lake(folder)
    for each in range(8):
        append(lake, each)
    other = subprocess.Popen(
        [sys.executable, "-m", "thermocline", "maintain"], cwd=folder,
        env={**clean_environment(), **SERVICE_ON, "THERMOCLINE_FREEZE_AT": FREEZE_POINT},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    _, status = os.waitpid(other.pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    with running(build_service(lake)) as reports:
        until(lambda: status_of(folder) == "another process maintains the lake", 60)
        assert not reports
        other.kill()
        other.wait()
        until(lambda: bool(reports), 60)
    assert ids(lake) == list(range(8))
    assert file_count(lake) == 1


def test_a_catalog_that_goes_away_ends_no_service(folder: Path) -> None:
    lake = open_lake(folder)
    for each in range(8):
        append(lake, each)
    catalog = Path(lake.settings.catalog.uri)
    away = catalog.with_name("away.db")
    catalog.rename(away)
    with running(build_service(lake)) as reports:
        until(lambda: status_of(folder).startswith("failing: "), 60)
        away.rename(catalog)
        until(lambda: bool(reports), 60)
    assert ids(lake) == list(range(8))


@contextmanager
def stream(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run `thermo stream` with the service beside it."""
    process = subprocess.Popen(
        [sys.executable, "-m", "thermocline", "stream", "things", "--every", "50ms", "--json"],
        cwd=folder, env={**clean_environment(), **SERVICE_ON}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def find_service(folder: Path) -> int | None:
    """Return the pid of the project's maintenance service."""
    for each in Path("/proc").iterdir():
        try:
            command = (each / "cmdline").read_bytes().split(b"\0") if each.name.isdigit() else []
        except OSError:
            continue  # it ended meanwhile
        if b"thermocline.maintain" in command and str(folder).encode() in command:
            return int(each.name)
    return None


def deliver(folder: Path, number: int) -> None:
    path = folder / "landing" / f"{number}.jsonl"
    path.with_name(f".{path.name}").write_text(json.dumps({"id": number}) + "\n")
    path.with_name(f".{path.name}").rename(path)


def await_files(lake: Lake, check: Callable[[list[int], int], bool]) -> None:
    until(lambda: lake.exists(TABLE) and check(ids(lake), file_count(lake)), 120)


def test_a_stream_maintains_what_it_writes_and_every_row_lands_once(folder: Path) -> None:
    lake = open_lake(folder)
    with stream(folder) as process:
        for each in range(30):
            deliver(folder, each)
            time.sleep(0.05)
        await_files(lake, lambda rows, files: len(rows) == 30 and files < 8)
        service = find_service(folder)
        assert service is not None
        assert os.getpriority(os.PRIO_PROCESS, service) == 19

        os.kill(service, signal.SIGKILL)  # it is started again
        until(lambda: find_service(folder) not in (None, service), 60)
        for each in range(30, 40):
            deliver(folder, each)
        await_files(lake, lambda rows, _: rows == list(range(40)))

        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        assert sum(json.loads(line)["rows"] for line in out.splitlines()) == 40
        until(lambda: find_service(folder) is None, 3)
    assert ids(lake) == list(range(40))


def test_a_killed_stream_leaves_no_service(folder: Path) -> None:
    with stream(folder) as process:
        until(lambda: find_service(folder) is not None, 60)
        process.kill()
        until(lambda: find_service(folder) is None, 30)


def test_a_server_shows_what_its_maintenance_found(folder: Path) -> None:
    lake = open_lake(folder)
    for each in range(8):
        append(lake, each)
    with started(folder, "--nodes", "1", **SERVICE_ON) as server:

        def find(name: str) -> float:
            text = httpx.get(f"{server.url}/metrics").text
            found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
            return float(found[1]) if found else -1.0

        until(lambda: find("thermocline_maintenance_success_timestamp_seconds") > 0, 60)
        until(lambda: find(f'iceberg_small_files_count{{table="{TABLE}"}}') == 1, 60)
        assert find("thermocline_maintenance_backlog_seconds") == 0
    until(lambda: find_service(folder) is None, 3)
    assert ids(lake) == list(range(8))


def test_pause_and_status_are_shown(folder: Path) -> None:
    def thermo(*arguments: str) -> Any:
        done = subprocess.run(
            [sys.executable, "-m", "thermocline", "maintain", *arguments, "--json"], cwd=folder,
            env=clean_environment(), capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(done.stdout)

    assert thermo("--status") == {"paused": False, "service": None}
    assert thermo("--pause")["paused"] is True
    assert thermo("--status")["paused"] is True
    assert thermo("--resume")["paused"] is False
