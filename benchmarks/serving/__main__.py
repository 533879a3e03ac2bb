"""Dashboards on ten million rows: `python -m benchmarks.serving` (`make bench-serve`).

One run: a server with two hot nodes; a commit every five seconds; a node killed every minute; first
as many questions as a few people can ask (closed loop), then a fixed rate (open loop); every
answer compared with what the rows of its snapshot say. Beside it the same questions one by one on
Spark and on DuckDB reading the files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import psutil
import pyarrow as pa

from benchmarks.measure import machine, measured
from benchmarks.serving import lake as lakes
from benchmarks.serving.load import Client, Heard, Mix, ask, closed_loop, open_loop
from benchmarks.serving.truth import wrong
from thermocline.api.answer import answer
from thermocline.lake import Lake

COMMIT_SECONDS = 5.0
KILL_SECONDS = 60.0
ADDED = 500


def main() -> None:
    """Build, serve, ask, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the open loop")
    parser.add_argument("--closed", type=float, default=1.0, help="minutes of the closed loop")
    parser.add_argument("--rate", type=float, default=250.0, help="questions a second")
    parser.add_argument("--readers", type=int, default=500, help="at once, at the end")
    parser.add_argument("--no-spark", action="store_true", help="leave out the peer that is slow")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-serve-"))
    try:
        _bench(folder / "p", options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _bench(project: Path, options: argparse.Namespace) -> None:
    lake = lakes.build(project, options.rows)
    first = (str(lake.state(lakes.TABLE).head()), lake.iceberg(lakes.TABLE).scan().to_arrow())
    mix = Mix(lakes.hot_questions(), lakes.cold_questions())
    print(f"{options.rows:,} rows, {len(mix.questions)} questions, {machine()}", file=sys.stderr)
    with _served(project) as (url, server):
        _until_hot(url, mix)
        own = asyncio.run(_own_time(url, mix))
        alone = asyncio.run(_one_by_one(url, mix))
        with _disturbed(lake, server) as commits, measured(server.pid) as cost:
            closed = asyncio.run(closed_loop(url, mix, options.closed * 60, clients=8))
            opened = asyncio.run(open_loop(url, mix, options.minutes * 60, options.rate))
        many = asyncio.run(closed_loop(url, mix, 10.0, clients=options.readers))
        router = psutil.Process(server.pid).memory_full_info().pss
    mistakes, compared = wrong([*closed, *opened, *many], mix.questions, first, commits)
    lines = [
        _row("closed loop, 8 people", closed, options.closed * 60),
        _row(f"open loop, {options.rate:g}/s", opened, options.minutes * 60),
        _row(f"{options.readers} people at once", many, 10.0),
    ]
    print("| | answers | per second | failed | p50 ms | p95 ms | p99 ms | hot p95 ms | engines |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---|")
    print("\n".join(lines))
    print(f"\nwrong answers: {mistakes} of {compared:,} compared; {len(commits)} commits")
    print(f"server: {cost}; the router alone {router / 1e6:.0f} MB")
    print(
        f"a kept answer {own[0]:.2f} ms, a trivial handler {own[1]:.2f} ms: {own[0] / own[1]:.2f}×"
    )
    _peers(lake, mix, alone, options)


@contextmanager
def _served(project: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    command = [sys.executable, "-m", "thermocline.cli.main", "--project", str(project), "serve"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        note = project / ".thermocline" / "serve.json"
        while not note.exists():
            assert server.poll() is None, "the server ended"
            time.sleep(0.1)
        yield json.loads(note.read_text())["url"], server
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def _until_hot(url: str, mix: Mix) -> None:
    """Wait until the nodes hold the table."""

    async def engine() -> str:
        client = Client(url)
        heard = await ask(client, 0, f"{mix.hot[0]} and {time.time()} > 0")
        client.close()
        return heard.engine

    ends = time.monotonic() + 120
    while asyncio.run(engine()) != "hot":
        assert time.monotonic() < ends, "no node holds the table"
        time.sleep(0.5)


async def _own_time(url: str, mix: Mix) -> tuple[float, float]:
    """Milliseconds of an answer that is kept, and of a handler that does nothing."""
    client = Client(url)
    kept, trivial = [], []
    body = json.dumps({"sql": mix.hot[0]}).encode()
    for _ in range(400):
        began = time.perf_counter()
        await client.post("/query", body)
        between = time.perf_counter()
        await client.get("/health")
        kept.append((between - began) * 1000)
        trivial.append((time.perf_counter() - between) * 1000)
    client.close()
    return statistics.median(kept[100:]), statistics.median(trivial[100:])


async def _one_by_one(url: str, mix: Mix) -> list[float]:
    """Milliseconds of each hot question when nothing else is asked and nothing is kept."""
    client = Client(url)
    found = []
    for number, sql in enumerate(mix.hot):
        tries = []
        for attempt in range(3):
            changed = sql.replace("where", f"where {attempt + 1} = {attempt + 1} and", 1)
            tries.append((await ask(client, number, changed)).seconds * 1000)
        found.append(min(tries))
    client.close()
    return found


@contextmanager
def _disturbed(lake: Lake, server: subprocess.Popen[bytes]) -> Iterator[dict[str, pa.Table]]:
    """Commit every few seconds, and kill a node every minute, until the block ends."""
    commits: dict[str, pa.Table] = {}
    ended = threading.Event()

    def commit() -> None:
        number = 1 << 40
        while not ended.wait(COMMIT_SECONDS):
            start = datetime.now(UTC) - timedelta(seconds=COMMIT_SECONDS)
            rows = lakes.views(number, ADDED, start, timedelta(seconds=COMMIT_SECONDS))
            lake.iceberg(lakes.TABLE).append(rows)
            commits[str(lake.state(lakes.TABLE).head())] = rows
            number += ADDED

    def kill() -> None:
        while not ended.wait(KILL_SECONDS):
            children = psutil.Process(server.pid).children()
            nodes = [c for c in children if "thermocline.serve.node" in " ".join(c.cmdline())]
            if nodes:
                os.kill(nodes[int(time.time()) % len(nodes)].pid, signal.SIGKILL)

    threads = [threading.Thread(target=each, daemon=True) for each in (commit, kill)]
    for thread in threads:
        thread.start()
    try:
        yield commits
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def _row(name: str, heard: list[Heard], seconds: float) -> str:
    good = [each for each in heard if each.status == 200]
    times = sorted(each.seconds * 1000 for each in good)
    hot = sorted(each.seconds * 1000 for each in good if each.engine in ("hot", "cache"))
    engines = Counter(each.engine for each in good)
    told = ", ".join(f"{engine} {count:,}" for engine, count in engines.most_common())
    failed = len(heard) - len(good)
    quantiles = " | ".join(f"{_at(times, q):.1f}" for q in (0.5, 0.95, 0.99))
    return (
        f"| {name} | {len(good):,} | {len(good) / seconds:.0f} | {failed} | {quantiles} "
        f"| {_at(hot, 0.95):.1f} | {told} |"
    )


def _at(sorted_: list[float], share: float) -> float:
    return sorted_[min(len(sorted_) - 1, int(len(sorted_) * share))] if sorted_ else float("nan")


def _peers(lake: Lake, mix: Mix, alone: list[float], options: argparse.Namespace) -> None:
    """The hot questions one by one on the engines that read the files."""
    print("\n| the hot questions one by one | median ms | hot is faster |")
    print("|---|---:|---:|")
    hot = statistics.median(alone)
    print(f"| hot node, over HTTP | {hot:.1f} | |")
    engines = ["duckdb"] if options.no_spark else ["duckdb", "spark"]
    for engine in engines:
        times = []
        for sql in mix.hot[:18]:
            answer(lake, sql, engine=engine)
            began = time.perf_counter()
            answer(lake, sql, engine=engine)
            times.append((time.perf_counter() - began) * 1000)
        middle = statistics.median(times)
        print(f"| {engine}, reading the files | {middle:.1f} | {middle / hot:.0f}× |")


if __name__ == "__main__":
    main()
