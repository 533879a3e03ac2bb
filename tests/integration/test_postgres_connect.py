"""Change data capture through Kafka Connect: Debezium there, our Kafka feed here."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.integration.postgres_project import Project
from tests.servers import connect
from tests.servers.kafka import Kafka
from tests.servers.postgres import PASSWORD

from thermocline.errors import Transient


@pytest.fixture(scope="module")
def connect_server(
    tmp_path_factory: pytest.TempPathFactory, kafka_server: Kafka
) -> Iterator[connect.Connect]:
    with connect.serve(tmp_path_factory.mktemp("connect"), kafka_server) as server:
        yield server


@pytest.fixture
def shop(
    captured: Project, kafka_server: Kafka, connect_server: connect.Connect
) -> Iterator[Project]:
    captured.source(
        via="connect",
        connect=connect_server.uri,
        servers=kafka_server.servers,
        topicPrefix=captured.database,
    )
    yield captured
    for each in connect_server.get("/connectors"):
        connect_server.delete(each)
    for _ in range(100):
        if not captured.sql("select 1 from pg_replication_slots where active"):
            break
        time.sleep(0.1)


def land(shop: Project, rows: int) -> None:
    """Ingest until so many rows have landed: Debezium writes when it gets to it."""
    landed, deadline = 0, time.monotonic() + 60
    while landed < rows and time.monotonic() < deadline:
        try:
            landed += shop.ingest()[0]
        except Transient as error:
            assert "has written nothing yet" in error.cause
        time.sleep(0.3)
    assert landed == rows


def test_changes_come_through_connect_and_silver_equals_the_source(
    shop: Project, connect_server: connect.Connect
) -> None:
    shop.sql(
        "insert into orders (id, customer, due) values (1, 'ann', '2024-02-29'), (2, 'b', null)"
    )
    land(shop, 2)
    shop.sql(
        "begin; insert into orders values (3, 'c'); update orders set id = 4 where id = 3; commit",
        "update orders set customer = 'bob' where id = 2",
        "delete from orders where id = 1",
    )
    land(shop, 5)
    shop.run()
    assert shop.silver() == shop.truth()
    changes = shop.bronze("_op", "id", "_source_file")
    topic = f"{shop.database}.public.orders/0"
    assert sorted(row[:2] for row in changes) == sorted(
        [("r", 1), ("r", 2), ("c", 3), ("d", 3), ("c", 4), ("u", 2), ("d", 1)]
    )
    assert {row[2] for row in changes} == {topic}
    assert PASSWORD not in connect_server.log.read_text(errors="replace")
