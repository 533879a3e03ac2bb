"""What brokers and producers do wrong: records twice, late or missing, and a broker that dies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.kafka_project import TARGET, Project, order
from tests.integration.odcs import HEAD
from tests.servers.kafka import Kafka, Message

from thermocline.errors import Permanent, Transient
from thermocline.ingest.feed import FeedIngester, LostData, Pull
from thermocline.ingest.kafka import feed as feeds
from thermocline.ingest.kafka.feed import KafkaFeed
from thermocline.ingest.validation import POSITION

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql import DataFrame

BRONZE = """\
      - {name: id, physicalType: long, required: true}
      - {name: note, physicalType: string}
      - {name: _op, physicalType: string, required: true}
      - {name: _lsn, physicalType: long, required: true}
customProperties:
  - {property: write, value: append}
"""
SILVER = """\
      - {name: id, physicalType: long, required: true, primaryKey: true}
      - {name: note, physicalType: string}
      - {name: lsn, physicalType: long, required: true}
customProperties:
  - {property: write, value: merge}
  - {property: orderBy, value: lsn}
  - {property: deleteWhen, value: "_op = 'd'"}
"""


@pytest.fixture
def orders(project: Path, kafka_server: Kafka) -> Project:
    return Project(project, kafka_server, kafka_server.create(partitions=2))


class Altered(KafkaFeed):
    """A feed whose records something happens to on their way to us."""

    def alter(self, lines: DataFrame) -> DataFrame:
        return lines

    def pull(self, *args: Any) -> Pull | None:
        pulled = super().pull(*args)
        if pulled is None:
            return None
        given = pulled.lines
        return replace(pulled, lines=lambda only: self.alter(given(only)), fast_path=None)


def ingester(orders: Project, kind: type[KafkaFeed] = KafkaFeed) -> FeedIngester:
    house = orders.open()
    source, contract = house.sources["orders"], house.contracts[TARGET]
    return FeedIngester(house.lake, source, contract, kind(house.lake, source, contract))


def event(op: str, lsn: int, **row: Any) -> bytes:
    """A change as Debezium writes it."""
    sides = {"before": row, "after": None} if op == "d" else {"before": None, "after": row}
    source = {"lsn": lsn, "txId": 7, "schema": "public", "table": "orders", "ts_ms": 5}
    return json.dumps({"op": op, "ts_ms": 6, "source": source, **sides}).encode()


def test_changes_that_come_late_or_twice_are_kept_and_do_not_win(orders: Project) -> None:
    for name, text in {
        "contracts/bronze/raw_orders.odcs.yaml": HEAD.format(name="raw_orders") + BRONZE,
        "contracts/silver/orders.odcs.yaml": HEAD.format(name="orders") + SILVER,
        "models/silver/orders.sql": f"select id, note, _lsn as lsn, _op from {TARGET}",
    }.items():
        path = orders.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    orders.source(format="debezium")
    newest = event("u", 30, id=1, note="third")
    first = [event("c", 10, id=1, note="first"), newest, event("c", 5, id=2, note="gone")]
    orders.server.send(orders.topic, [*first, event("d", 40, id=2)])
    assert orders.ingest() == (4, 0)
    orders.open().run()
    late = [event("u", 20, id=1, note="second"), newest, event("u", 35, id=2, note="risen")]
    orders.server.send(orders.topic, late)
    assert orders.ingest() == (3, 0)
    orders.open().run()
    silver = orders.open().table("silver.orders").to_arrow().to_pylist()
    assert [tuple(row.values()) for row in silver] == [(1, "third", 30)]
    assert [row[0] for row in orders.rows("_lsn")] == [10, 30, 5, 40, 20, 30, 35]


def test_what_debezium_says_beside_changes_is_set_aside(orders: Project) -> None:
    """Of schemas, transactions and its own life: what connectors write to topics of their own, and
    a route or a pattern of topics may bring into ours."""
    orders.source(format="debezium", badShare=0.9)
    beside = {
        "schema": {
            "source": {"lsn": 9, "table": "orders"},
            "databaseName": "shop",
            "schemaName": "public",
            "ddl": "alter table orders add column colour text",
            "tableChanges": [{"type": "ALTER", "id": '"public"."orders"', "table": {}}],
        },
        "transaction": {"status": "BEGIN", "id": "7:9", "ts_ms": 6, "event_count": None},
        "heartbeat": {"ts_ms": 6},
        "wrapped": {"schema": {"type": "struct"}, "payload": {"ddl": "drop table orders"}},
    }
    sent = [json.dumps(each).encode() for each in beside.values()]
    good = [event("c", 10, id=1, note="a"), event("c", 11, id=2, note="b")]
    orders.server.send(orders.topic, [good[0], *sent, good[1]])
    assert orders.ingest() == (2, 4)
    assert orders.rows("id", "_position") == [(1, 0), (2, 5)]
    set_aside = orders.open().quarantine(TARGET)
    assert [row.position for row in set_aside] == [1, 2, 3, 4]
    assert {row.reasons for row in set_aside} == {("not a change event of Debezium",)}
    assert [json.loads(row.raw or "") for row in set_aside] == list(beside.values())


def test_records_that_come_twice_at_their_offsets_stop_it_and_nothing_lands(
    orders: Project,
) -> None:
    class Twice(Altered):
        def alter(self, lines: DataFrame) -> DataFrame:
            return lines.unionAll(lines)

    orders.server.send(orders.topic, [order(n) for n in range(5)])
    with pytest.raises(Permanent, match="returned 10 records for 5 positions") as told:
        ingester(orders, Twice).ingest_batch()
    assert "Nothing of the batch landed." in told.value.next_step
    assert orders.rows("id") == []
    assert orders.ingest() == (5, 0)


def test_offsets_without_a_record_are_counted(orders: Project) -> None:
    producer = orders.server.producer(transactional_id=f"tx-{orders.topic}")
    producer.init_transactions(30)
    for number, end in enumerate((producer.abort_transaction, producer.commit_transaction)):
        producer.begin_transaction()
        for each in range(3):
            producer.produce(orders.topic, order(number * 10 + each), partition=0)
        producer.flush(30)  # an abort throws away what was not sent yet
        end(30)
    taken = ingester(orders).ingest_batch()
    assert taken is not None
    assert (taken.rows, taken.landed.gaps) == (3, 5)  # what was aborted, and the marks of both ends
    assert orders.rows("id", "_position") == [(10, 4), (11, 5), (12, 6)]


def test_a_topic_made_again_or_gone_stops_a_stream_that_runs(orders: Project) -> None:
    stream = ingester(orders)
    orders.server.send(orders.topic, [order(n) for n in range(4)])
    assert stream.ingest_batch()
    orders.server.delete(orders.topic)
    with pytest.raises(Permanent, match="does not have the topic"):
        stream.ingest_batch()
    orders.server.create(orders.topic, partitions=2)
    orders.server.send(orders.topic, [order(n) for n in range(9)])
    with pytest.raises(Permanent, match="was deleted and created again after 4 of its records"):
        stream.ingest_batch()
    assert orders.rows("id") == [(n,) for n in range(4)]


class Halting(Altered):
    """A feed whose reading halts at an offset until the test lets it go on."""

    folder: Path
    offset = 1000

    def alter(self, lines: DataFrame) -> DataFrame:
        reached, going = self.folder / "reached", self.folder / "going"
        offset, position = self.offset, POSITION

        def halt(batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
            for batch in batches:
                if offset in batch.column(position).to_pylist():
                    reached.touch()
                    while not going.exists():
                        time.sleep(0.05)
                yield batch

        return lines.mapInArrow(halt, lines.schema)


@contextmanager
def halted(
    orders: Project, folder: Path, happens: Callable[[], object], **options: str
) -> Iterator[FeedIngester]:
    """An intake that halts in the middle of 4,000 records, most of which are not fetched yet; then
    something happens, and it goes on."""
    small = {"max.partition.fetch.bytes": "65536", "fetch.max.bytes": "65536"}
    orders.source(options=small | {key.replace("_", "."): it for key, it in options.items()})
    records = [Message(order(n, note="x" * 500), partition=n % 2) for n in range(4_000)]
    orders.server.send(orders.topic, records, batch_size=16_384)
    Halting.folder = folder
    stream = ingester(orders, Halting)
    conf = stream.lake.spark.session.conf
    conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "100")

    over = Event()

    def interfere() -> None:
        while not (folder / "reached").exists():
            if over.wait(0.05):
                return
        happens()
        (folder / "going").touch()

    interfering = Thread(target=interfere)
    interfering.start()
    try:
        yield stream
    finally:
        over.set()
        interfering.join()
        assert (folder / "going").exists(), "it did not come to the middle"
        conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        stream.close()


def test_a_broker_that_dies_while_a_batch_is_read_and_comes_back_costs_no_batch(
    orders: Project, tmp_path: Path
) -> None:
    assert feeds.POLL_TIMEOUT_MS >= 60_000  # the test uses a few seconds

    def back() -> None:
        while not (tmp_path / "going").exists():
            time.sleep(0.05)
        time.sleep(4)
        orders.server.start()

    starting = Thread(target=back, daemon=True)
    starting.start()
    with halted(orders, tmp_path, orders.server.kill) as stream:
        taken = stream.ingest_batch()
    starting.join()
    assert taken is not None and taken.rows == 4_000
    assert sorted(orders.rows("id")) == [(n,) for n in range(4_000)]


def test_a_broker_that_dies_while_a_batch_is_read_and_stays_away_is_trouble(
    orders: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "POLL_TIMEOUT_MS", 3_000)
    short = {"default_api_timeout_ms": "3000", "request_timeout_ms": "2000"}
    with halted(orders, tmp_path, orders.server.kill, **short) as stream:
        try:
            with pytest.raises(Transient, match=f"{orders.server.servers} does not answer"):
                stream.ingest_batch()
            assert orders.rows("id") == []
        finally:
            orders.server.start()
        taken = stream.ingest_batch()
    assert taken is not None and taken.rows == 4_000
    assert sorted(orders.rows("id")) == [(n,) for n in range(4_000)]


def test_records_that_are_deleted_while_they_are_read_are_told_of(
    orders: Project, tmp_path: Path
) -> None:
    def forget() -> None:
        orders.server.forget(orders.topic, 1, 1_900)

    with halted(orders, tmp_path, forget) as stream:
        with pytest.raises(Transient, match="were deleted while they were read"):
            stream.ingest_batch()
        assert orders.rows("id") == []
        with pytest.raises(LostData, match=f"offsets 0 to 1,899 of {orders.topic}/1 were deleted"):
            stream.ingest_batch()
    assert orders.ingest(accept_loss=True) == (2_100, 0)
