"""Topics as a feed: bounded ranges of offsets, read by Spark's Kafka connector."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING

from thermocline.ingest.batch import OpenFastRead, Provenance
from thermocline.ingest.fast_path import SingleTableRead
from thermocline.ingest.feed import LINES_SCHEMA, LostData, Pull
from thermocline.ingest.kafka import ranges
from thermocline.ingest.kafka.broker import Broker, MissingTopic, explained_read
from thermocline.ingest.kafka.ranges import Span, Topic
from thermocline.ingest.kafka.registry import Registry
from thermocline.ingest.kafka.source import KafkaReach
from thermocline.ingest.kafka.swift import SwiftLane
from thermocline.ingest.kafka.values import with_text
from thermocline.ingest.layout import Layout
from thermocline.ingest.marks import Position
from thermocline.ingest.source import BatchLimits, Source
from thermocline.ingest.validation import EVENT_TIME, FILE, HEADERS, KEY, PAYLOAD, POSITION
from thermocline.ingest.value_expressions import literal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from thermocline.contract import Contract
    from thermocline.lake import Lake

PARALLEL_ROWS = 50_000
"""From how many records on it pays to write with more than one task, and so to more files."""
# Spark's reader asks the broker for a partition's bounds, and waits, whenever it wants more.
_IN_LARGE_PIECES = {
    "kafka.max.poll.records": "20000",
    "kafka.max.partition.fetch.bytes": str(8 << 20),
}
POLL_MS = 60_000
"""How long a task waits for the broker's next record before the batch is given up."""


class KafkaFeed:
    """The topics of one source."""

    def __init__(self, lake: Lake, source: Source, contract: Contract) -> None:
        self._lake = lake
        self._source = source
        self._contract = contract
        self._reach: KafkaReach = source.connection
        self._options: dict[str, str] = {}
        self._broker: Broker | None = None
        self._registry = Registry(self._reach) if self._reach.registry else None
        self._unfixed = False
        plain = self._reach.format == "json" and self._reach.lane != "spark"
        self._lane = SwiftLane(self._reach) if plain else None

    def begin(self, position: Position | None, *, accept_loss: bool = False) -> Position | None:
        """See Feed.begin: a position is the topics' ids and the next offset of each partition."""
        topics = self._topics(position, accept_loss=accept_loss)
        if position is None:
            # A start at the end lands a mark at once, or what comes before the first batch and
            # the next start would be passed over without a word.
            self._unfixed = self._reach.start == "latest"
            return ranges.first(topics, at_end=self._unfixed)
        lost = ranges.losses(position, topics)
        if lost and not accept_loss:
            raise LostData(self._source.name, "; ".join(lost))
        return ranges.resumed(position, topics)

    def pull(self, position: Position | None, limits: BatchLimits) -> Pull | None:
        """See Feed.pull."""
        assert position is not None, "begin gives a position"
        topics = self._topics(position)
        if lost := ranges.losses(position, topics):
            raise LostData(self._source.name, "; ".join(lost))
        position = ranges.resumed(position, topics)  # takes in partitions that were added
        spans = ranges.spans(position, topics, limits.rows)
        if not spans and not self._unfixed:
            return None
        self._unfixed = False
        following = ranges.after(position, spans)
        return Pull(
            tuple(self._provenance(span, topics[span.topic]) for span in spans),
            lambda only: self._lines(spans, only),
            following,
            position_ranges=tuple((span.start, span.end) for span in spans),
            behind=ranges.waiting(following, topics),
            explain=lambda failure: explained_read(failure, self._reach.servers),
            fast_path=self._swift(spans, limits),
        )

    def _swift(self, spans: Sequence[Span], limits: BatchLimits) -> OpenFastRead | None:
        lane = self._lane
        if lane is None or not spans or not lane.ready():
            return None

        def read(contract: Contract) -> SingleTableRead | None:
            records = lane.read(spans, contract, limits.bytes)
            return None if records is None else SingleTableRead(records)

        return read

    def acknowledge(self, position: Position) -> None:
        """Nothing to tell: the broker keeps records by its own rules, not by who read them."""

    def close(self) -> None:
        """Let go of the broker."""
        if self._lane is not None:
            self._lane.close()
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def _topics(self, position: Position | None, *, accept_loss: bool = False) -> dict[str, Topic]:
        if self._broker is None:
            self._options = self._reach.client_options()
            self._broker = Broker(self._lake, self._options)
        try:
            return self._broker.topics(self._reach.topics)
        except MissingTopic as error:
            if position is None or accept_loss:
                raise
            raise LostData(self._source.name, error.cause) from error

    def _provenance(self, span: Span, topic: Topic) -> Provenance:
        identity = sha256(f"kafka:{topic.id}:{span.partition}".encode()).hexdigest()
        return Provenance(span.name, identity, Layout("jsonl"))

    def _lines(self, spans: Sequence[Span], only: frozenset[int] | None) -> DataFrame:
        numbered = {
            number: span for number, span in enumerate(spans) if only is None or number in only
        }
        if not numbered:
            return self._lake.spark.session.createDataFrame([], LINES_SCHEMA)
        messages = self._messages(list(numbered.values())).selectExpr(
            f"{_number_of(numbered)} as {FILE}",
            f"offset as {POSITION}",
            f"key as {KEY}",
            f"headers as {HEADERS}",
            f"timestamp as {EVENT_TIME}",
            f"value as {PAYLOAD}",
        )
        return with_text(messages, self._reach, self._registry, self._contract)

    def _messages(self, spans: Sequence[Span]) -> DataFrame:
        """Every record of the spans, as Spark's connector gives it."""
        spark = self._lake.spark.session
        rows = sum(span.end - span.start for span in spans)
        tasks = spark.sparkContext.defaultParallelism if rows >= PARALLEL_ROWS else 1
        options = {
            **_IN_LARGE_PIECES,
            **{f"kafka.{key}": value for key, value in self._options.items()},
            "kafka.isolation.level": "read_committed",
            "assign": _by_topic({span: span.partition for span in spans}, listed=True),
            "startingOffsets": _by_topic({span: span.start for span in spans}),
            "endingOffsets": _by_topic({span: span.end for span in spans}),
            "includeHeaders": "true",
            "failOnDataLoss": "true",
            "kafkaConsumer.pollTimeoutMs": str(POLL_MS),
            "minPartitions": str(tasks),
        }
        return spark.read.format("kafka").options(**options).load().coalesce(tasks)


def _number_of(spans: Mapping[int, Span]) -> str:
    """An expression for the number of a row's partition."""
    cases = []
    for topic in dict.fromkeys(span.topic for span in spans.values()):
        numbers = {span.partition: n for n, span in spans.items() if span.topic == topic}
        listed = ", ".join(str(numbers.get(p, -1)) for p in range(max(numbers) + 1))
        cases.append(f"when {literal(topic)} then array({listed})[partition]")
    return f"case topic {' '.join(cases)} end"


def _by_topic(values: Mapping[Span, int], *, listed: bool = False) -> str:
    """Values of partitions as the connector's JSON."""
    found: dict[str, dict[str, int]] = {}
    for span, value in values.items():
        found.setdefault(span.topic, {})[str(span.partition)] = value
    if listed:
        return json.dumps({topic: list(of.values()) for topic, of in found.items()})
    return json.dumps(found)
