"""The log of reads: what it counts, what it forgets, and what it never holds."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path

import pytest

from thermocline.lake import read_log
from thermocline.lake.read_log import MAX_BYTES, MAX_COLUMNS, MAX_DAYS, ReadLog, read_rates

DAY = 86_400
NOW = 20_000 * DAY + 5_000.0


class Clock:
    """A clock that tests set."""

    now = NOW

    def __call__(self) -> float:
        return self.now


def log_file(project: Path) -> Path:
    """The log of a project."""
    return project / ".thermocline" / "reads.jsonl"


def record_many(project: Path, count: int) -> None:
    """Count reads in a process of its own, writing each."""
    log = ReadLog(project, lambda: NOW)
    for _ in range(count):
        log.record("silver.a", 2, 10, {"x"})
        log.flush()


def test_rates_are_per_day_over_the_age_of_the_log(tmp_path: Path) -> None:
    clock = Clock()
    log = ReadLog(tmp_path, clock)
    for _ in range(6):
        log.record("silver.a", 4, 1_000, {"x", "y"})
    log.record("silver.a", 4, 1_000, {"x"})
    log.record("silver.b", 1, 10, ())
    log.flush()
    rates = read_rates(tmp_path, NOW)
    assert rates is not None
    assert (rates["silver.a"].scans, rates["silver.a"].files) == (7, 28)
    assert rates["silver.a"].columns == {"x": 7, "y": 6}
    assert rates["silver.b"].bytes == 10
    later = read_rates(tmp_path, NOW + 6 * DAY)
    assert later is not None
    assert later["silver.a"].scans == 1
    assert read_rates(tmp_path, NOW + 7 * DAY) == {}


def test_without_a_log_nothing_is_known(tmp_path: Path) -> None:
    assert read_rates(tmp_path, NOW) is None
    ReadLog(tmp_path).flush()
    assert not log_file(tmp_path).exists()


def test_the_log_is_written_once_a_minute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes = []

    class Writer:
        def __init__(self, target: object, **_: object) -> None:
            writes.append(target)

        def start(self) -> None:
            pass

    monkeypatch.setattr(read_log, "Thread", Writer)
    clock = Clock()
    log = ReadLog(tmp_path, clock)
    for second in range(150):
        clock.now = NOW + second
        log.record("silver.a", 1, 1, ())
    assert len(writes) == 3


def test_processes_add_to_one_log(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=record_many, args=(tmp_path, 50)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    rates = read_rates(tmp_path, NOW)
    assert rates is not None
    assert rates["silver.a"].scans == 150


def test_lines_that_were_cut_or_damaged_are_ignored(tmp_path: Path) -> None:
    log = ReadLog(tmp_path, lambda: NOW)
    log.record("silver.a", 1, 1, ())
    log.flush()
    with log_file(tmp_path).open("a") as out:
        out.write('null\n[1]\n{}\n[20000,"t",1,1,"x",{}]\n[20000,"t",1,1,1,[]]\n\udcff'.encode(
            "utf-8", "replace").decode() + '\n[20000,"silver.a",5,5')  # fmt: skip
    rates = read_rates(tmp_path, NOW)
    assert rates is not None
    assert {table: rate.scans for table, rate in rates.items()} == {"silver.a": 1}


def test_the_log_is_bounded(tmp_path: Path) -> None:
    clock = Clock()
    log = ReadLog(tmp_path, clock)
    columns = [f"a_column_with_a_long_name_{number}" for number in range(100)]
    for day in range(2 * MAX_DAYS):
        clock.now = NOW + day * DAY
        for table in range(40):
            log.record(f"silver.table_{table}", 1, 1, columns)
        log.flush()
    assert log_file(tmp_path).stat().st_size <= MAX_BYTES * 1.1
    rates = read_rates(tmp_path, clock.now)
    assert rates is not None
    assert rates["silver.table_7"].scans == 1
    assert len(rates["silver.table_7"].columns) == MAX_COLUMNS
    days = {json.loads(line)[0] for line in log_file(tmp_path).read_text().splitlines()}
    assert max(days) - min(days) < MAX_DAYS


def test_a_log_that_cannot_be_written_is_dropped(tmp_path: Path) -> None:
    (tmp_path / ".thermocline").write_text("not a folder")
    log = ReadLog(tmp_path)
    log.record("silver.a", 1, 1, ())
    log.flush()


def test_a_locked_log_does_not_stop_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_log, "LOCK_PAUSE", 0.001)
    log = ReadLog(tmp_path, lambda: NOW)
    with read_log._locked(tmp_path):
        log.record("silver.a", 1, 1, ())
        log.flush()
    assert read_rates(tmp_path, NOW) is None


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    record_many(tmp_path, 1)
    assert log_file(tmp_path).stat().st_mode & 0o077 == 0
