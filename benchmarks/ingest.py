"""JSON events through a real broker into bronze: ours, and plain Structured Streaming `toTable`.

One process, one JVM, one topic, the same columns and the same bound on a batch, so the same number
of commits. The broker's CPU counts for nobody. The order is plain, ours, plain, ours, after a
warm-up of both. Run it with `make bench-ingest`.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
from tests.servers import kafka

import thermocline as tc
from benchmarks.measure import Cost, machine, measured
from thermocline.api import Lakehouse
from thermocline.engine import jars

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


def _bench(folder: Path, server: kafka.Kafka, options: argparse.Namespace) -> None:
    small, large = (_sent(server, count, options.partitions) for count in (100_000, options.events))
    project = project_in(folder / "project", options)
    _plain(project, server, small, options)
    _ours(project, server, small, options)
    plain, ours = [], []
    for _ in range(options.rounds):
        for name, costs, work in (("plain", plain, _plain), ("ours", ours, _ours)):
            cost, commits = _cost(server, lambda w=work: w(project, server, large, options))
            rate = f"{options.events / cost.wall:,.0f} records/s, {commits} commits"
            print(f"{name:<8}{cost}  {rate}", file=sys.stderr)
            costs.append((cost, commits))
    _report(options, min(plain, key=_cpu), min(ours, key=_cpu))


def _cpu(measure: tuple[Cost, int]) -> float:
    return measure[0].cpu


def _cost(server: kafka.Kafka, work: Callable[[], int]) -> tuple[Cost, int]:
    broker = psutil.Process(server.pid)
    before = sum(broker.cpu_times()[:2])
    with measured() as cost:
        commits = work()
    cost.cpu -= sum(broker.cpu_times()[:2]) - before
    return cost, commits


def _sent(server: kafka.Kafka, count: int, partitions: int) -> str:
    topic = server.create(partitions=partitions)
    server.send(topic, events(count, partitions))
    return topic


def events(count: int, partitions: int) -> Iterator[kafka.Message]:
    draw = random.Random(7)
    # Fields are drawn once for a while of events: the generator must not be what is measured.
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


def _opened(project: Path, server: kafka.Kafka, topic: str, batch: int) -> Lakehouse:
    """The project with its source on a topic, and nothing landed yet."""
    shutil.rmtree(project / "lake", ignore_errors=True)
    (project / "sources" / "events.yaml").write_text(
        f"name: events\nkind: kafka\nservers: {server.servers}\ntopic: {topic}\n"
        f"target: {TARGET}\nbatch: {{rows: {batch}, bytes: {1 << 40}}}\n"
    )
    return tc.open(project)


def _ours(project: Path, server: kafka.Kafka, topic: str, options: argparse.Namespace) -> int:
    lakehouse = _opened(project, server, topic, options.batch)
    [target] = lakehouse.ingest().targets
    assert target.quarantined == 0
    return _commits(lakehouse, TARGET, target.rows)


def _plain(project: Path, server: kafka.Kafka, topic: str, options: argparse.Namespace) -> int:
    """As Spark's guide has it: from_json, select, toTable, with a checkpoint."""
    lakehouse = _opened(project, server, topic, options.batch)
    assert lakehouse.lake.catalog  # makes the catalog's database
    lakehouse.lake.spark.add_jars(jars.KAFKA)
    spark = lakehouse.lake.spark.session
    spark.sql("create namespace if not exists lake.plain")
    spark.sql(
        f"create or replace table lake.plain.events ({SCHEMA}, _source_file string, "
        "_position bigint, _ingested_at timestamp, _key binary, "
        "_headers array<struct<key:string,value:binary>>, _event_time timestamp, _raw binary) "
        "using iceberg tblproperties ('write.parquet.compression-codec'='zstd')"
    )
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
        .toTable("lake.plain.events")
    )
    query.awaitTermination()
    state = lakehouse.lake.state("plain.events")
    landed = int(state.snapshot(state.head() or 0).summary["total-records"])
    return _commits(lakehouse, "plain.events", landed)


def _commits(lakehouse: Lakehouse, table: str, rows: int) -> int:
    """How many commits hold the rows; all of them must be there."""
    state = lakehouse.lake.state(table)
    head = state.snapshot(state.head() or 0)
    assert int(head.summary["total-records"]) == rows
    return sum(1 for each in state.ancestry(head.id) if each.summary.get("added-records"))


def _report(options: argparse.Namespace, plain: tuple[Cost, int], ours: tuple[Cost, int]) -> None:
    print(f"\n{options.events:,} JSON events, batches of {options.batch:,}, "
          f"{datetime.now(UTC):%Y-%m-%d}, {machine()}\n")  # fmt: skip
    print("| | wall s | CPU s | records/s | records/CPU s | commits | peak GB |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name, (cost, commits) in (("Structured Streaming", plain), ("Thermocline", ours)):
        print(
            f"| {name} | {cost.wall:.1f} | {cost.cpu:.1f} | {options.events / cost.wall:,.0f} "
            f"| {options.events / cost.cpu:,.0f} | {commits} | {cost.peak / 1e9:.2f} |"
        )
    wall, cpu = plain[0].wall / ours[0].wall, plain[0].cpu / ours[0].cpu
    print(f"| ours ÷ plain, in records | | | {wall:.2f} | {cpu:.2f} | | |")


if __name__ == "__main__":
    main()
