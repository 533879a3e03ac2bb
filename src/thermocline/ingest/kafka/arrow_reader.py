"""Read offset ranges into Arrow in this process with librdkafka: the Arrow lane for Kafka.

The reader accepts a batch if every record is unambiguous and valid. Otherwise it raises NeedsSpark
without side effects, and Spark reads the batch and reports what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any

from thermocline.ingest.fast_path import FastPathBackoff
from thermocline.ingest.kafka.librdkafka_options import to_librdkafka_options
from thermocline.ingest.unambiguous_json import NeedsSpark, UnambiguousJsonReader
from thermocline.ingest.validation import EVENT_TIME, FILE, HEADERS, KEY, PAYLOAD, POSITION
from thermocline.telemetry import log, one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.contract.definition import Contract
    from thermocline.ingest.kafka.offset_ranges import OffsetRange
    from thermocline.ingest.kafka.source import KafkaSettings

CHUNK_MESSAGES = 10_000
"""How many messages are requested at once, and how many of a partition are parsed together."""
MAX_BATCH_BYTES = 512 << 20
"""The most payload bytes of a batch that are held in memory; larger batches go to Spark."""
SILENCE_TIMEOUT_SECONDS = 10.0
"""After this many seconds without a message, fall back to Spark, which reports the cause."""

_SETTINGS: dict[str, Any] = {
    "group.id": "thermocline",  # required by the client; no group is joined, nothing is committed
    "client.id": "thermocline",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
    "enable.partition.eof": True,
    "check.crcs": True,
    "fetch.wait.max.ms": 100,
    # Messages fetched beyond a range are fetched again for the next one, so the queue is small, and
    # it is refilled at once rather than after a second.
    "queued.min.messages": 20_000,
    "fetch.queue.backoff.ms": 2,
    "log_level": 0,  # Spark reports errors
}


class KafkaArrowReader:
    """Reads one source's topics without Spark. Not thread-safe."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._backoff = FastPathBackoff()
        self._json_reader: tuple[Contract, UnambiguousJsonReader] | None = None
        self._consumer: Any = None
        self._errors: list[str] = []

    def is_ready(self) -> bool:
        """Whether to try the Arrow lane for the next batch."""
        return self._backoff.is_ready()

    def read(
        self, parts: Sequence[OffsetRange], contract: Contract, max_bytes: int
    ) -> pa.Table | None:
        """Return the records by partition and offset; None if any of them needs Spark."""
        try:
            # `max_bytes` is an estimate from earlier batches, so allow twice as much.
            table = self._read(
                parts, self._json_reader_for(contract), min(2 * max_bytes, MAX_BATCH_BYTES)
            )
        except NeedsSpark as reason:
            log("ingest.arrow", "declined", level="DEBUG", reason=one_line(str(reason)))
            self._backoff.record_declined()
            return None
        self._backoff.record_success()
        return table

    def close(self) -> None:
        """Close the connections."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _json_reader_for(self, contract: Contract) -> UnambiguousJsonReader:
        if self._json_reader is None or self._json_reader[0] != contract:
            self._json_reader = contract, UnambiguousJsonReader(contract)
        return self._json_reader[1]

    def _read(
        self, parts: Sequence[OffsetRange], json_reader: UnambiguousJsonReader, max_bytes: int
    ) -> pa.Table:
        import pyarrow as pa

        part_tables: list[list[pa.Table]] = [[] for _ in parts]
        size = 0
        for number, messages in self._read_messages(parts):
            table = _to_table(number, messages, json_reader)
            size += table.column(PAYLOAD).nbytes
            if size > max_bytes:
                raise NeedsSpark("more bytes than a batch may have")
            part_tables[number].append(table)
        whole = pa.concat_tables([table for tables in part_tables for table in tables])
        if whole.num_rows != sum(part.end - part.start for part in parts):
            raise NeedsSpark("not as many records as offsets")
        return whole

    def _read_messages(self, parts: Sequence[OffsetRange]) -> Iterator[tuple[int, list[Any]]]:
        """Yield messages in chunks, each of one range and in the order of offsets."""
        consumer = self._connect()
        from confluent_kafka import KafkaException, TopicPartition

        try:
            consumer.assign([TopicPartition(s.topic, s.partition, s.start) for s in parts])
            yield from self._consume_ranges(consumer, parts)
            consumer.unassign()
        except (KafkaException, UnicodeDecodeError) as error:
            self.close()
            raise NeedsSpark(str(error)) from error
        except NeedsSpark:
            self.close()
            raise

    def _consume_ranges(
        self, consumer: Any, parts: Sequence[OffsetRange]
    ) -> Iterator[tuple[int, list[Any]]]:
        progress = {
            (part.topic, part.partition): _RangeProgress(n, part) for n, part in enumerate(parts)
        }
        left = list(progress.values())
        last_message_at = monotonic()
        while left:
            count = min(CHUNK_MESSAGES, sum(each.part.end - each.next for each in left))
            messages = consumer.consume(count, 0.1)
            if messages:
                last_message_at = monotonic()
            elif self._errors or monotonic() - last_message_at > SILENCE_TIMEOUT_SECONDS:
                raise NeedsSpark(f"the broker does not answer {self._errors[:1]}")
            for message in messages:
                partition = message.topic(), message.partition()
                if partition in progress:
                    progress[partition].add(message)
                elif message.error() is not None:
                    raise NeedsSpark(message.error().name())
            left = [each for each in left if not each.is_done]
            for each in progress.values():
                if len(each.pending) >= CHUNK_MESSAGES or (each.is_done and each.pending):
                    yield each.number, each.pending
                    each.pending = []

    def _connect(self) -> Any:
        if self._consumer is None:
            try:
                from confluent_kafka import Consumer, KafkaException
            except ImportError as error:
                raise NeedsSpark("confluent-kafka is not installed") from error
            options = to_librdkafka_options(self._settings.client_options())
            if options is None:
                raise NeedsSpark("an option that librdkafka may read otherwise")
            self._errors = []
            try:
                self._consumer = Consumer({**_SETTINGS, **options, "error_cb": self._on_error})
            except KafkaException as error:
                raise NeedsSpark(str(error)) from error
        return self._consumer

    def _on_error(self, error: Any) -> None:
        if error.fatal() or error.name() in {"_ALL_BROKERS_DOWN", "_AUTHENTICATION", "_SSL"}:
            self._errors.append(error.name())


class _RangeProgress:
    """The progress of reading one range."""

    def __init__(self, number: int, part: OffsetRange) -> None:
        self.number = number
        self.part = part
        self.next = part.start
        self.is_done = False
        self.pending: list[Any] = []

    def add(self, message: Any) -> None:
        """Add a message or event of the partition. Messages after the range are ignored.

        An offset without a record (of a transaction, or compacted away) looks the same as one that
        the client lost, so a range with such offsets needs Spark.
        """
        if self.is_done:
            return
        if (error := message.error()) is not None:
            if error.name() != "_PARTITION_EOF":
                raise NeedsSpark(error.name())
            if message.offset() < self.part.end:
                return  # the broker's response predates the planned end
        if message.offset() != self.next or error is not None:
            raise NeedsSpark("offsets without a record, or not in their order")
        self.pending.append(message)
        self.next += 1
        self.is_done = self.next == self.part.end


def _to_table(number: int, messages: Sequence[Any], json_reader: UnambiguousJsonReader) -> pa.Table:
    """Return messages of one range with the columns that `fast_path.to_bronze` reads."""
    import pyarrow as pa

    payloads = [message.value() for message in messages]
    columns = json_reader.read_payloads(payloads)
    found = {
        FILE: pa.repeat(pa.scalar(number, pa.int32()), len(messages)),
        POSITION: pa.array([message.offset() for message in messages], pa.int64()),
        KEY: pa.array([message.key() for message in messages], pa.binary()),
        HEADERS: _to_header_array([message.headers() for message in messages]),
        EVENT_TIME: _to_time_array([message.timestamp() for message in messages]),
        PAYLOAD: pa.array(payloads, pa.binary()),
    }
    return pa.table({**found, **dict(zip(columns.column_names, columns.columns, strict=True))})


def _to_header_array(headers: list[list[tuple[str, bytes | None]] | None]) -> pa.Array:
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    if not any(headers):
        return pa.nulls(len(headers), kind)
    rows = [[{"key": k, "value": v} for k, v in each] if each else None for each in headers]
    return pa.array(rows, kind)


def _to_time_array(stamps: list[tuple[int, int]]) -> pa.Array:
    import pyarrow as pa

    if any(kind == 0 for kind, _ in stamps):
        raise NeedsSpark("a message without a time")
    moments = pa.array([moment for _, moment in stamps], pa.timestamp("ms", "UTC"))
    return moments.cast(pa.timestamp("us", "UTC"))
