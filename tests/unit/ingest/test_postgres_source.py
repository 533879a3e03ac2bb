"""The settings of a Postgres source: what is read, and what is refused with its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from thermocline.contract import load_contracts
from thermocline.errors import ContractError
from thermocline.ingest.postgres.connect_feed import connector_config
from thermocline.ingest.postgres.source import Outbox, PostgresSource
from thermocline.ingest.source import load_sources
from thermocline.transform.models import load_models

GOOD = """\
name: orders
kind: postgres
host: db.example.com
database: shop
user: replicator
password: {secret: SHOP_PASSWORD}
tables: [public.orders, public.order_lines]
target: bronze.raw_orders
"""


def loaded(project: Path, text: str) -> PostgresSource:
    folder = project / "sources"
    folder.mkdir(exist_ok=True)
    (folder / "orders.yaml").write_text(text)
    source = load_sources(folder)["orders"].connection
    assert isinstance(source, PostgresSource)
    return source


def test_a_source_names_its_tables_and_only_names_its_password(tmp_path: Path) -> None:
    source = loaded(tmp_path, GOOD)
    assert source.tables == ("public.orders", "public.order_lines")
    assert source.password == {"secret": "SHOP_PASSWORD"}
    assert (source.port, source.via, source.slot) == (5432, "embedded", None)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("password: hunter2!", "is written in the clear"),
        ("tables: [orders]", "is no table"),
        ("tables: ['public.a, public.b']", "is no table"),
        ("slot: Drop-Table", "cannot be used"),
        ("via: carrier-pigeon", "is not in this version"),
        ("via: connect", "connect: is missing"),
        ("tls: {mode: maybe}", "is no mode"),
        ("options: {slot.name: theirs}", "is not yours to set"),
        ("options: {database.password: x}", "is not yours to set"),
        ("options: {heartbeat.interval.ms: 500}", "are for via: connect"),
        ("outbox: {events: Order}", "must be a list"),
        ("outbox: {evnts: [Order]}", "did you mean"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, line: str, says: str) -> None:
    key = line.split(":")[0]
    kept = [each for each in GOOD.splitlines() if not each.startswith(f"{key}:")]
    with pytest.raises(ContractError) as raised:
        loaded(tmp_path, "\n".join([*kept, line]) + "\n")
    assert says in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_debezium_is_told_of_the_tables_as_names_not_patterns() -> None:
    source = PostgresSource("h", "d", "u", ("public.a+b",))
    config = connector_config(source, "p", "s", "pub")
    assert config["table.include.list"] == r"public\.a\+b"
    assert "database.sslcert" not in config


def test_an_outbox_is_routed_by_debezium() -> None:
    source = PostgresSource(
        "h", "d", "u", ("public.outbox",), outbox=Outbox(("Order",), key="order_id")
    )
    config = connector_config(source, "p", "s", "pub")
    assert config["transforms.outbox.type"] == "io.debezium.transforms.outbox.EventRouter"
    assert config["transforms.outbox.table.field.event.key"] == "order_id"


def test_the_example_is_a_project_whose_parts_fit() -> None:
    example = Path(__file__).parents[3] / "examples" / "shop-cdc"
    contracts = load_contracts(example / "contracts")
    sources = load_sources(example / "sources")
    assert {name: source.target for name, source in sources.items()} == {
        "orders": "bronze.raw_orders",
        "order_events": "bronze.raw_order_events",
    }
    assert all(source.target in contracts for source in sources.values())
    assert list(load_models(example / "models", contracts)) == ["silver.orders"]
