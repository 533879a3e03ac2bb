"""The outbox pattern: a table of events, of which each source lands those of its own kind."""

from __future__ import annotations

import json

import pytest
from tests.integration.postgres_project import HEAD, RAW, Project

OUTBOX = """
create table outbox (
    id uuid primary key default gen_random_uuid(),
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    payload jsonb
)
"""
CONTRACT = (
    HEAD.format(name="raw_orders")
    + """\
      - {name: order_id, physicalType: string, required: true}
      - {name: total, physicalType: "decimal(12,2)"}
customProperties:
  - {property: write, value: append}
"""
)


@pytest.fixture
def shop(captured: Project) -> Project:
    captured.sql(OUTBOX)
    (captured.folder / "contracts" / "bronze" / "raw_orders.odcs.yaml").write_text(CONTRACT)
    (captured.folder / "models" / "silver" / "orders.sql").unlink()
    captured.source(tables=["public.outbox"], outbox={"events": ["Order"]})
    return captured


def event(kind: str, key: str, **payload: object) -> str:
    text = json.dumps(payload)
    return (
        "insert into outbox (aggregatetype, aggregateid, type, payload) "
        f"values ('{kind}', '{key}', 'Placed', '{text}')"
    )


def test_events_of_the_wanted_kind_land_with_key_and_id(shop: Project) -> None:
    shop.sql(event("Order", "o-1", order_id="o-1", total="12.50"))
    assert shop.ingest() == (1, 0)
    shop.sql(
        event("Order", "o-2", order_id="o-2", total=3),
        event("Customer", "c-1", name="ann"),
        "delete from outbox",  # as tidy applications do
    )
    assert shop.ingest() == (1, 0)
    found = shop.open().table(RAW).to_arrow().to_pylist()
    found.sort(key=lambda row: row["_position"])
    assert [(row["order_id"], str(row["total"])) for row in found] == [
        ("o-1", "12.50"),
        ("o-2", "3.00"),
    ]
    assert [row["_key"] for row in found] == [b'"o-1"', b'"o-2"']
    for row in found:
        [header] = [each for each in row["_headers"] if each["key"] == "id"]
        assert len(header["value"]) == 36
