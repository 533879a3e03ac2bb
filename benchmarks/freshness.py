"""Measure the time until an event is queryable in bronze: Kafka and Postgres at a steady rate.

`thermo stream` runs as a user would run it. An event's age is the time from its own timestamp (the
producer's, or the database's commit) until the commit that holds it becomes main. Run it with
`make bench-freshness`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
from tests.integration import postgres_project
from tests.servers import kafka, postgres

import thermocline as tc
from benchmarks import ingest
from benchmarks.measure import machine

if TYPE_CHECKING:
    from thermocline.api import Lakehouse

TIMEOUT_SECONDS = 120
STEP_SECONDS = 0.1
POLL_SECONDS = 10.0
"""Less than the retention: snapshots of the last two minutes are kept."""


@dataclass
class Stream:
    """A measured stream: the age of every event, and samples of its process."""

    name: str
    target: str
    lakehouse: Lakehouse
    started: float = 0.0
    published: dict[int, float] = field(default_factory=dict)
    """When each snapshot that added rows became main."""
    samples: list[Sample] = field(default_factory=list)

    def watch(self, process: int, done: threading.Event) -> None:
        """Poll for commits before retention removes their snapshots."""
        while not done.wait(POLL_SECONDS):
            self.poll()
            self.samples.append(Sample.of(self.lakehouse.lake.state(self.target).location, process))

    def poll(self) -> None:
        """Record the snapshots that were published since the last poll."""
        state = self.lakehouse.lake.state(self.target)
        for each in state.ancestry(state.head()):
            if each.id in self.published:
                break
            if each.count("added-records"):
                self.published[each.id] = state.published_at(each.id).timestamp()

    def ages(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the times of all events since the start, and the age of each when published.

        The rows of a batch share the time it was read, and batches are committed in order.
        """
        table = self.lakehouse.lake.iceberg(self.target)
        rows = table.scan(selected_fields=("_event_time", "_ingested_at")).to_arrow()
        events, batches = (rows[c].to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
                           for c in ("_event_time", "_ingested_at"))  # fmt: skip
        moments, which = np.unique(batches, return_inverse=True)
        published = np.array(sorted(self.published.values()))
        assert len(moments) == len(published), (len(moments), len(published))
        counted = events >= self.started
        return events[counted], (published[which] - events)[counted]


@dataclass(frozen=True)
class Sample:
    """The resource usage of the stream's process, and the size of the table's metadata."""

    at: float
    cpu: float
    memory: int
    metadata_files: int
    metadata_bytes: int

    @classmethod
    def of(cls, location: str, process: int) -> Sample:
        """Sample a process and the metadata of a table."""
        root = psutil.Process(process)
        times, memory = root.cpu_times(), root.memory_info().rss
        sizes = []
        for path in Path(location.removeprefix("file://")).glob("metadata/*"):
            with suppress(FileNotFoundError):  # commits remove files
                sizes.append(path.stat().st_size)
        return cls(time.time(), times.user + times.system, memory, len(sizes), sum(sizes))


def main() -> None:
    """Send, wait, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--rate", type=int, default=1_000)
    parser.add_argument("--every", default="1s")
    parser.add_argument("--memory", default="2g")
    options = parser.parse_args()
    print("| from | events | p50 s | p95 s | p99 s | commits | files | mean file KB |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for measure in (from_kafka, _from_postgres):
        with tempfile.TemporaryDirectory(prefix="bench-freshness-") as folder:
            print(_line(measure(Path(folder), options)), flush=True)
    print(f"\n{options.rate:,} events/s for {options.minutes:g} minutes, polling every "
          f"{options.every}, {datetime.now(UTC):%Y-%m-%d}, {machine()}")  # fmt: skip


def from_kafka(folder: Path, options: argparse.Namespace) -> Stream:
    """Stream JSON events from a local broker at the rate in the options."""
    (folder / "kafka").mkdir()
    with kafka.serve(folder / "kafka") as server:
        topic = server.create()
        project = ingest.project_in(folder / "project", options)
        (project / "sources" / "events.yaml").write_text(
            f"name: events\nkind: kafka\nservers: {server.servers}\ntopic: {topic}\n"
            f"target: {ingest.TARGET}\n"
        )
        events = ingest.events(10**9, 1)

        def send(count: int) -> None:
            server.send(topic, [next(events) for _ in range(count)])

        return _measured("Kafka", project, "events", ingest.TARGET, send, options)


def _from_postgres(folder: Path, options: argparse.Namespace) -> Stream:
    with postgres.serve() as server:
        os.environ[postgres_project.SECRET] = server.password
        project = folder / "project"
        project.mkdir()
        (project / "thermocline.toml").write_text(ingest.SETTINGS.format(memory=options.memory))
        postgres_project.Project(project, server, "shop")
        with closing(server.connect("shop")) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            number = iter(range(10**9))

            def send(count: int) -> None:
                rows = ", ".join(f"({next(number)}, 'c', 1.50)" for _ in range(count))
                cursor.execute(f"insert into orders (id, customer, amount) values {rows}")

            target = postgres_project.RAW
            return _measured("Postgres", project, "orders", target, send, options)


def _measured(
    name: str,
    project: Path,
    source: str,
    target: str,
    send: Callable[[int], None],
    options: argparse.Namespace,
) -> Stream:
    """Warm up until a batch landed, then send at the rate and wait for the last event."""
    stream, done = Stream(name, target, tc.open(project)), threading.Event()
    with _stream(project, source, options.every) as process:
        send(options.rate)
        _wait(stream.lakehouse, target, options.rate)
        watcher = threading.Thread(target=stream.watch, args=(process, done), daemon=True)
        watcher.start()
        stream.started, sent = time.time(), 0
        while time.time() - stream.started < options.minutes * 60:
            due = int((time.time() - stream.started + STEP_SECONDS) * options.rate) - sent
            send(due)
            sent += due
            time.sleep(STEP_SECONDS)
        _wait(stream.lakehouse, target, options.rate + sent)
        done.set()
        watcher.join()
    stream.poll()
    return stream


@contextmanager
def _stream(project: Path, source: str, every: str) -> Iterator[int]:
    command = [sys.executable, "-m", "thermocline.cli.main", "--project", str(project), "--json",
               "stream", source, "--every", every]  # fmt: skip
    with (project / "stream.jsonl").open("w") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield child.pid
            child.send_signal(signal.SIGINT)
            child.wait(60)
        finally:
            if child.poll() is None:
                child.kill()


def _wait(lakehouse: Lakehouse, target: str, rows: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if lakehouse.lake.exists(target):
            state = lakehouse.lake.state(target)
            head = state.head()
            if head is not None and state.snapshot(head).count("total-records") >= rows:
                return
        time.sleep(0.2)
    log = (lakehouse.settings.project / "stream.jsonl").read_text().splitlines()[-3:]
    sys.exit(f"{target} never had {rows:,} rows. The stream said last: {json.dumps(log)}")


def _line(stream: Stream) -> str:
    events, age = stream.ages()
    state = stream.lakehouse.lake.state(stream.target)
    head = state.snapshot(state.head() or 0)
    p50, p95, p99 = np.percentile(age, (50, 95, 99))
    files, size = head.count("total-data-files"), head.count("total-files-size")
    return (
        f"| {stream.name} | {len(events):,} | {p50:.2f} | {p95:.2f} | {p99:.2f} "
        f"| {len(stream.published):,} | {files:,} | {size / max(files, 1) / 1000:,.0f} |"
    )


if __name__ == "__main__":
    main()
