"""Spans of offsets read in this process, by librdkafka, into Arrow: the swift lane's reader.

It takes a batch when every record of it is plain and good, and declines otherwise: then nothing
happened, and Spark reads the batch, says what is wrong with it, or waits for the broker.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from thermocline.ingest.fast_path import FastPathBackoff
from thermocline.ingest.kafka.client import translated
from thermocline.ingest.unambiguous_json import NeedsSpark, UnambiguousJsonReader
from thermocline.ingest.validation import EVENT_TIME, FILE, HEADERS, KEY, PAYLOAD, POSITION
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.contract.definition import Contract
    from thermocline.ingest.kafka.ranges import Span
    from thermocline.ingest.kafka.source import KafkaReach

CHUNK = 10_000
"""How many messages are asked for at once, and how many of a partition are parsed together."""
MOST_BYTES = 512 << 20
"""Payloads of a batch that are held in memory; the bytes of larger batches stream through Spark."""
PATIENCE = 10.0
"""Seconds without a message after which the broker is left to the lane that can say why."""

_SETTINGS: dict[str, Any] = {
    "group.id": "thermocline",  # asked for by the client; no group is joined, nothing is committed
    "client.id": "thermocline",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
    # What is fetched beyond a span is fetched again for the next one, so not much is; and what
    # there is room for is asked for at once, not after a second.
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 2,
    "log_level": 0,  # what goes wrong is told by the other lane
}


class SwiftLane:
    """One source's way around Spark. One thread uses it."""

    def __init__(self, reach: KafkaReach) -> None:
        self._reach = reach
        self._pace = FastPathBackoff()
        self._plain: tuple[Contract, UnambiguousJsonReader] | None = None
        self._consumer: Any = None
        self._trouble: list[str] = []

    def ready(self) -> bool:
        """Whether the next batch is worth a try."""
        return self._pace.ready()

    def read(self, spans: Sequence[Span], contract: Contract, most_bytes: int) -> pa.Table | None:
        """All records of the spans, by partition and offset; None when they are not all plain."""
        try:
            # By what was seen before, the batch has so many bytes: it may well have a few more.
            table = self._read(spans, self._plain_for(contract), min(2 * most_bytes, MOST_BYTES))
        except NeedsSpark as reason:
            log("ingest.swift", "declined", level="DEBUG", reason=one_line(str(reason)))
            self._pace.declined()
            return None
        self._pace.took()
        return table

    def close(self) -> None:
        """Let go of the connections."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _plain_for(self, contract: Contract) -> UnambiguousJsonReader:
        if self._plain is None or self._plain[0] != contract:
            self._plain = contract, UnambiguousJsonReader(contract)
        return self._plain[1]

    def _read(
        self, spans: Sequence[Span], plain: UnambiguousJsonReader, most_bytes: int
    ) -> pa.Table:
        import pyarrow as pa

        kept: list[list[pa.Table]] = [[] for _ in spans]
        size = 0
        for number, messages in self._messages(spans):
            table = _table(number, messages, plain)
            size += table.column(PAYLOAD).nbytes
            if size > most_bytes:
                raise NeedsSpark("more bytes than a batch may have")
            kept[number].append(table)
        whole = pa.concat_tables([table for tables in kept for table in tables])
        if whole.num_rows != sum(span.end - span.start for span in spans):
            raise NeedsSpark("not as many records as offsets")
        return whole

    def _messages(self, spans: Sequence[Span]) -> Iterator[tuple[int, list[Any]]]:
        """Messages of the spans in chunks, each of one span and in the order of offsets."""
        consumer = self._connected()
        from confluent_kafka import KafkaException, TopicPartition

        try:
            consumer.assign([TopicPartition(s.topic, s.partition, s.start) for s in spans])
            yield from self._until_the_end(consumer, spans)
            consumer.unassign()
        except (KafkaException, UnicodeDecodeError) as error:
            self.close()
            raise NeedsSpark(str(error)) from error
        except NeedsSpark:
            self.close()
            raise

    def _until_the_end(
        self, consumer: Any, spans: Sequence[Span]
    ) -> Iterator[tuple[int, list[Any]]]:
        reading = {(span.topic, span.partition): _Reading(n, span) for n, span in enumerate(spans)}
        left = list(reading.values())
        heard = monotonic()
        while left:
            wanted = min(CHUNK, sum(each.span.end - each.next for each in left))
            messages = consumer.consume(wanted, 0.1)
            if messages:
                heard = monotonic()
            elif self._trouble or monotonic() - heard > PATIENCE:
                raise NeedsSpark(f"the broker does not answer {self._trouble[:1]}")
            for message in messages:
                place = message.topic(), message.partition()
                if place in reading:
                    reading[place].take(message)
                elif message.error() is not None:
                    raise NeedsSpark(message.error().name())
            left = [each for each in left if not each.done]
            for each in reading.values():
                if len(each.held) >= CHUNK or (each.done and each.held):
                    yield each.number, each.held
                    each.held = []

    def _connected(self) -> Any:
        if self._consumer is None:
            try:
                from confluent_kafka import Consumer, KafkaException
            except ImportError as error:
                raise NeedsSpark("confluent-kafka is not installed") from error
            options = translated(self._reach.client_options())
            if options is None:
                raise NeedsSpark("an option that librdkafka may read otherwise")
            self._trouble = []
            try:
                self._consumer = Consumer({**_SETTINGS, **options, "error_cb": self._on_error})
            except KafkaException as error:
                raise NeedsSpark(str(error)) from error
        return self._consumer

    def _on_error(self, error: Any) -> None:
        if error.fatal() or error.name() in {"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_SSL"}:
            self._trouble.append(error.name())


class _Reading:
    """How far one span is read."""

    def __init__(self, number: int, span: Span) -> None:
        self.number = number
        self.span = span
        self.next = span.start
        self.done = False
        self.held: list[Any] = []

    def take(self, message: Any) -> None:
        """One message or event of the partition. What lies behind the span is left alone.

        An offset without a record (of a transaction, or compacted away) cannot be told from one
        that the client lost, so a span that has any is left to Spark.
        """
        if self.done:
            return
        if (error := message.error()) is not None:
            if error.name() != "_PARTITION_EOF":
                raise NeedsSpark(error.name())
            if message.offset() < self.span.end:
                return  # the broker's answer is from before the end that we were told of
        if message.offset() != self.next or error is not None:
            raise NeedsSpark("offsets without a record, or not in their order")
        self.held.append(message)
        self.next += 1
        self.done = self.next == self.span.end


def _table(number: int, messages: Sequence[Any], plain: UnambiguousJsonReader) -> pa.Table:
    """Messages of one partition as the columns that `swift.bronze` takes."""
    import pyarrow as pa

    payloads = [message.value() for message in messages]
    columns = plain.table(payloads)
    found = {
        FILE: pa.repeat(pa.scalar(number, pa.int32()), len(messages)),
        POSITION: pa.array([message.offset() for message in messages], pa.int64()),
        KEY: pa.array([message.key() for message in messages], pa.binary()),
        HEADERS: _headers([message.headers() for message in messages]),
        EVENT_TIME: _times([message.timestamp() for message in messages]),
        PAYLOAD: pa.array(payloads, pa.binary()),
    }
    return pa.table({**found, **dict(zip(columns.column_names, columns.columns, strict=True))})


def _headers(headers: list[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if not any(headers):
        return pa.nulls(len(headers), kind)
    rows = [[{"key": k, "value": v} for k, v in each] if each else None for each in headers]
    return pa.array(rows, kind)


def _times(stamps: list[tuple[int, int]]) -> pa.Array:
    import pyarrow as pa

    if any(kind == 0 for kind, _ in stamps):
        raise NeedsSpark("a message without a time")
    moments = pa.array([moment for _, moment in stamps], pa.timestamp("ms", "UTC"))
    return moments.cast(pa.timestamp("us", "UTC"))
