"""Three callers send the most expensive queries while two use dashboards, which must stay fast.

Reports the dashboards' p50 and p95 before and during the attack, how many of their queries failed,
the outcomes of the attackers' queries, and the router's peak memory. Fails when the p95 more than
triples or any query of the dashboards fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import numpy as np
import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import DecimalType, LongType, NestedField, StringType, TimestamptzType

from benchmarks.attack.queries import HOT, LARGE, WORST
from thermocline.config import load_settings
from thermocline.lake import Lake

SETTINGS = """[lake]
name = "attacked"
[engine.duckdb]
memory_limit = "512MB"
[engine.spark]
master = "local[1]"
memory = "1g"
[serve]
tokens_required = true
verify_share = 0.0
max_seconds = 30
"""
ORDERS = Schema(
    NestedField(1, "order_id", LongType()), NestedField(2, "ordered_at", TimestamptzType()),
    NestedField(3, "customer_id", LongType()), NestedField(4, "amount", DecimalType(12, 2)),
    NestedField(5, "note", StringType()),
)  # fmt: skip
CUSTOMERS = Schema(NestedField(1, "customer_id", LongType()), NestedField(2, "city", StringType()))
ROWS, CUSTOMER_COUNT = 200_000, 1_000
ATTACKERS, OTHERS, CONNECTIONS, SLOW_READERS = 3, 2, 4, 4
MAX_SLOWDOWN = 3.0


@dataclass
class CallerStats:
    """Latencies and outcomes of some callers' queries."""

    seconds: list[float] = field(default_factory=list)
    ends: Counter[str] = field(default_factory=Counter)

    def percentile(self, share: float) -> float:
        """Return the percentile in milliseconds."""
        return float(np.percentile(self.seconds, share) * 1000) if self.seconds else 0.0

    @property
    def failed(self) -> int:
        """How many queries were not answered."""
        return sum(number for end, number in self.ends.items() if end != "200")


def build(project: Path) -> None:
    """Build a lake with ten days of orders."""
    project.mkdir(parents=True)
    (project / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(load_settings(project, environ={}))
    lake.catalog.create_namespace("silver")
    by_day = PartitionSpec(PartitionField(2, 1000, DayTransform(), "ordered_at_day"))
    lake.catalog.create_table("silver.orders", ORDERS, partition_spec=by_day)
    lake.catalog.create_table("silver.customers", CUSTOMERS)
    numbers = np.arange(ROWS)
    start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = int((start - timedelta(days=9)).timestamp() * 1_000_000)
    lake.iceberg("silver.orders").append(pa.table({
        "order_id": numbers,
        "ordered_at": pa.array(first + numbers * (10 * 86_400_000_000 // ROWS),
                               pa.timestamp("us", "UTC")),
        "customer_id": numbers % CUSTOMER_COUNT,
        "amount": pa.array(numbers % 5000, pa.int32()).cast(pa.decimal128(12, 2)),
        "note": pa.array([f"note {number * 7919 % ROWS}" for number in range(ROWS)]),
    }))  # fmt: skip
    lake.iceberg("silver.customers").append(pa.table({
        "customer_id": np.arange(CUSTOMER_COUNT),
        "city": [f"city {number % 40}" for number in range(CUSTOMER_COUNT)],
    }))  # fmt: skip
    lake.close()


def thermo(project: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a `thermo` command."""
    command = [sys.executable, "-m", "thermocline.cli.main", *arguments]
    return subprocess.run(command, cwd=project, capture_output=True, text=True, check=True)


@contextlib.contextmanager
def served(project: Path) -> Iterator[tuple[str, int]]:
    """Serve the lake; yield its URL and the router's process id."""
    command = [sys.executable, "-m", "thermocline.cli.main", "serve", "--port", "0", "--json"]
    process = subprocess.Popen(
        command, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        text = ""
        while not text.startswith("{") or text.count("{") != text.count("}"):
            text += process.stdout.readline()
        yield str(json.loads(text)["url"]), process.pid
    finally:
        process.terminate()
        process.wait(30)


async def ask(url: str, token: str, sql: str, seen: CallerStats, seconds: float = 40) -> None:
    """Send one query and record its outcome."""
    began = time.perf_counter()
    try:
        async with httpx.AsyncClient(timeout=seconds) as client:
            reply = await client.post(
                f"{url}/query", json={"sql": sql}, headers={"Authorization": f"Bearer {token}"}
            )
        end = str(reply.status_code)
        if end != "200":
            with contextlib.suppress(ValueError):
                end += f" {reply.json()['error']['code']}"
    except httpx.HTTPError as error:
        end = type(error).__name__
    seen.ends[end] += 1
    seen.seconds.append(time.perf_counter() - began)


async def use_dashboard(
    url: str, token: str, until: float, seen: CallerStats, numbers: Iterator[int]
) -> None:
    """Use a dashboard repeatedly, with a short pause between queries."""
    for sql in itertools.cycle(HOT):
        if time.perf_counter() > until:
            return
        await ask(url, token, sql.format(n=-next(numbers)), seen)
        await asyncio.sleep(0.02)


async def attack(
    url: str, token: str, until: float, seen: CallerStats, chance: random.Random
) -> None:
    """Send expensive queries back to back."""
    while time.perf_counter() < until:
        sql = chance.choice(WORST).replace("9000", str(chance.randrange(8000, 9000)))
        await ask(url, token, sql, seen)


async def read_slowly(
    url: str, token: str, until: float, seen: CallerStats, chance: random.Random
) -> None:
    """Request a large answer, and read a few kilobytes of it per second."""
    where = urlsplit(url)
    while time.perf_counter() < until:
        body = json.dumps({"sql": LARGE.replace("{n}", f"{chance.random():.9f}")}).encode()
        reader, writer = await asyncio.open_connection(where.hostname, where.port, limit=4096)
        writer.write(
            b"POST /query HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
            % (token.encode(), len(body), body)
        )
        with contextlib.suppress(OSError):
            first = await reader.read(15)
            seen.ends[first[9:12].decode()] += 1
            while time.perf_counter() < until and await reader.read(4096):
                await asyncio.sleep(0.3)
        writer.close()


async def watch(pid: int, until: float) -> int:
    """Return the peak resident memory of a process until then."""
    peak = 0
    while time.perf_counter() < until:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        peak = max(peak, pages * 4096)
        await asyncio.sleep(0.2)
    return peak


async def run_attack(
    url: str, pid: int, tokens: dict[str, str], seconds: float, seed: int
) -> tuple[CallerStats, CallerStats, CallerStats, CallerStats, int]:
    """Measure the dashboards without an attack, then under attack."""
    numbers, (before, during, worst, slow) = itertools.count(1), (CallerStats() for _ in range(4))

    def others(until: float, seen: CallerStats) -> list[asyncio.Task[None]]:
        return [
            asyncio.create_task(use_dashboard(url, tokens[f"other{n}"], until, seen, numbers))
            for n in range(OTHERS)
            for _ in range(CONNECTIONS)
        ]

    await asyncio.gather(*others(time.perf_counter() + 5, CallerStats()))
    await asyncio.gather(*others(time.perf_counter() + min(seconds, 20), before))
    until = time.perf_counter() + seconds
    memory = asyncio.create_task(watch(pid, until))
    attackers = []
    for n in range(ATTACKERS):
        token = tokens[f"attacker{n}"]
        for each in range(CONNECTIONS):
            chance = random.Random(seed * 1000 + n * 100 + each)
            attackers.append(asyncio.create_task(attack(url, token, until, worst, chance)))
        for each in range(SLOW_READERS):
            chance = random.Random(seed * 1000 + n * 100 + 50 + each)
            attackers.append(asyncio.create_task(read_slowly(url, token, until, slow, chance)))
    await asyncio.sleep(1)
    await asyncio.gather(*others(until, during))
    await asyncio.wait(attackers, timeout=45)
    return before, during, worst, slow, await memory


def main() -> int:
    """Run the attack and report; return 1 when the dashboards suffered."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attack", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="how long the attack lasts")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="attack-") as folder:
        project = Path(folder) / "p"
        build(project)
        names = [*(f"attacker{n}" for n in range(ATTACKERS)), *(f"other{n}" for n in range(OTHERS))]
        tokens = {
            name: str(
                json.loads(thermo(project, "token", "create", name, "--json").stdout)["token"]
            )
            for name in names
        }
        with served(project) as (url, pid):
            time.sleep(8)  # until the nodes hold the tables
            found = asyncio.run(run_attack(url, pid, tokens, options.seconds, options.seed))
        log = (project / ".thermocline" / "serve.log").read_text().splitlines()
    events = Counter(f"{json.loads(line)['event']}" for line in log)
    before, during, worst, slow, memory = found
    slower = during.percentile(95) / max(before.percentile(95), 0.001)
    for name, seen in (("before", before), ("under attack", during)):
        times = f"p50 {seen.percentile(50):7.1f} ms  p95 {seen.percentile(95):7.1f} ms"
        ends = f"{seen.failed} failed {dict(seen.ends)}"
        print(f"{name:14}{len(seen.seconds):6} asked  {times}  {ends}")
    print(f"{'attackers':14}{len(worst.seconds):6} asked  {dict(worst.ends)}")
    print(f"{'slow readers':14}{dict(slow.ends)}")
    print(f"{'log':14}{dict(events)}")
    print(f"p95 {slower:.1f} times that before; the router's peak memory was {memory >> 20} MB")
    return int(slower > MAX_SLOWDOWN or during.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
