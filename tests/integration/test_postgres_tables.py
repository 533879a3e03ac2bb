"""Silver is the source's table: random tables over all types, random changes, restarts.

`make soak-postgres` runs several seeds of each kind instead of one.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.integration.odcs import HEAD
from tests.integration.postgres_project import BRONZE, ORDERS, RAW, SILVER, Project
from tests.integration.random_tables import THROUGH_CONNECT, RandomTable
from tests.integration.test_postgres_values import giving_back
from tests.servers import connect
from tests.servers.kafka import Kafka

from thermocline.errors import Transient
from thermocline.ingest.source import BatchLimits
from thermocline.ingest.stream import open_ingester

SOAK = int(os.environ.get("SOAK", "0"))
SEEDS = range(SOAK or 1)
ROUNDS = 5 if SOAK else 3
FULL = pytest.mark.parametrize("full", [False, True] if SOAK else [False])


def fitted(shop: Project, table: RandomTable, *, full: bool) -> None:
    """A project whose contracts have all columns as texts: they keep every value."""
    shop.sql("create extension if not exists hstore", *table.make(full=full))
    columns = "".join(f"      - {{name: {c}, physicalType: string}}\n" for c in table.columns)
    columns = "      - {name: n, physicalType: int}\n" + columns
    key = "      - {name: id, physicalType: long, required: true%s}\n"
    contracts = shop.folder / "contracts"
    (contracts / "bronze/raw_orders.odcs.yaml").write_text(
        HEAD.format(name="raw_orders") + BRONZE + key % "" + columns
        + "customProperties:\n  - {property: write, value: append}\n"
        "  - {property: drift, value: rescue}\n"
    )  # fmt: skip
    (contracts / "silver/orders.odcs.yaml").write_text(
        HEAD.format(name="orders") + key % ", primaryKey: true" + columns + SILVER
        + "customProperties:\n"
        "  - {property: write, value: merge}\n"
        "  - {property: orderBy, value: source_lsn}\n"
        "  - {property: deleteWhen, value: \"_op = 'd'\"}\n"
    )  # fmt: skip
    names = ", ".join(["id", "n", *table.columns])
    (shop.folder / "models/silver/orders.sql").write_text(
        f"select {names}, _lsn as source_lsn, _op from bronze.raw_orders"
    )


def changed(shop: Project, table: RandomTable, live: set[int], count: int) -> set[int]:
    for _ in range(count):
        statement, live = table.transaction(live)
        shop.sql(statement)
    return live


def assert_equal(shop: Project, table: RandomTable) -> None:
    """Each cell of silver, given back to Postgres, is the cell of the table."""
    shop.run()
    rows = {row["id"]: row for row in shop.open().table(ORDERS).to_arrow().to_pylist()}
    assert dict(shop.sql("select id, n from orders")) == {k: r["n"] for k, r in rows.items()}
    wrong = []
    for name, type_ in table.columns.items():
        for key, row in rows.items():
            if row[name] is None:
                same, arguments = f"select {name} is null", []
            else:
                given, arguments = giving_back(shop, type_, row[name])
                same = f"select ({given})::text is not distinct from {name}::text"
            if not shop.sql_with(f"{same} from orders where id = {key}", arguments)[0][0]:
                wrong.append((key, type_, str(row[name])[:60]))
    assert wrong == []


@FULL
@pytest.mark.parametrize("seed", SEEDS)
def test_silver_is_the_table(captured: Project, seed: int, full: bool) -> None:
    shop, table = captured, RandomTable(seed)
    fitted(shop, table, full=full)
    chosen = random.Random(seed)
    live = changed(shop, table, set(), 10)
    assert shop.ingest()[1] == 0
    for number in range(ROUNDS):
        live = changed(shop, table, live, chosen.randint(3, 12))
        if chosen.random() < 0.4:
            shop.sql(table.schema_change())
            live = changed(shop, table, live, 3)
        if chosen.random() < 0.2:
            shop.sql("truncate orders")
            live = changed(shop, table, set(), 4)
        lakehouse = shop.open()
        source = lakehouse.sources["orders"]
        limits = BatchLimits(rows=chosen.randint(1, 9))
        with closing(
            open_ingester(lakehouse.lake, source, lakehouse.contracts[RAW], limits=limits)
        ) as it:
            taken = it.ingest_batch()  # as a rule in the middle of a transaction
            assert taken is None or taken.quarantined == 0
        if number % 2 == 0:
            assert shop.ingest()[1] == 0
            assert_equal(shop, table)
    assert shop.ingest()[1] == 0
    assert_equal(shop, table)


@pytest.fixture(scope="module")
def connect_server(
    tmp_path_factory: pytest.TempPathFactory, kafka_server: Kafka
) -> Iterator[connect.Connect]:
    with connect.serve(tmp_path_factory.mktemp("connect"), kafka_server) as server:
        yield server


@FULL
@pytest.mark.parametrize("seed", SEEDS)
def test_silver_is_the_table_through_connect(
    captured: Project, kafka_server: Kafka, connect_server: connect.Connect, seed: int, full: bool
) -> None:
    shop, table = captured, RandomTable(seed, THROUGH_CONNECT)
    fitted(shop, table, full=full)
    shop.source(
        via="connect", connect=connect_server.uri, servers=kafka_server.servers,
        topicPrefix=shop.database,
    )  # fmt: skip
    live = changed(shop, table, set(), 10)
    shop.sql("update orders set n = -1")
    landed(shop)
    for _ in range(2):
        live = changed(shop, table, live, 10)
        shop.sql("update orders set n = n + 100")
        landed(shop)
        assert_equal(shop, table)
    for each in connect_server.get("/connectors"):
        connect_server.delete(each)
    for _ in range(100):
        if not shop.sql("select 1 from pg_replication_slots where active"):
            break
        time.sleep(0.1)


def landed(shop: Project) -> None:
    """Ingest until the source's last change has landed: Debezium writes when it gets to it."""
    deadline, quiet = time.monotonic() + 120, 0
    while time.monotonic() < deadline and quiet < 4:
        try:
            rows, bad = shop.ingest()
        except Transient as error:
            assert "has written nothing yet" in error.cause
            rows, bad = 1, 0
        assert bad == 0
        quiet = 0 if rows else quiet + 1
        time.sleep(0.5)
