"""Iceberg's own sink for Kafka Connect: the second peer of the ingest benchmark.

Only the benchmark fetches its jars; the product does not use them. The sink runs in its own worker
and JVM, as a user would run it, with two tasks and the same catalog as the others. It keeps a
message's fields and, through Kafka's own transform, its position and time, but not the payload, key
or headers.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.servers import connect
from tests.servers.connect import Connect
from tests.servers.kafka import Kafka

from thermocline.api import Lakehouse
from thermocline.engine import jars
from thermocline.engine.spark import build_catalog_conf

ICEBERG, PARQUET = jars.ICEBERG, "1.17.1"
PACKAGES = (
    *(f"org.apache.iceberg:iceberg-{name}:{ICEBERG}" for name in (
        "api", "bundled-guava", "common", "core", "data", "kafka-connect", "kafka-connect-events",
        "parquet",
    )),
    *(f"org.apache.parquet:parquet-{name}:{PARQUET}" for name in (
        "avro", "column", "common", "encoding", "format-structures", "hadoop", "jackson", "variant",
    )),
    "com.fasterxml.jackson.core:jackson-annotations:2.22",
    "com.fasterxml.jackson.core:jackson-core:2.22.2",
    "com.fasterxml.jackson.core:jackson-databind:2.22.2",
    "com.github.ben-manes.caffeine:caffeine:3.2.4",
    "com.github.luben:zstd-jni:1.5.7-3",
    "org.apache.avro:avro:1.12.2",
    "org.locationtech.jts:jts-core:1.20.0",
    "org.roaringbitmap:RoaringBitmap:1.6.23",
    "org.xerial:sqlite-jdbc:3.50.3.0",
)  # fmt: skip
# The sink writes with Hadoop's file system, which is in the PySpark wheel.
FROM_SPARK = ("hadoop-client-api-*.jar", "hadoop-client-runtime-*.jar", "jcl-over-slf4j-*.jar")

PROVENANCE = "_source_file string, _partition_number int, _position bigint, _event_time timestamp"
TRANSFORM = {
    "transforms": "where",
    "transforms.where.type": "org.apache.kafka.connect.transforms.InsertField$Value",
    "transforms.where.topic.field": "_source_file",
    "transforms.where.partition.field": "_partition_number",
    "transforms.where.offset.field": "_position",
    "transforms.where.timestamp.field": "_event_time",
}
COMMIT_SECONDS = 10
TIMEOUT_SECONDS = 1200
CONTROL = "control-iceberg"


@contextmanager
def serve(folder: Path, server: Kafka, memory: str) -> Iterator[Connect]:
    """Run a worker with the sink. Raise EngineUnavailable if its jars cannot be fetched."""
    plugin = [*jars.resolve(PACKAGES), *_find_hadoop_jars()]
    jars.resolve(connect.WORKER)
    folder.mkdir()
    server.create(CONTROL)
    with connect.serve(folder, server, plugin, [f"-Xmx{memory}"]) as worker:
        yield worker


def land(worker: Connect, server: Kafka, lakehouse: Lakehouse, topic: str, table: str) -> None:
    """Land a whole topic in an existing table with a connector; return when all is committed."""
    name = f"sink-{topic}-{time.monotonic_ns()}"  # also its consumer group
    worker.put(name, _settings(server, lakehouse, topic, table))
    try:
        _wait_for_records(worker, name, lakehouse, table, server.records(topic))
    finally:
        worker.delete(name)


def _settings(server: Kafka, lakehouse: Lakehouse, topic: str, table: str) -> Mapping[str, str]:
    catalog, _ = build_catalog_conf(lakehouse.lake.settings)
    catalog_settings = {
        key.partition("catalog.lake.")[2]: value
        for key, value in catalog.items()
        if "catalog.lake." in key
    }
    return {
        "connector.class": "org.apache.iceberg.connect.IcebergSinkConnector",
        "tasks.max": "2",
        "topics": topic,
        "key.converter": "org.apache.kafka.connect.converters.ByteArrayConverter",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
        **TRANSFORM,
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.max.poll.records": "10000",
        "iceberg.kafka.bootstrap.servers": server.servers,
        "iceberg.tables": table,
        "iceberg.catalog": "lake",
        **{f"iceberg.catalog.{key}": value for key, value in catalog_settings.items()},
        "iceberg.control.topic": CONTROL,
        "iceberg.control.commit.interval-ms": str(COMMIT_SECONDS * 1000),
    }


def _wait_for_records(
    worker: Connect, name: str, lakehouse: Lakehouse, table: str, records: int
) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (landed := _count_landed(lakehouse, table)) < records:
        time.sleep(0.25)
        failures = worker.failures(name)
        assert not failures, failures[0]
        assert time.monotonic() < deadline, f"{landed:,} of {records:,} in {TIMEOUT_SECONDS} s"
    assert landed == records


def _count_landed(lakehouse: Lakehouse, table: str) -> int:
    state = lakehouse.lake.state(table)
    head = state.head()
    return int(state.snapshot(head).summary["total-records"]) if head else 0


def _find_hadoop_jars() -> list[Path]:
    spark = importlib.util.find_spec("pyspark")
    assert spark and spark.submodule_search_locations
    bundled = Path(spark.submodule_search_locations[0]) / "jars"
    return [path for pattern in FROM_SPARK for path in bundled.glob(pattern)]
