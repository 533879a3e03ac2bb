"""From an event to its being queryable: Kafka and Postgres, at a steady rate, into bronze.

`thermo stream` runs as a user would run it. An event's age counts from its own time, the producer's
or the database's commit, to when the commit that holds it becomes main. Run it with
`make bench-freshness`.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tests.integration import postgres_project
from tests.servers import kafka, postgres

import thermocline as tc
from benchmarks import ingest
from benchmarks.measure import machine

if TYPE_CHECKING:
    from thermocline.api import Lakehouse

PATIENCE = 120
STEP = 0.1


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
    for measure in (_from_kafka, _from_postgres):
        folder = Path(tempfile.mkdtemp(prefix="bench-freshness-"))
        try:
            print(measure(folder, options), flush=True)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    print(f"\n{options.rate:,} events/s for {options.minutes:g} minutes, looking every "
          f"{options.every}, {datetime.now(UTC):%Y-%m-%d}, {machine()}")  # fmt: skip


def _from_kafka(folder: Path, options: argparse.Namespace) -> str:
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


def _from_postgres(folder: Path, options: argparse.Namespace) -> str:
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
) -> str:
    """Warm up until something landed, then send at the rate and wait for the last of it."""
    with _stream(project, source, options.every):
        lakehouse = tc.open(project)
        send(options.rate)
        _wait(lakehouse, target, options.rate)
        began, sent = time.time(), 0
        while time.time() - began < options.minutes * 60:
            due = int((time.time() - began + STEP) * options.rate) - sent
            send(due)
            sent += due
            time.sleep(STEP)
        _wait(lakehouse, target, options.rate + sent)
    return _line(name, lakehouse, target, began)


@contextmanager
def _stream(project: Path, source: str, every: str) -> Iterator[None]:
    command = [sys.executable, "-m", "thermocline.cli.main", "--project", str(project), "--json",
               "stream", source, "--every", every]  # fmt: skip
    with (project / "stream.jsonl").open("w") as out:
        child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        try:
            yield
            child.send_signal(signal.SIGINT)
            child.wait(60)
        finally:
            if child.poll() is None:
                child.kill()


def _wait(lakehouse: Lakehouse, target: str, rows: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if lakehouse.lake.exists(target):
            state = lakehouse.lake.state(target)
            head = state.head()
            if head is not None and state.snapshot(head).count("total-records") >= rows:
                return
        time.sleep(0.2)
    log = (lakehouse.settings.project / "stream.jsonl").read_text().splitlines()[-3:]
    sys.exit(f"{target} never had {rows:,} rows. The stream said last: {json.dumps(log)}")


def _line(name: str, lakehouse: Lakehouse, target: str, began: float) -> str:
    """The rows of a batch share the moment it was read at, and batches are commits in order."""
    state = lakehouse.lake.state(target)
    head = state.snapshot(state.head() or 0)
    commits = [each for each in state.ancestry(head.id) if each.count("added-records")]
    published = sorted(state.published_at(each.id).timestamp() for each in commits)
    rows = lakehouse.table(target).to_arrow().select(["_event_time", "_ingested_at"])
    events, batches = (rows[c].to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
                       for c in ("_event_time", "_ingested_at"))  # fmt: skip
    moments, which = np.unique(batches, return_inverse=True)
    assert len(moments) == len(published), (len(moments), len(published))
    age = (np.array(published)[which] - events)[events >= began]
    p50, p95, p99 = np.percentile(age, (50, 95, 99))
    files, size = head.count("total-data-files"), head.count("total-files-size")
    return (
        f"| {name} | {len(age):,} | {p50:.2f} | {p95:.2f} | {p99:.2f} | {len(published):,} "
        f"| {files:,} | {size / max(files, 1) / 1000:,.0f} |"
    )


if __name__ == "__main__":
    main()
