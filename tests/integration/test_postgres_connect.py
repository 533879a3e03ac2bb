"""Change data capture through Kafka Connect: Debezium there, our Kafka feed here."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from tests.integration.odcs import HEAD
from tests.integration.postgres_project import BRONZE, SILVER, Project
from tests.servers import connect
from tests.servers.kafka import Kafka
from tests.servers.postgres import PASSWORD

from thermocline.errors import Permanent, Transient


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


LARGE = """
drop table orders;
create table orders (
    id int primary key, n int not null, customer text not null, photo bytea not null, doc jsonb,
    scores int[], ids uuid[], tags text[]
);
"""
STORED = "; ".join(
    f"alter table orders alter {name} set storage external"
    for name in ("customer", "photo", "doc", "scores", "ids", "tags")
)
INSERT = """
insert into orders select {id}, 0, string_agg(md5(random()::text), ''),
    decode(string_agg(md5(random()::text), ''), 'hex'),
    to_jsonb(string_agg(md5(random()::text), '')), array_agg((random() * 1e9)::int),
    array_agg(gen_random_uuid()), array_agg(md5(random()::text))
from generate_series(1, 1500) g
"""
COLUMNS = """\
      - {name: id, physicalType: long, required: true%s}
      - {name: n, physicalType: int}
      - {name: customer, physicalType: string}
      - {name: photo, physicalType: binary}
      - {name: doc, physicalType: string}
      - {name: scores, logicalType: array, items: {physicalType: int}}
      - {name: ids, logicalType: array, items: {physicalType: string}}
      - {name: tags, logicalType: array, items: {physicalType: string}}
"""
NAMES = "id, n, customer, photo, doc, scores, ids, tags"


@pytest.fixture
def large(shop: Project) -> Project:
    """A table whose values are kept apart from their rows, and not sent again."""
    shop.sql(LARGE, STORED)
    contracts = shop.folder / "contracts"
    (contracts / "bronze/raw_orders.odcs.yaml").write_text(
        HEAD.format(name="raw_orders") + BRONZE + COLUMNS % ""
        + "customProperties:\n  - {property: write, value: append}\n"
    )  # fmt: skip
    (contracts / "silver/orders.odcs.yaml").write_text(
        HEAD.format(name="orders") + COLUMNS % ", primaryKey: true" + SILVER
        + "customProperties:\n"
        "  - {property: write, value: merge}\n"
        "  - {property: orderBy, value: source_lsn}\n"
        "  - {property: deleteWhen, value: \"_op = 'd'\"}\n"
    )  # fmt: skip
    (shop.folder / "models/silver/orders.sql").write_text(
        f"select {NAMES}, _lsn as source_lsn, _op from bronze.raw_orders"
    )
    return shop


def test_a_large_value_that_was_not_sent_again_is_kept(large: Project) -> None:
    large.sql(INSERT.format(id=1), INSERT.format(id=2))
    land(large, 2)
    large.sql(
        "update orders set n = 1",
        "update orders set customer = '__debezium_unavailable_value' where id = 1",
        "begin; update orders set id = 3 where id = 2; update orders set n = 5; commit",
        "delete from orders where id = 1",
        INSERT.format(id=1),
        "update orders set n = 6",
    )
    land(large, 2 + 1 + 2 + 2 + 1 + 1 + 2)
    large.run()
    wanted = large.sql(
        "select id, n, customer, photo, doc::text, scores, ids::text[], tags from orders "
        "order by id"
    )
    found = [tuple(row) for row in large.silver()]
    assert found == [tuple(bytes(v) if isinstance(v, memoryview) else v for v in w) for w in wanted]


def test_what_debezium_does_not_say_is_refused_at_the_start(large: Project) -> None:
    large.sql("alter table orders add column prices float8[]")
    with pytest.raises(Permanent) as raised:
        large.ingest()
    assert "prices of public.orders is of type float8[]" in raised.value.cause
    assert "alter table public.orders replica identity full" in raised.value.next_step
