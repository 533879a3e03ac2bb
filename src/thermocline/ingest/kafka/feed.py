"""A feed of topics: bounded offset ranges, read by the Arrow lane or Spark's Kafka connector."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from thermocline.ingest.batch import OpenFastRead, Provenance
from thermocline.ingest.fast_path import SingleTableRead
from thermocline.ingest.feed import LINES_SCHEMA, LostData, Pull
from thermocline.ingest.kafka import offset_ranges
from thermocline.ingest.kafka.arrow_reader import KafkaArrowReader
from thermocline.ingest.kafka.broker import Broker, MissingTopic, explain_read_error
from thermocline.ingest.kafka.message_text import add_text
from thermocline.ingest.kafka.offset_ranges import OffsetRange, Topic
from thermocline.ingest.kafka.schema_registry import SchemaRegistry
from thermocline.ingest.kafka.source import KafkaSettings
from thermocline.ingest.layout import Layout
from thermocline.ingest.marks import Position
from thermocline.ingest.source import BatchLimits, Source
from thermocline.ingest.validation import EVENT_TIME, FILE, HEADERS, KEY, PAYLOAD, POSITION
from thermocline.ingest.value_expressions import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake import Lake

MIN_PARALLEL_ROWS = 50_000
"""From this many records on, a batch is written by several tasks, and so to several files."""
# Spark's reader waits for a request of the partition's bounds on every fetch: make fetches large.
_LARGE_FETCHES = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
POLL_TIMEOUT_MS = 60_000
"""How long a task waits for the broker's next record before the batch fails."""


class KafkaFeed:
    """The topics of one source."""

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._lake = lake
        self._source = source
        self._contract = contract
        self._settings: KafkaSettings = source.connection
        self._options: dict[str, str] = {}
        self._broker: Broker | None = None
        self._registry = SchemaRegistry(self._settings) if self._settings.registry else None
        self._must_land_start = False
        is_json = self._settings.format == "json" and self._settings.lane != "spark"
        self._arrow_reader = KafkaArrowReader(self._settings) if is_json else None

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """See Feed.begin: a position is the topics' ids and the next offset of each partition."""
        topics = self._describe_topics(position, accept_loss=accept_loss)
        if position is None:
            # A start at the end lands a mark at once. Otherwise a restart would skip records that
            # arrived before the first batch.
            self._must_land_start = self._settings.start == "latest"
            return offset_ranges.start_position(topics, at_end=self._must_land_start)
        losses = offset_ranges.find_losses(position, topics)
        if losses and not accept_loss:
            raise LostData(self._source.name, "; ".join(losses))
        return offset_ranges.reconcile_position(position, topics)

    def pull(self, position: Position | None, limits: BatchLimits) -> Pull | None:
        """See Feed.pull."""
        assert position is not None, "begin gives a position"
        topics = self._describe_topics(position)
        if losses := offset_ranges.find_losses(position, topics):
            raise LostData(self._source.name, "; ".join(losses))
        position = offset_ranges.reconcile_position(position, topics)  # includes added partitions
        parts = offset_ranges.plan_ranges(position, topics, limits.rows)
        if not parts and not self._must_land_start:
            return None
        self._must_land_start = False
        following = offset_ranges.advance_position(position, parts)
        return Pull(
            tuple(self._make_provenance(part, topics[part.topic]) for part in parts),
            lambda only: self._read_lines(parts, only),
            following,
            position_ranges=tuple((part.start, part.end) for part in parts),
            behind=offset_ranges.count_lag(following, topics),
            explain=lambda failure: explain_read_error(failure, self._settings.servers),
            fast_path=self._open_fast_read(parts, limits),
        )

    def _open_fast_read(
        self, parts: Sequence[OffsetRange], limits: BatchLimits
    ) -> OpenFastRead | None:
        reader = self._arrow_reader
        if reader is None or not parts or not reader.is_ready():
            return None

        def read(contract: Contract) -> SingleTableRead | None:
            records = reader.read(parts, contract, limits.bytes)
            return None if records is None else SingleTableRead(records)

        return read

    def acknowledge(self, position: Position) -> None:
        """Do nothing: the broker keeps records regardless of who read them."""

    def close(self) -> None:
        """Close the broker connections."""
        if self._arrow_reader is not None:
            self._arrow_reader.close()
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _describe_topics(
        self, position: Position | None, *, accept_loss: bool = False
    ) -> dict[str, Topic]:
        if self._broker is None:
            self._options = self._settings.client_options()
            self._broker = Broker(self._lake, self._options)
        try:
            return self._broker.describe_topics(self._settings.topics)
        except MissingTopic as error:
            if position is None or accept_loss:
                raise
            raise LostData(self._source.name, error.cause) from error

    def _make_provenance(self, part: OffsetRange, topic: Topic) -> Provenance:
        identity = sha256(f"kafka:{topic.id}:{part.partition}".encode()).hexdigest()
        return Provenance(part.name, identity, Layout("jsonl"))

    def _read_lines(self, parts: Sequence[OffsetRange], only: frozenset[int] | None) -> DataFrame:
        numbered = {
            number: part for number, part in enumerate(parts) if only is None or number in only
        }
        if not numbered:
            return self._lake.spark.session.createDataFrame([], LINES_SCHEMA)
        messages = self._read_messages(list(numbered.values())).selectExpr(
            f"{_partition_number_expression(numbered)} as {FILE}",
            f"offset as {POSITION}",
            f"key as {KEY}",
            f"headers as {HEADERS}",
            f"timestamp as {EVENT_TIME}",
            f"value as {PAYLOAD}",
        )
        return add_text(messages, self._settings, self._registry, self._contract)

    def _read_messages(self, parts: Sequence[OffsetRange]) -> DataFrame:
        """Read every record of the ranges with Spark's connector."""
        spark = self._lake.spark.session
        rows = sum(part.end - part.start for part in parts)
        tasks = spark.sparkContext.defaultParallelism if rows >= MIN_PARALLEL_ROWS else 1
        options = {
            **_LARGE_FETCHES,
            **{f"kafka.{key}": value for key, value in self._options.items()},
            "kafka.isolation.level": "read_committed",
            "assign": _to_connector_json({part: part.partition for part in parts}, listed=True),
            "startingOffsets": _to_connector_json({part: part.start for part in parts}),
            "endingOffsets": _to_connector_json({part: part.end for part in parts}),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafkaConsumer.pollTimeoutMs": str(POLL_TIMEOUT_MS),
            "minPartitions": str(tasks),
        }
        return spark.read.format("kafka").options(**options).load().coalesce(tasks)


def _partition_number_expression(parts: Mapping[int, OffsetRange]) -> str:
    """Return an expression for the number of a row's range."""
    cases = []
    for topic in dict.fromkeys(part.topic for part in parts.values()):
        numbers = {part.partition: n for n, part in parts.items() if part.topic == topic}
        listed = ", ".join(str(numbers.get(p, -1)) for p in range(max(numbers) + 1))
        cases.append(f"when {literal(topic)} then array({listed})[partition]")
    return f"case topic {' '.join(cases)} end"


def _to_connector_json(values: Mapping[OffsetRange, int], *, listed: bool = False) -> str:
    """Format values of partitions as the connector's JSON."""
    found: dict[str, dict[str, int]] = {}
    for part, value in values.items():
        found.setdefault(part.topic, {})[str(part.partition)] = value
    if listed:
        return json.dumps({topic: list(of.values()) for topic, of in found.items()})
    return json.dumps(found)
