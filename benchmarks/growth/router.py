"""Measure what a commit costs the router of a large lake: `python -m benchmarks.growth.router`.

Four measurements, each at growing sizes side by side:

- `commits`: event-loop time, bytes received and CPU per commit, at so many data files;
- `queries`: p99 of POST /query with 50 texts and 3 commits a second, at so many data files;
- `tables`: what a commit costs where the lake has so many tables;
- `texts`: memory of the router after so many distinct texts with a commit before each.

The lakes are fabricated: manifests name data files that are not there where no one reads them
(`commits`, `texts`), and hard links to one file a day where nodes do (`queries`).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, TimestamptzType

from benchmarks.measure import machine
from benchmarks.serving.load import Client, Heard, ask
from benchmarks.serving.report import quantile
from thermocline.config import load_settings
from thermocline.lake import Lake
from thermocline.serve.fleet.fleet import Fleet, FleetConfig
from thermocline.serve.router import Router
from thermocline.serve.values import Caller, QueryRequest
from thermocline.serve.wire import protocol

LARGE, SMALL = "gold.large", "gold.small"
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "at", TimestamptzType()),
)
BY_DAY = PartitionSpec(PartitionField(2, 1000, DayTransform(), "at_day"))
DAY = 86_400_000_000
DAYS = 365
"""Number of days that the files of a table cover."""
PER_MANIFEST = 8_000
FILES = (10_000, 40_000, 160_000, 640_000)
QUERY_FILES = (1_000, 4_000, 16_000)
TABLES = (60, 250, 1_000)
TEXTS = (125, 500, 2_000)
COMMITS = 12
HISTORY = 25
"""Maximum number of snapshots of the large table during queries."""
SETTINGS = """\
[lake]
name = "growth"
[serve]
nodes = 1
node_memory = "600MB"
port = 0
verify_share = 0.0
"""

# The lake -----------------------------------------------------------------------------------------


@cache
def lake_of(project: Path) -> Lake:
    """Return the lake of a project, opened once in a process."""
    return Lake(load_settings(project, environ={}))


def made(project: Path, *tables: str) -> Lake:
    """Create a lake with these tables, partitioned by day."""
    project.mkdir(parents=True)
    (project / "thermocline.toml").write_text(SETTINGS)
    lake = lake_of(project)
    lake.catalog.create_namespace("gold")
    for table in tables:
        hot = "off" if table == LARGE else "on"
        lake.catalog.create_table(
            table, SCHEMA, partition_spec=BY_DAY, properties={"thermocline.hot": hot}
        )
    return lake


def entry(path: str, day: int, size: int = 1_000_000, rows: int = 1_000) -> DataFile:
    """Return the manifest entry of a data file of one day."""
    low, high = (int(at).to_bytes(8, "little") for at in (day * DAY, (day + 1) * DAY - 1))
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=Record(day),
        record_count=rows,
        file_size_in_bytes=size,
        lower_bounds={2: low},
        upper_bounds={2: high},
    )


def today() -> int:
    """Return the number of the day."""
    return int(time.time()) // 86_400


def fill(table: Table, count: int, file: Callable[[int], DataFile]) -> None:
    """Append a number of files, some thousands in each snapshot."""
    for first in range(0, count, PER_MANIFEST):
        with (
            table.refresh().transaction() as transaction,
            transaction.update_snapshot().fast_append() as append,
        ):
            for number in range(first, min(first + PER_MANIFEST, count)):
                append.append_data_file(file(number))


def commit_named(project: Path, number: int) -> int:
    """Append a file entry without a file to the large table; return the snapshot."""
    table = lake_of(project).iceberg(LARGE)
    with (
        table.transaction() as transaction,
        transaction.update_snapshot().fast_append() as append,
    ):
        append.append_data_file(entry(f"{table.location()}/data/more-{number}", today()))
    return _newest(table)


def commit_rows(project: Path, number: int) -> int:
    """Append a row to the small table; return the snapshot."""
    table = lake_of(project).iceberg(SMALL)
    row = {"id": number, "at": datetime.now(UTC)}
    table.append(pa.Table.from_pylist([row], schema=table.schema().as_arrow()))
    return _newest(table)


def _newest(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


# The router in this process -----------------------------------------------------------------------


@dataclass
class Loop:
    """Statistics of the event loop: received bytes, and its longest step in CPU time."""

    bytes: int = 0
    longest: float = 0.0
    cpu: float = 0.0


@contextmanager
def watched() -> Iterator[Loop]:
    """Record every step of the event loop and every frame."""
    seen = Loop()
    run, read = asyncio.Handle._run, protocol.parse_header

    def stepped(self: asyncio.Handle) -> None:
        began = time.thread_time()
        run(self)
        took = time.thread_time() - began
        seen.longest = max(seen.longest, took)
        seen.cpu += took

    def counted(written: Any) -> dict[str, Any]:
        seen.bytes += len(written)
        return read(written)

    asyncio.Handle._run = stepped  # type: ignore[method-assign]
    protocol.parse_header = counted  # type: ignore[attr-defined]
    try:
        yield seen
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]
        protocol.parse_header = read  # type: ignore[attr-defined]


async def _seen(router: Router, table: str, snapshot: int, seconds: float = 120.0) -> None:
    until = time.perf_counter() + seconds
    while True:
        head = router.lake_state().table_heads.get(table)
        if head is not None and head.snapshot == snapshot:
            return
        if time.perf_counter() > until:
            raise TimeoutError(f"{table} at {snapshot} was not seen in {seconds:.0f} s")
        await asyncio.sleep(0.005)


@contextmanager
def committer() -> Iterator[ProcessPoolExecutor]:
    """A separate process that commits, so that its cost is not attributed to the router."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        yield pool


def _replicator() -> psutil.Process:
    (found,) = (
        each
        for each in psutil.Process().children()
        if "thermocline.serve.replicator" in each.cmdline()
    )
    return found


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


# Commits ------------------------------------------------------------------------------------------


def commits(folder: Path, files: int) -> dict[str, float]:
    """Measure a commit to a table with many files."""
    project = folder / f"commits-{files}"
    table = made(project, LARGE).iceberg(LARGE)
    first = today() - DAYS
    place = f"{table.location()}/data"
    fill(table, files, lambda n: entry(f"{place}/{n:08d}.parquet", first + n * DAYS // files))
    snapshot = _newest(table.refresh())
    lake_of.cache_clear()
    return asyncio.run(_commits(project, snapshot))


async def _commits(project: Path, snapshot: int) -> dict[str, float]:
    router = Router(Fleet(FleetConfig(project, nodes=0, direct=1, spark=False)))
    loop = asyncio.get_running_loop()
    steps, sizes, walls = [], [], []
    with watched() as seen, committer() as pool:
        await router.start()
        try:
            began = time.perf_counter()
            await _seen(router, LARGE, snapshot)
            first = time.perf_counter() - began
            await loop.run_in_executor(pool, commit_named, project, -1)
            await asyncio.sleep(1.5)
            spent, replicator = seen.cpu, _cpu(_replicator())
            for number in range(COMMITS):
                seen.longest, seen.bytes = 0.0, 0
                newest = await loop.run_in_executor(pool, commit_named, project, number)
                began = time.perf_counter()
                await _seen(router, LARGE, newest)
                walls.append(time.perf_counter() - began)
                steps.append(seen.longest)
                sizes.append(seen.bytes)
            return {
                "first view s": first,
                "longest step CPU ms": 1000 * statistics.median(steps),
                "bytes per commit": statistics.median(sizes),
                "router CPU ms per commit": 1000 * (seen.cpu - spent) / COMMITS,
                "replicator CPU ms per commit": 1000 * (_cpu(_replicator()) - replicator) / COMMITS,
                "seen after ms": 1000 * statistics.median(walls),
                "replicator MB": _replicator().memory_info().rss / 1e6,
            }
        finally:
            await router.stop()


def tables(folder: Path, count: int) -> dict[str, float]:
    """Measure a commit in a lake with many hot tables."""
    project = folder / f"tables-{count}"
    others = [f"gold.t{number:04d}" for number in range(count - 1)]
    lake = made(project, LARGE, *others)
    for name in (LARGE, *others):
        table = lake.iceberg(name)
        first = entry(f"{table.location()}/data/first", today() - DAYS)
        fill(table, 1, lambda _, first=first: first)  # type: ignore[misc]
    snapshot = _newest(lake.iceberg(LARGE))
    lake_of.cache_clear()
    return asyncio.run(_commits(project, snapshot))


# Texts --------------------------------------------------------------------------------------------


def texts(folder: Path, count: int, files: int = 4_000) -> dict[str, float]:
    """Measure memory after many queries, with a commit to another table before each."""
    project = folder / f"texts-{count}"
    lake = made(project, LARGE, SMALL)
    table = lake.iceberg(LARGE)
    first = today() - DAYS
    place = f"{table.location()}/data"
    fill(table, files, lambda n: entry(f"{place}/{n:08d}.parquet", first + n * DAYS // files))
    commit_rows(project, 0)
    snapshot = _newest(lake.iceberg(SMALL))
    lake_of.cache_clear()
    with get_context("spawn").Pool(1) as pool:  # a process that has done nothing else
        return pool.apply(_texts_alone, (project, snapshot, count))


def _texts_alone(project: Path, snapshot: int, count: int) -> dict[str, float]:
    return asyncio.run(_texts(project, snapshot, count))


async def _texts(project: Path, snapshot: int, count: int) -> dict[str, float]:
    router = Router(Fleet(FleetConfig(project, nodes=1, direct=1, spark=False)))
    loop = asyncio.get_running_loop()
    commit = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.growth.router", "--commit-to", str(project)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert commit.stdin and commit.stdout
    await router.start()
    try:
        await _seen(router, SMALL, snapshot)
        before = 0
        for number in range(-20, count):
            if number == 0:
                gc.collect()
                before = psutil.Process().memory_info().rss
            commit.stdin.write(f"{number}\n")
            commit.stdin.flush()
            newest = int(await loop.run_in_executor(None, commit.stdout.readline))
            await router.fleet.poll(60.0)
            await _seen(router, LARGE, newest)
            sql = (
                f"select count(*) as n, max(id) as m from {SMALL} "
                f"where at >= timestamptz '2026-01-01 00:00:00+00' and id <> {number} group by at"
            )
            await router.answer(QueryRequest(sql), Caller())
        gc.collect()
        grown = psutil.Process().memory_info().rss - before
        return {"grown MB": grown / 1e6, "kB per text": grown / 1e3 / count}
    finally:
        commit.stdin.close()
        commit.wait()
        await router.stop()


def _commit_on_demand(project: Path) -> None:
    """Commit at every input line; the history is kept short, since it is not measured here."""
    for line in sys.stdin:
        if int(line) % HISTORY == 0:
            table = lake_of(project).iceberg(LARGE)
            table.maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit()
        print(commit_named(project, int(line)), flush=True)


# Queries ------------------------------------------------------------------------------------------


def queries(folder: Path, files: int, seconds: float) -> dict[str, float]:
    """Measure POST /query with 50 queries and 3 commits per second on a table with many files."""
    project = folder / f"queries-{files}"
    table = made(project, SMALL).iceberg(SMALL)
    place = Path(table.location().removeprefix("file://")) / "data"
    place.mkdir(parents=True, exist_ok=True)
    days = 60
    size = [_one_day(place, table, today() - n) for n in range(days)]

    def file(number: int) -> DataFile:
        day = number % days
        path = place / f"{number:06d}.parquet"
        os.link(place / f"day-{today() - day}", path)
        return entry(f"file://{path}", today() - day, size[day], ROWS_A_FILE)

    fill(table, files, file)
    lake_of.cache_clear()
    with _served(project) as url:
        return asyncio.run(_queries(project, url, seconds))


ROWS_A_FILE = 20


def _one_day(place: Path, table: Table, day: int) -> int:
    step = DAY // ROWS_A_FILE
    rows = pa.table(
        {
            "id": pa.array(range(ROWS_A_FILE), pa.int64()),
            "at": pa.array(
                [day * DAY + n * step for n in range(ROWS_A_FILE)], pa.timestamp("us", "UTC")
            ),
        },
        schema=table.schema().as_arrow(),
    )
    pq.write_table(rows, place / f"day-{day}")
    return (place / f"day-{day}").stat().st_size


@contextmanager
def _served(project: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "thermocline.cli.main", "--project", str(project), "serve"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        note = project / ".thermocline" / "serve.json"
        while not note.exists():
            if server.poll() is not None:
                raise RuntimeError("the server ended")
            time.sleep(0.1)
        yield json.loads(note.read_text())["url"]
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


@dataclass
class Asked:
    """Send the queries and collect the responses."""

    texts: list[str] = field(
        default_factory=lambda: [
            f"select count(*) as n, sum(id) as m from {SMALL} where at >= current_date - {n % 7}"
            f" and id <> {n}"
            for n in range(50)
        ]
    )
    heard: list[Heard] = field(default_factory=list)


async def _queries(project: Path, url: str, seconds: float, rate: float = 40.0) -> dict[str, float]:
    asked = Asked()
    loop = asyncio.get_running_loop()
    client = Client(url)
    until, tries = time.perf_counter() + 300, 0
    while time.perf_counter() < until:  # nodes take long to load so many small files
        tries += 1
        if (await ask(client, 0, f"{asked.texts[6]} and id <> -{tries}")).engine == "hot":
            break
        await asyncio.sleep(0.5)
    with committer() as pool:
        done = asyncio.Event()

        async def commit() -> int:
            number = 0
            while not done.is_set():
                due = time.perf_counter() + 1 / 3
                await loop.run_in_executor(pool, commit_rows, project, number)
                number += 1
                await asyncio.sleep(max(due - time.perf_counter(), 0))
            return number

        committing = asyncio.create_task(commit())
        await _paced(url, asked, seconds, rate)
        done.set()
        made_ = await committing
    times = [1000 * each.seconds for each in asked.heard if each.status == 200]
    failed = sum(each.status != 200 for each in asked.heard)
    engines = [each.engine for each in asked.heard]
    return {
        "p50 ms": quantile(times, 0.5),
        "p99 ms": quantile(times, 0.99),
        "asked": len(times),
        "failed": failed,
        "not hot or cached": sum(each not in ("hot", "cache") for each in engines),
        "commits/s": made_ / seconds,
    }


async def _paced(url: str, asked: Asked, seconds: float, rate: float) -> None:
    idle: list[Client] = []
    running: set[asyncio.Task[None]] = set()
    begin = time.perf_counter()

    async def one(number: int, due: float) -> None:
        client = idle.pop() if idle else Client(url)
        heard = await ask(client, number % 50, asked.texts[number % 50])
        heard.seconds = time.perf_counter() - due
        asked.heard.append(heard)
        idle.append(client)

    for number in range(int(seconds * rate)):
        due = begin + number / rate
        await asyncio.sleep(max(due - time.perf_counter(), 0))
        task = asyncio.create_task(one(number, due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    for client in idle:
        client.close()


# All of it ----------------------------------------------------------------------------------------


def run(
    files: Sequence[int] = FILES,
    query_files: Sequence[int] = QUERY_FILES,
    table_counts: Sequence[int] = TABLES,
    text_counts: Sequence[int] = TEXTS,
    seconds: float = 30.0,
) -> None:
    """Measure and print everything; an empty sequence skips a part."""
    print(machine(), file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="growth-router-"))
    try:
        _table("data files", files, lambda n: commits(folder, n))
        _table("data files", query_files, lambda n: queries(folder, n, seconds))
        _table("tables", table_counts, lambda n: tables(folder, n))
        _table("texts", text_counts, lambda n: texts(folder, n))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _table(what: str, sizes: Sequence[int], measure: Callable[[int], dict[str, float]]) -> None:
    if not sizes:
        return
    found: list[dict[str, float]] = []
    for size in sizes:
        try:
            found.append(measure(size))
            print(f"{size:,} {what}: {found[-1]}", file=sys.stderr)
        except TimeoutError as error:
            print(f"{size:,} {what}: {error}")
            found.append({})
    print(f"\n| {what} | " + " | ".join(f"{size:,}" for size in sizes) + " | last / first |")
    print("|---|" + "---:|" * (len(sizes) + 1))
    for name in dict.fromkeys(name for each in found for name in each):
        values = [each.get(name) for each in found]
        shown = " | ".join("—" if each is None else f"{each:,.1f}" for each in values)
        first, last = values[0], values[-1]
        ratio = f"{last / first:.2f}" if first and last is not None else "—"
        print(f"| {name} | {shown} | {ratio} |", flush=True)


def main() -> None:
    """Run the selected measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, nargs="*", default=FILES)
    parser.add_argument("--query-files", type=int, nargs="*", default=QUERY_FILES)
    parser.add_argument("--tables", type=int, nargs="*", default=TABLES)
    parser.add_argument("--texts", type=int, nargs="*", default=TEXTS)
    parser.add_argument("--seconds", type=float, default=30.0, help="of asking, each size")
    parser.add_argument("--commit-to", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.commit_to is not None:
        _commit_on_demand(given.commit_to)
        return
    run(given.files, given.query_files, given.tables, given.texts, given.seconds)


if __name__ == "__main__":
    main()
