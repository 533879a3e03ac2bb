"""Streams: what goes on while others write, when a broker goes away, and how they end."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Event, Timer
from typing import TYPE_CHECKING, Any

import pytest
from tests.integration.attached import COMMAND, child
from tests.integration.kafka_project import TARGET, Project, order
from tests.servers.kafka import Kafka, Message

from thermocline.ingest import marks
from thermocline.ingest.feed import FeedIngester, OtherStream, Pull, open_feed
from thermocline.ingest.kafka.feed import KafkaFeed
from thermocline.ingest.stream import poll_sources

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from thermocline.api import Lakehouse


@pytest.fixture
def orders(project: Path, kafka_server: Kafka) -> Project:
    return Project(project, kafka_server, kafka_server.create(partitions=2))


class Interrupted(KafkaFeed):
    """A feed after whose next pull something else happens, before the batch lands."""

    happens: Callable[[], object] | None = None

    def pull(self, *args: Any) -> Pull | None:
        pulled = super().pull(*args)
        happens, self.happens = self.happens, None
        if happens:
            happens()
        return pulled


def ingester(house: Lakehouse) -> tuple[FeedIngester, Interrupted]:
    source = house.sources["orders"]
    contract = house.contracts[TARGET]
    feed = Interrupted(house.lake, source, contract)
    return FeedIngester(house.lake, source, contract, feed), feed


def test_of_two_streams_one_wins_and_the_other_stops(orders: Project) -> None:
    one, _ = ingester(orders.open())
    other, _ = ingester(orders.open())
    orders.server.send(orders.topic, [order(0)])
    assert one.ingest_batch()
    orders.server.send(orders.topic, [order(1)])
    assert other.ingest_batch()  # takes over where the first one was
    orders.server.send(orders.topic, [order(2)])
    with pytest.raises(OtherStream, match=r"took over orders into bronze.raw_orders"):
        one.ingest_batch()
    assert other.ingest_batch()
    assert orders.rows("id") == [(0,), (1,), (2,)]


def test_two_streams_at_the_same_moment_land_nothing_twice(orders: Project) -> None:
    one, feed = ingester(orders.open())
    other, _ = ingester(orders.open())
    orders.server.send(orders.topic, [order(n) for n in range(4)])
    feed.happens = other.ingest_batch
    with pytest.raises(OtherStream):
        one.ingest_batch()
    assert orders.rows("id") == [(n,) for n in range(4)]


def test_maintenance_and_evolution_go_on_under_a_stream(orders: Project) -> None:
    house = orders.open()
    stream, feed = ingester(house)
    spark = house.lake.spark.session
    for number in range(3):
        orders.server.send(orders.topic, [order(number)])
        assert stream.ingest_batch()
    orders.server.send(orders.topic, [order(3)])
    feed.happens = lambda: spark.sql(
        f"call lake.system.rewrite_data_files(table => '{TARGET}', "
        "options => map('rewrite-all', 'true'))"
    ).collect()
    assert stream.ingest_batch()
    orders.server.send(orders.topic, [order(4)])
    feed.happens = lambda: spark.sql(f"alter table lake.{TARGET} add column extra string")
    assert stream.ingest_batch()
    orders.server.send(orders.topic, [order(5)])
    feed.happens = lambda: spark.sql(
        f"call lake.system.expire_snapshots(table => '{TARGET}', retain_last => 1, "
        "older_than => timestamp '2100-01-01 00:00:00')"
    ).collect()
    assert stream.ingest_batch()
    assert orders.rows("id") == [(n,) for n in range(6)]
    mark = marks.read(house.lake, house.lake.state(TARGET), "orders")
    assert mark is not None
    assert mark.position["topics"][orders.topic]["next"] == {"0": 6, "1": 0}


def test_a_rollback_takes_the_position_back_with_the_rows(orders: Project) -> None:
    house = orders.open()
    stream, _ = ingester(house)
    for number in range(3):
        orders.server.send(orders.topic, [order(number)])
        taken = stream.ingest_batch()
    assert taken is not None
    house.table(TARGET).rollback(house.table(TARGET).history()[1].snapshot)
    assert orders.rows("id") == [(0,), (1,)]
    assert stream.ingest_batch()  # reads again what is no longer there
    assert orders.rows("id") == [(0,), (1,), (2,)]


AWAY = 12.0
"""For so long the broker is away here, in seconds. That a minute and more is waited out as well,
tests/unit/ingest/test_stream.py says of the loop without waiting for it."""


def test_a_broker_that_goes_away_is_waited_for(
    orders: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("thermocline.ingest.kafka.broker.TIMEOUT_MS", 2000)
    house = orders.open()
    source = house.sources["orders"]
    feed = open_feed(house.lake, source, house.contracts[TARGET])
    stream = FeedIngester(house.lake, source, house.contracts[TARGET], feed)
    stop = Event()
    back = Timer(AWAY, orders.server.start)
    pauses: list[float] = []
    landed: list[int] = []
    orders.server.send(orders.topic, [order(0)])
    for beat in poll_sources(house.lake, [stream], every=0.1, stop=stop):
        if beat.failure is not None:
            assert "does not answer" in beat.failure.cause
            assert orders.server.servers in beat.failure.cause
            pauses.append(beat.pause)
        elif beat.batch is not None:
            landed.append(beat.batch.rows)
            if len(landed) == 2:
                stop.set()
                continue
            orders.server.send(orders.topic, [order(1)])  # acknowledged, so it must not be lost
            orders.server.kill()
            back.start()
    back.join()
    assert (landed, pauses[:3]) == ([1, 1], [1, 2, 4])
    stream.close()
    assert orders.rows("id") == [(0,), (1,)]


SILVER = """\
apiVersion: v3.1.0
kind: DataContract
id: test.orders
version: 1.0.0
status: active
schema:
  - name: orders
    properties:
      - {name: id, physicalType: long, required: true, primaryKey: true}
      - {name: amount, physicalType: "decimal(12,2)"}
      - {name: seen, physicalType: timestamptz}
customProperties:
  - {property: write, value: merge}
  - {property: orderBy, value: seen}
"""


def test_the_command_streams_on_to_silver_and_ends_when_asked(
    orders: Project, spark: SparkSession
) -> None:
    for name, text in {
        "contracts/silver/orders.odcs.yaml": SILVER,
        "models/silver/orders.sql": f"select id, amount, _event_time as seen from {TARGET}",
    }.items():
        path = orders.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    arguments = ["stream", "orders", "--then", "silver.orders", "--every", "200ms", "--json"]
    process = child(spark, COMMAND, *arguments, "-C", str(orders.folder))
    assert process.stdout is not None
    orders.server.send(orders.topic, [order(n) for n in range(3)])
    first = json.loads(process.stdout.readline())
    assert (first["rows"], first["quarantined"], first["behind"]) == (3, 0, 0)
    assert (first["batch"], first["ran"], first["files"]) == (1, ["silver.orders"], 1)
    orders.server.send(orders.topic, [order(n) for n in range(1, 5)])
    second = json.loads(process.stdout.readline())
    assert (second["rows"], second["batch"], second["ran"]) == (4, 2, ["silver.orders"])
    assert second["freshness"] < 30
    process.send_signal(signal.SIGTERM)
    rest, said = process.communicate(timeout=60)
    assert (process.returncode, rest) == (0, ""), said
    assert "SIGTERM: ending after the current batch." in said
    silver = orders.open().query("select id, amount from silver.orders order by id")
    assert [row[0] for row in silver.rows] == list(range(5))


POINTS = (
    "commit.files-written:2", "ingest.committed-quarantine:2", "publish.before:2", "publish.after:2"
)  # fmt: skip


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_each_message_lands_once(
    point: str, orders: Project, spark: SparkSession
) -> None:
    orders.source(batch={"rows": 10}, badShare=0.9)
    messages = [order(n) if n % 5 else b"bad %d" % n for n in range(24)]
    orders.server.send(orders.topic, [Message(m, partition=i % 2) for i, m in enumerate(messages)])
    code = "import thermocline as tc\ntc.open(sys.argv[1]).ingest()"
    died = child(spark, code, str(orders.folder), THERMOCLINE_CRASH_AT=point)
    _, said = died.communicate(timeout=120)
    assert died.returncode == -signal.SIGKILL, f"{point} was not reached:\n{said}"
    orders.ingest()
    assert sorted(orders.rows("id")) == [(n,) for n in range(24) if n % 5]
    bad = sorted(row.raw for row in orders.open().quarantine(TARGET))
    assert bad == sorted(f"bad {n}" for n in range(24) if n % 5 == 0)
    assert orders.ingest() == (0, 0)
