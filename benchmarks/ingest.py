"""Ingest JSON events from a real broker into bronze: Thermocline and two peers in the same run.

Structured Streaming with `toTable` uses the same JVM, columns and batch limit as Thermocline, so it
makes the same number of commits. Iceberg's sink for Kafka Connect runs in its own worker, whose CPU
and memory are measured. It commits every 10 s, so its wall time may include a wait of up to 10 s at
the end, and it keeps no payload, key or headers. The broker's cost is not counted. All contestants
take turns, after a warm-up on a small topic that also verifies that they land the same rows. Run it
with `make bench-ingest`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from tests.servers import kafka
from tests.servers.connect import Connect

import thermocline as tc
from benchmarks import connect_sink
from benchmarks.measure import Cost, machine, measured
from thermocline.api import Lakehouse
from thermocline.engine import jars
from thermocline.errors import EngineUnavailable

TARGET = "bronze.raw_events"
COLUMNS = {
    "event_id": "string, required: true", "user_id": "long, required: true",
    "event_type": "string, required: true", "event_ts": "timestamptz, required: true",
    "product_id": "string", "page": "string", "referrer": "string", "device": "string",
    "amount": '"decimal(10,2)"', "quantity": "int",
}  # fmt: skip
SCHEMA = (
    "event_id string, user_id bigint, event_type string, event_ts timestamp, product_id string, "
    "page string, referrer string, device string, amount decimal(10,2), quantity int"
)
PROVENANCE = (
    "_source_file string, _position bigint, _ingested_at timestamp, _key binary, "
    "_headers array<struct<key:string,value:binary>>, _event_time timestamp, _raw binary"
)
PEER = "peer.events"
SETTINGS = """
[lake]
name = "bench"
[engine.spark]
master = "local[2]"
memory = "{memory}"
shuffle_partitions = 2
"""
CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: bench.raw_events
version: 1.0.0
status: active
schema:
  - name: raw_events
    properties:
{columns}
customProperties:
  - {{property: write, value: append}}
  - {{property: drift, value: rescue}}
"""


def main() -> None:
    """Send, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=5_000_000)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--batch", type=int, default=500_000)
    parser.add_argument("--memory", default="3g")
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-ingest-"))
    try:
        (folder / "kafka").mkdir()
        with kafka.serve(folder / "kafka") as server:
            _bench(folder, server, options)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class Contestant:
    """A contestant that lands a topic, and its costs: of the process tree, or of one process."""

    name: str
    table: str
    land: Callable[[str], int]
    process: int | None = None
    costs: list[tuple[Cost, int]] = field(default_factory=list)

    @property
    def best(self) -> tuple[Cost, int]:
        return min(self.costs, key=lambda each: each[0].cpu)


def _bench(folder: Path, server: kafka.Kafka, options: argparse.Namespace) -> None:
    small, large = (
        _send_events(server, count, options.partitions) for count in (100_000, options.events)
    )
    project = project_in(folder / "project", options)
    with ExitStack() as stack:
        worker = _worker(stack, folder / "sink", server, options)
        contestants = _contestants(project, server, worker, options)
        digests = set()
        for each in contestants:
            each.land(small)
            digests.add(_digest(project, each.table))
        assert len(digests) == 1, f"they landed different rows: {digests}"
        other_processes = {server.pid, *(each.process for each in contestants if each.process)}
        for each in contestants * options.rounds:
            with measured(each.process, other_processes - {each.process}) as cost:
                commits = each.land(large)
            rate = f"{options.events / cost.wall:,.0f} records/s, {commits} commits"
            print(f"{each.name:<22}{cost}  {rate}", file=sys.stderr)
            each.costs.append((cost, commits))
    _report(options, contestants)


def _worker(
    stack: ExitStack, folder: Path, server: kafka.Kafka, options: argparse.Namespace
) -> Connect | None:
    """Start the worker of the second peer; return None and print a line if its jars are missing."""
    try:
        return stack.enter_context(connect_sink.serve(folder, server, options.memory))
    except EngineUnavailable as error:
        print(f"Without Iceberg's sink for Kafka Connect: {error.cause}", file=sys.stderr)
        return None


def _contestants(
    project: Path, server: kafka.Kafka, worker: Connect | None, options: argparse.Namespace
) -> list[Contestant]:
    """Return the peers and, last, Thermocline."""
    streaming = Contestant(
        "Structured Streaming", PEER, partial(_run_structured_streaming, project, server, options)
    )
    thermocline = Contestant(
        "Thermocline", TARGET, partial(_run_thermocline, project, server, options)
    )
    if worker is None:
        return [streaming, thermocline]
    sink = partial(_run_connect_sink, project, server, worker)
    return [streaming, Contestant("Kafka Connect sink", PEER, sink, worker.pid), thermocline]


def _digest(project: Path, table: str) -> tuple[int, int]:
    """Return a table's row count, and a checksum that does not depend on the order of events."""
    columns = ", ".join(COLUMNS)
    found = tc.open(project).lake.spark.session.sql(
        f"select count(*), sum(cast(xxhash64({columns}) as decimal(20,0))) from lake.{table}"
    )
    rows, total = found.collect()[0]
    return int(rows), int(total)


def _send_events(server: kafka.Kafka, count: int, partitions: int) -> str:
    topic = server.create(partitions=partitions)
    server.send(topic, events(count, partitions))
    return topic


def events(count: int, partitions: int) -> Iterator[kafka.Message]:
    draw = random.Random(7)
    # Fields are reused for many events, so that the generator is not the bottleneck.
    drawn = [_fields(draw) for _ in range(10_000)]
    for number in range(count):
        value = b'{"event_id": "EVT-%012d", %s' % (number, drawn[number % len(drawn)])
        yield kafka.Message(value, b"%d" % (number % 1000), partition=number % partitions)


def _fields(draw: random.Random) -> bytes:
    second = f"{draw.randrange(24):02}:{draw.randrange(60):02}:{draw.randrange(60):02}"
    fields = {
        "user_id": draw.randrange(100_000),
        "event_type": draw.choice(("page_view", "product_view", "add_to_cart", "purchase")),
        "event_ts": f"2026-03-0{draw.randrange(1, 9)}T{second}.{draw.randrange(1000):03}Z",
        "product_id": f"PROD-{draw.randrange(500):05}",
        "page": f"/products/{draw.randrange(500)}",
        "referrer": "https://search.example/?q=shoes",
        "device": draw.choice(("mobile", "desktop")),
        "amount": round(draw.random() * 100, 2),
        "quantity": draw.randrange(9),
    }
    return json.dumps(fields).encode()[1:]


def project_in(folder: Path, options: argparse.Namespace) -> Path:
    contract = folder / "contracts" / "bronze" / "raw_events.odcs.yaml"
    contract.parent.mkdir(parents=True)
    columns = (f"      - {{name: {name}, physicalType: {kind}}}" for name, kind in COLUMNS.items())
    contract.write_text(CONTRACT.format(columns="\n".join(columns)))
    (folder / "sources").mkdir()
    (folder / "thermocline.toml").write_text(SETTINGS.format(memory=options.memory))
    return folder


def _open_project(project: Path, server: kafka.Kafka, topic: str, batch: int) -> Lakehouse:
    """Open the project with its source on a topic, before anything has landed."""
    shutil.rmtree(project / "lake", ignore_errors=True)
    (project / "sources" / "events.yaml").write_text(
        f"name: events\nkind: kafka\nservers: {server.servers}\ntopic: {topic}\n"
        f"target: {TARGET}\nbatch: {{rows: {batch}, bytes: {1 << 40}}}\n"
    )
    return tc.open(project)


def _run_thermocline(
    project: Path, server: kafka.Kafka, options: argparse.Namespace, topic: str
) -> int:
    lakehouse = _open_project(project, server, topic, options.batch)
    [target] = lakehouse.ingest().targets
    assert target.quarantined == 0
    return _count_commits(lakehouse, TARGET, target.rows)


def _run_structured_streaming(
    project: Path, server: kafka.Kafka, options: argparse.Namespace, topic: str
) -> int:
    """Run the query of Spark's guide: from_json, select, toTable, with a checkpoint."""
    lakehouse = _open_project(project, server, topic, options.batch)
    lakehouse.lake.spark.add_jars(jars.KAFKA)
    spark = lakehouse.lake.spark.session
    _create_table(lakehouse, f"{SCHEMA}, {PROVENANCE}")
    checkpoint = project / "checkpoint"
    shutil.rmtree(checkpoint, ignore_errors=True)
    read = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", server.servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .option("includeHeaders", "true")
        .option("maxOffsetsPerTrigger", options.batch)
        .load()
    )
    rows = read.selectExpr(
        f"from_json(cast(value as string), '{SCHEMA}') as event", "*"
    ).selectExpr(
        "event.*", "concat(topic, '/', partition) as _source_file", "offset as _position",
        "current_timestamp() as _ingested_at", "key as _key", "headers as _headers",
        "timestamp as _event_time", "value as _raw",
    )  # fmt: skip
    query = (
        rows.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(checkpoint))
        .toTable(f"lake.{PEER}")
    )
    query.awaitTermination()
    return _count_commits(lakehouse, PEER, server.records(topic))


def _run_connect_sink(project: Path, server: kafka.Kafka, worker: Connect, topic: str) -> int:
    """Run Iceberg's sink as in its guide, into an existing table."""
    lakehouse = _open_project(project, server, topic, 1)
    _create_table(lakehouse, f"{SCHEMA}, {connect_sink.PROVENANCE}")
    connect_sink.land(worker, server, lakehouse, topic, PEER)
    return _count_commits(lakehouse, PEER, server.records(topic))


def _create_table(lakehouse: Lakehouse, columns: str) -> None:
    """Create an empty table for a peer."""
    assert lakehouse.lake.catalog  # creates the catalog's database
    spark = lakehouse.lake.spark.session
    spark.sql("create namespace if not exists lake.peer")
    spark.sql(
        f"create or replace table lake.{PEER} ({columns}) "
        "using iceberg tblproperties ('write.parquet.compression-codec'='zstd')"
    )


def _count_commits(lakehouse: Lakehouse, table: str, rows: int) -> int:
    """Count the commits that hold the rows; assert that all rows are there."""
    state = lakehouse.lake.state(table)
    head = state.snapshot(state.head() or 0)
    assert int(head.summary["total-records"]) == rows
    return sum(1 for each in state.ancestry(head.id) if each.summary.get("added-records"))


def _report(options: argparse.Namespace, contestants: list[Contestant]) -> None:
    print(f"\n{options.events:,} JSON events, batches of {options.batch:,}, "
          f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")  # fmt: skip
    print("| | wall s | CPU s | records/s | records/CPU s | commits | peak GB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for each in contestants:
        cost, commits = each.best
        print(
            f"| {each.name} | {cost.wall:.1f} | {cost.cpu:.1f} | {options.events / cost.wall:,.0f} "
            f"| {options.events / cost.cpu:,.0f} | {commits} | {cost.peak / 1e9:.2f} |"
        )
    *peers, (thermocline, _) = (each.best for each in contestants)
    for each, (peer, _) in zip(contestants, peers, strict=False):
        wall, cpu = peer.wall / thermocline.wall, peer.cpu / thermocline.cpu
        print(f"| ours ÷ {each.name}, in records | | | {wall:.2f} | {cpu:.2f} | | |")


if __name__ == "__main__":
    main()
