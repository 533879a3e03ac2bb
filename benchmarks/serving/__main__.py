"""Dashboards on ten million rows: `python -m benchmarks.serving` (`make bench-serve`).

One run: a server with two hot nodes; a commit every five seconds; a node killed every minute; first
a closed loop with a few clients, then an open loop with a fixed rate; every answer is compared with
the rows of its snapshot. Then 500 concurrent readers, the same without the result cache, and the
hot queries one by one on engines that read the files. At the end, the goals and the results.
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
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.measure import machine, measured
from benchmarks.serving import lake as lakes
from benchmarks.serving import peers
from benchmarks.serving.bare import bare_loop, bare_server
from benchmarks.serving.course import course
from benchmarks.serving.disturb import disturbed, processes
from benchmarks.serving.load import Client, Heard, Mix, ask, closed_loop, open_loop
from benchmarks.serving.report import HEADINGS, Goal, Loop, at_least, at_most, printed, quantile
from benchmarks.serving.truth import wrong

PEOPLE = 8
MANY_SECONDS = 10.0


def main() -> None:
    """Build the lake, serve it, run the load, compare, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=10.0, help="of the open loop")
    parser.add_argument("--closed", type=float, default=1.0, help="minutes of the closed loops")
    parser.add_argument("--rate", type=float, default=250.0, help="queries per second")
    parser.add_argument("--kill", type=float, default=60.0, help="seconds between killed nodes")
    parser.add_argument("--readers", type=int, default=500, help="concurrent readers at the end")
    parser.add_argument(
        "--without", nargs="*", default=[], help="peers to leave out: datafusion, spark, trino"
    )
    parser.add_argument("--course", type=Path, help="a file for a per-second log of the open loop")
    parser.add_argument("--lake", type=Path, help="a folder for the lake, reused by later runs")
    options = parser.parse_args()
    if options.lake:
        _bench(options.lake, options)
        return
    folder = Path(tempfile.mkdtemp(prefix="bench-serve-"))
    try:
        _bench(folder / "p", options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Own:
    """Milliseconds of a cached result, and of a handler that does nothing."""

    kept: list[float]
    trivial: list[float]

    @property
    def ratio(self) -> float:
        """How much longer a cached result takes."""
        return statistics.median(self.kept) / statistics.median(self.trivial)


def _bench(project: Path, options: argparse.Namespace) -> None:
    lake = lakes.build(project, options.rows) if not project.exists() else lakes.opened(project)
    first = (str(lake.state(lakes.TABLE).head()), lake.iceberg(lakes.TABLE).scan().to_arrow())
    mix = Mix(lakes.hot_questions(), lakes.cold_questions())
    hot = Mix(lakes.hot_questions(), [])
    seconds, brief = options.minutes * 60, options.closed * 60
    print(f"{options.rows:,} rows, {len(mix.questions)} questions, {machine()}", file=sys.stderr)
    with _served(project) as (url, server):
        _until_hot(url, mix)
        own = asyncio.run(_own_time(url, mix))
        alone = asyncio.run(_one_by_one(url, mix))
        kept = _loop("kept, 8 people", brief, closed_loop(url, hot, brief, PEOPLE))
        with disturbed(project, server, options.kill) as happened, measured(server) as cost:
            closed = _loop("closed loop, 8 people", brief, closed_loop(url, mix, brief, PEOPLE))
            with course(server, happened) as went:
                heard, bare = asyncio.run(_with_bare(url, mix, seconds, options.rate))
            opened = Loop(f"open loop, {options.rate:g}/s", heard, seconds)
        asking = closed_loop(url, mix, MANY_SECONDS, options.readers)
        many = _loop(f"{options.readers} concurrent readers", MANY_SECONDS, asking)
        memory = _memory(server)
    with _served(project, THERMOCLINE_SERVE__CACHE_MEMORY="0") as (url, _):
        _until_hot(url, mix)
        executed = _loop("executed, 8 people", brief, closed_loop(url, hot, brief, PEOPLE))
    if options.course:
        went.write(options.course, heard, len(mix.hot))
    loops = [closed, opened, many, kept, executed]
    everything = [each for loop in loops for each in loop.heard]
    mistakes, compared = wrong(everything, mix.questions, first, happened.commits)
    times = peers.medians(lake, mix.hot[:18], options.without)
    print(HEADINGS, *(loop.row() for loop in loops), sep="\n")
    print(*(line for loop in loops for line in loop.complaints()), sep="\n")
    print(f"\n{len(happened.commits)} commits, {happened.kills} nodes killed; server: {cost}")
    quantiles = ", ".join(f"{share:.0%} {quantile(bare, share):.1f}" for share in (0.5, 0.95, 0.99))
    print(f"an idle server beside the open loop, ms: {quantiles}")
    print("memory:", ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in memory.items()))
    print(f"\n| the hot queries one by one | median ms | hot is faster |\n|---|---:|---:|\n"
          f"| hot node, over HTTP | {alone:.1f} | |")  # fmt: skip
    for name, each in times.items():
        print(f"| {name}, reading the files | {each:.1f} | {each / alone:.1f}× |")
    goals = [
        at_least("answers a second in the open loop", opened.rate, options.rate * 0.995, ""),
        at_least("answered in the open loop", opened.success * 100, 99.9, "%"),
        Goal("wrong answers: 0", f"{mistakes} of {compared:,}", mistakes == 0),
        at_most("hot p95 in the open loop", opened.hot_p95, 12, "ms"),
        at_most("a kept answer beside a handler that does nothing", own.ratio, 2, "×"),
        at_most("p95 of a kept answer", quantile(own.kept, 0.95), 5, "ms"),
        at_least("kept answers beside executing each time", kept.rate / executed.rate, 10, "×"),
        Goal(f"{options.readers} concurrent readers are answered", f"{many.success:.2%}",
             many.success == 1),
        *(
            at_least(f"hot beside {name}", times[name] / alone, 20, "×")
            for name in ("spark", "trino")
            if name in times
        ),
    ]  # fmt: skip
    print(f"\n{printed(goals)}")


def _loop(name: str, seconds: float, asking: Coroutine[Any, Any, list[Heard]]) -> Loop:
    return Loop(name, asyncio.run(asking), seconds)


async def _with_bare(
    url: str, mix: Mix, seconds: float, rate: float
) -> tuple[list[Heard], list[float]]:
    """Run the open loop, and measure an idle server beside it."""
    with bare_server() as bare:
        return await asyncio.gather(open_loop(url, mix, seconds, rate), bare_loop(bare, seconds))


@contextmanager
def _served(project: Path, **environment: str) -> Iterator[tuple[str, int]]:
    """Serve the project; yield its URL and process."""
    command = [sys.executable, "-m", "thermocline.cli.main", "--project", str(project), "serve"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ, **environment})
    try:
        note = project / ".thermocline" / "serve.json"
        while not note.exists():
            assert server.poll() is None, "the server ended"
            time.sleep(0.1)
        yield json.loads(note.read_text())["url"], server.pid
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


def _until_hot(url: str, mix: Mix) -> None:
    """Wait until all nodes hold the table."""

    async def hot() -> bool:
        client = Client(url)
        _, body = await client.get("/nodes")
        heard = await ask(client, 0, f"{mix.hot[0]} and {time.time()} > 0")
        client.close()
        return heard.engine == "hot" and all(each["tables"] for each in json.loads(body)["nodes"])

    ends = time.monotonic() + 120
    while not asyncio.run(hot()):
        assert time.monotonic() < ends, "the nodes do not hold the table"
        time.sleep(0.5)


async def _own_time(url: str, mix: Mix) -> Own:
    """Measure a cached result and a handler that does nothing, alternating."""
    client = Client(url)
    own = Own([], [])
    body = json.dumps({"sql": mix.hot[0]}).encode()
    for _ in range(1000):
        began = time.perf_counter()
        await client.post("/query", body)
        between = time.perf_counter()
        await client.get("/health")
        own.kept.append((between - began) * 1000)
        own.trivial.append((time.perf_counter() - between) * 1000)
    client.close()
    return Own(own.kept[100:], own.trivial[100:])


async def _one_by_one(url: str, mix: Mix) -> float:
    """Return the median milliseconds of an uncached hot query on an idle server."""
    client = Client(url)
    found = []
    for number, sql in enumerate(mix.hot[:18]):
        tries = []
        for attempt in range(3):
            changed = sql.replace("where", f"where {attempt + 1} = {attempt + 1} and", 1)
            tries.append((await ask(client, number, changed)).seconds * 1000)
        found.append(min(tries))
    client.close()
    return statistics.median(found)


def _memory(server: int) -> dict[str, int]:
    """Return the proportional memory of the router and of each worker process."""
    everybody = {"router": psutil.Process(server), **processes(server)}
    return {name: each.memory_full_info().pss for name, each in everybody.items()}


if __name__ == "__main__":
    main()
