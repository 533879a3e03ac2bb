"""Kafka batches in the Arrow lane, batches that fall back to Spark, and their equal results."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.integration.attached import child
from tests.integration.kafka_project import TARGET, Project, order
from tests.integration.odcs import HEAD
from tests.servers.kafka import Kafka, Message

from thermocline.errors import CheckFailed
from thermocline.ingest.batch import BatchResult
from thermocline.ingest.feed import FeedIngester, open_feed
from thermocline.ingest.kafka import arrow_reader
from thermocline.lake.metadata import location_path

LAID_OUT = (
    HEAD
    + """\
      - {{name: id, physicalType: long, required: true}}
      - {{name: amount, physicalType: "decimal(12,2)"}}
      - {{name: note, physicalType: string}}
      - {{name: day, physicalType: date, partitioned: true, partitionKeyPosition: 1}}
      - {{name: price, physicalType: double}}
      - {{name: paid, physicalType: boolean}}
      - {{name: at, physicalType: timestamptz}}
customProperties:
  - {{property: write, value: append}}
  - {{property: drift, value: rescue}}
  - {{property: sortBy, value: [note, id]}}
"""
)


@pytest.fixture
def orders(project: Path, kafka_server: Kafka) -> Project:
    """A source of a topic with two partitions."""
    return Project(project, kafka_server, kafka_server.create(partitions=2))


@pytest.fixture
def fast_batches(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For every batch that the lane was tried with, whether it took it."""
    seen: list[bool] = []
    real = arrow_reader.KafkaArrowReader.read

    def read(self: arrow_reader.KafkaArrowReader, *args: Any) -> Any:
        table = real(self, *args)
        seen.append(table is not None)
        return table

    monkeypatch.setattr(arrow_reader.KafkaArrowReader, "read", read)
    return seen


def full(number: int, **more: Any) -> bytes:
    record = {
        "id": number, "amount": number / 4, "note": None if number % 7 == 0 else f"é{number % 5}",
        "day": f"2026-03-0{1 + number % 3}", "price": number / 3, "paid": number % 2 == 0,
        "at": f"2026-03-01T12:30:{number % 60:02}.{number:06}Z",
    }  # fmt: skip
    return json.dumps({**record, **more}).encode()


def messages(count: int) -> list[Message]:
    headers = ((), (("trace", b"\x00\xff"), ("trace", b"")))
    keys = (None, b"", b"k", b"\xff\x00")
    return [
        Message(full(n), keys[n % 4], headers[n % 2], n % 2, 1_770_000_000_000 + n)
        for n in range(count)
    ]


def sort_by_partition(project: Project) -> None:
    path = project.folder / "contracts" / "bronze" / "raw_orders.odcs.yaml"
    path.write_text(LAID_OUT.format(name="raw_orders"))


def files(project: Project) -> dict[str, list[list[Any]]]:
    """By partition, the ids of each of its files in their order."""
    folder = location_path(project.open().lake.state(TARGET).location) / "data"
    found: dict[str, list[list[Any]]] = {}
    for path in folder.rglob("*.parquet"):
        rows = pq.ParquetFile(path).read(columns=["note", "id"]).to_pylist()
        found.setdefault(path.parent.name, []).append([(r["note"], r["id"]) for r in rows])
    return found


def everything(project: Project) -> list[tuple[Any, ...]]:
    names = [f["name"] for f in project.open().lake.state(TARGET).schema["fields"]]
    return project.rows(*(name for name in names if name != "_ingested_at"))


def landed(project: Project) -> BatchResult:
    """One batch, and what is said of it."""
    house = project.open()
    source, contract = house.sources["orders"], house.contracts[TARGET]
    feed = open_feed(house.lake, source, contract)
    ingester = FeedIngester(house.lake, source, contract, feed)
    taken = ingester.ingest_batch()
    ingester.close()
    assert taken is not None
    return replace(taken.landed, snapshot=0)


def test_both_lanes_land_the_same_rows_in_the_same_layout(
    orders: Project, tmp_path: Path, fast_batches: list[bool]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "thermocline.toml").write_text((orders.folder / "thermocline.toml").read_text())
    by_spark = Project(other, orders.server, orders.topic)
    by_spark.source(lane="spark")
    orders.server.send(orders.topic, messages(500))
    counts = []
    for project in (orders, by_spark):
        sort_by_partition(project)
        counts.append(landed(project))
    assert fast_batches == [True]
    assert counts[0] == counts[1]
    assert (counts[0].rows, counts[0].quarantined, counts[0].gaps) == (500, 0, 0)
    assert everything(orders) == everything(by_spark)
    ours, theirs = files(orders), files(by_spark)
    assert {day: len(parts) for day, parts in ours.items()} == {
        f"day=2026-03-0{n}": 1 for n in (1, 2, 3)
    }
    assert ours == theirs


def test_the_commit_says_the_same_as_sparks(orders: Project, fast_batches: list[bool]) -> None:
    orders.server.send(orders.topic, [order(n) for n in range(5)])
    orders.ingest()
    orders.source(lane="spark")
    orders.server.send(orders.topic, [order(n) for n in range(5)])
    orders.ingest()
    assert fast_batches == [True]
    state = orders.open().lake.state(TARGET)
    spark, ours, _ = state.ancestry(state.head())
    mine = {key for key in ours.summary if key.startswith("thermocline.")}
    assert mine == {key for key in spark.summary if key.startswith("thermocline.")}
    assert (ours.operation, ours.count("added-records")) == ("append", 5)


def test_batches_that_are_plain_and_others_land_each_once(
    orders: Project, fast_batches: list[bool]
) -> None:
    orders.source(batch={"rows": 10}, badShare=0.9)
    values = [b"bad" if n // 10 % 2 and n % 10 == 3 else order(n) for n in range(60)]
    orders.server.send(orders.topic, values)
    assert orders.ingest() == (57, 3)
    assert fast_batches == [True, False] * 3
    assert orders.rows("_position", "id") == [
        (n, n) for n, value in enumerate(values) if value != b"bad"
    ]
    assert [row.position for row in orders.open().quarantine(TARGET)] == [13, 33, 53]
    assert orders.ingest() == (0, 0)


def test_a_topic_of_other_records_is_not_read_twice_for_ever(
    orders: Project, fast_batches: list[bool]
) -> None:
    orders.contract(drift="rescue")
    orders.source(batch={"rows": 2})
    orders.server.send(orders.topic, [order(n, extra=1) for n in range(20)])
    assert orders.ingest() == (20, 0)
    assert fast_batches == [False] * 3  # the first, the second, and the fifth of ten


def test_a_contracts_rules_hold_in_both_lanes(orders: Project, fast_batches: list[bool]) -> None:
    orders.source(badShare=0)
    orders.server.send(orders.topic, [order(1), b'{"note": "n"}'])
    with pytest.raises(CheckFailed, match="id is missing"):
        orders.ingest()
    assert fast_batches == [False]
    assert orders.rows("id") == []


def test_a_batch_of_too_many_bytes_streams_through_spark(
    orders: Project, fast_batches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow_reader, "MAX_BATCH_BYTES", 1000)
    orders.server.send(orders.topic, [order(n, note="x" * 300) for n in range(5)])
    assert orders.ingest() == (5, 0)
    assert fast_batches == [False]


def test_offsets_without_a_record_are_left_to_spark(
    orders: Project, fast_batches: list[bool]
) -> None:
    producer = orders.server.producer(transactional_id=f"tx-{orders.topic}")
    producer.init_transactions(30)
    for number, end in enumerate((producer.abort_transaction, producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(orders.topic, order(number), partition=0)
        producer.flush(30)
        end(30)
    assert orders.ingest() == (1, 0)
    assert fast_batches == [False]
    assert orders.rows("id", "_position") == [(1, 2)]


def test_without_the_client_everything_goes_by_spark(
    orders: Project, fast_batches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    orders.server.send(orders.topic, [order(n) for n in range(5)])
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "confluent_kafka", None)
        assert orders.ingest() == (5, 0)
    assert fast_batches == [False]


def test_a_password_is_given_to_both_clients(
    orders: Project, fast_batches: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.servers.kafka import PASSWORD, USER

    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    login = f'{module} required username="{USER}" password="{PASSWORD}";'
    monkeypatch.setenv("KAFKA_LOGIN", login)
    orders.source(
        servers=orders.server.sasl_servers,
        options={
            "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": {"secret": "KAFKA_LOGIN"},
        },
    )  # fmt: skip
    orders.server.send(orders.topic, [order(n) for n in range(5)])
    assert orders.ingest() == (5, 0)
    assert fast_batches == [True]


POINTS = (
    "ingest.read:2", "commit.before:2", "commit.files-written:2", "commit.after:2",
    "ingest.committed-bronze:2", "publish.staged:2", "publish.after:2", "ingest.published:2",
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_each_plain_message_lands_once(
    point: str, orders: Project, spark: Any
) -> None:
    orders.source(batch={"rows": 10})
    sent: Sequence[Message] = [Message(order(n), partition=n % 2) for n in range(24)]
    orders.server.send(orders.topic, sent)
    code = "import thermocline as tc\ntc.open(sys.argv[1]).ingest()"
    died = child(spark, code, str(orders.folder), THERMOCLINE_CRASH_AT=point)
    _, said = died.communicate(timeout=120)
    assert died.returncode == -signal.SIGKILL, f"{point} was not reached:\n{said}"
    orders.ingest()
    assert sorted(orders.rows("id")) == [(n,) for n in range(24)]
    assert orders.ingest() == (0, 0)
