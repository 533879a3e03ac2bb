"""What a good contract says."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from thermocline.contract import (
    Column,
    Contract,
    DriftMode,
    PartitionField,
    SortField,
    UpdateMode,
    WriteMode,
    load_contract,
    load_contracts,
)
from thermocline.contract.types import Decimal, Field, List, Map, Primitive, Struct
from thermocline.errors import ContractError, NotFound

TOUR = """\
apiVersion: v3.1.0
kind: DataContract
id: shop.silver.orders
version: 1.2.0
status: active
description: {purpose: All orders.}
tags: [daily, finance]
schema:
  - name: orders
    tags: [daily, pii]
    properties:
      - {name: order_id,   logicalType: string,    required: true, primaryKey: true}
      - {name: order_date, logicalType: timestamp, physicalType: timestamptz, required: true,
         partitioned: true, customProperties: [{property: transform, value: day}]}
      - {name: net_amount, logicalType: number,    physicalType: "decimal(12,2)"}
      - {name: customer_email, logicalType: string, classification: pii.direct}
      - {name: updated_at, physicalType: timestamptz, description: "  when it changed\\n"}
    quality:
      - {metric: duplicateValues, arguments: {properties: [order_id]}, mustBe: 0}
      - {type: sql, query: "select count(*) from {object} where net_amount < 0", mustBe: 0}
slaProperties:
  - {property: latency, value: 5, unit: m, element: updated_at}
  - {property: retention, value: 30, unit: d}
  - {property: availability, value: "99.9"}
customProperties:
  - {property: write, value: merge}
  - {property: orderBy, value: updated_at}
  - {property: deleteWhen, value: "_op = 'd'"}
  - {property: updates, value: merge-on-read}
  - {property: drift, value: rescue}
  - {property: dropped, value: [old_total]}
  - {property: sortBy, value: [order_date desc, order_id]}
  - {property: hot, value: 7d}
  - {property: history, value: 36h}
  - {property: costCentre, value: 4711}
  - {property: writer, value: elsewhere, vendor: soda}
"""


def test_a_z_order_replaces_the_sort_order(write):
    order = "value: [order_date desc, order_id]"
    for text in (
        'value: "zorder(order_id,  order_date)"',
        'value: ["ZORDER (order_id, order_date)"]',
    ):
        contract = load_contract(write(TOUR.replace(order, text)))
        assert contract.cluster == ("order_id", "order_date")
        assert contract.sort == ()


def test_the_tours_contract(write):
    path = write(TOUR)
    contract = load_contract(path)
    assert contract == Contract(
        table="silver.orders",
        id="shop.silver.orders",
        version="1.2.0",
        status="active",
        description="All orders.",
        columns=(
            Column("order_id", Primitive("string"), required=True),
            Column("order_date", Primitive("timestamptz"), required=True),
            Column("net_amount", Decimal(12, 2)),
            Column("customer_email", Primitive("string"), classification="pii.direct"),
            Column("updated_at", Primitive("timestamptz"), doc="when it changed"),
        ),
        key=("order_id",),
        partition=(PartitionField("order_date", "day"),),
        sort=(SortField("order_date", descending=True), SortField("order_id")),
        write=WriteMode.MERGE,
        order_by=("updated_at",),
        delete_when="_op = 'd'",
        updates=UpdateMode.MERGE_ON_READ,
        drift=DriftMode.RESCUE,
        dropped=("old_total",),
        rules=contract.rules,
        freshness=timedelta(minutes=5),
        freshness_column="updated_at",
        retention=timedelta(days=30),
        tags=("daily", "finance", "pii"),
        hot=timedelta(days=7),
        history=timedelta(hours=36),
    )
    assert [rule.kind for rule in contract.rules] == ["duplicates", "sql"]
    assert contract.path == path
    assert [column.line for column in contract.columns] == [12, 13, 15, 16, 17]
    assert [rule.line for rule in contract.rules] == [19, 20]
    assert contract.partition[0].line == 14


def test_logical_types_without_physical_ones(load):
    contract = load("""\
        - {name: a, logicalType: string}
        - {name: b, logicalType: integer}
        - {name: c, logicalType: integer, logicalTypeOptions: {format: i32}}
        - {name: d, logicalType: number}
        - {name: e, logicalType: number, logicalTypeOptions: {format: f32}}
        - {name: f, logicalType: boolean}
        - {name: g, logicalType: date}
        - {name: h, logicalType: time}
        - {name: i, logicalType: timestamp}
        - {name: j, logicalType: timestamp, logicalTypeOptions: {timezone: true}}
        - {name: k, logicalType: array, items: {logicalType: integer, required: true}}
        - {name: l, logicalType: map, map: {key: {logicalType: string}, value: {physicalType: int}}}
        """)
    assert [str(column.type) for column in contract.columns] == [
        "string", "long", "int", "double", "float", "boolean", "date", "time", "timestamp",
        "timestamptz", "list<long not null>", "map<string, int>",
    ]  # fmt: skip


def test_a_physical_type_wins_over_the_logical_one(load):
    contract = load("- {name: day, logicalType: date, physicalType: string}\n")
    assert contract.columns == (Column("day", Primitive("string")),)


def test_nested_properties(load):
    contract = load("""\
        - name: items
          logicalType: array
          physicalType: array
          items:
            logicalType: object
            required: true
            properties:
              - {name: sku, logicalType: string, required: true, description: stock unit}
              - {name: price, physicalType: "decimal(10,2)", classification: internal,
                 customProperties: [{property: renamedFrom, value: cost}]}
        - {name: labels, physicalType: "map<string, list<int>>"}
        """)
    items, labels = contract.columns
    assert items.type == List(
        Struct(
            (
                Field("sku", Primitive("string"), required=True, doc="stock unit"),
                Field("price", Decimal(10, 2)),
            )
        ),
        element_required=True,
    )
    price = items.type.element.fields[1]
    assert (price.classification, price.renamed_from, price.line) == ("internal", "cost", 16)
    assert labels.type == Map(Primitive("string"), List(Primitive("int")))


def test_positions_order_the_key_and_the_partitions(load):
    contract = load("""\
        - {name: a, logicalType: string, required: true, primaryKey: true, primaryKeyPosition: 2,
           partitioned: true, partitionKeyPosition: 2,
           customProperties: [{property: transform, value: "bucket[16]"}]}
        - {name: b, logicalType: string, required: true, primaryKey: true, primaryKeyPosition: 1,
           partitioned: true, partitionKeyPosition: 1,
           customProperties: [{property: transform, value: truncate(4)}]}
        - {name: c, logicalType: integer, required: true, primaryKey: true, partitioned: true}
        """)
    assert contract.key == ("b", "a", "c")
    assert contract.partition == (
        PartitionField("b", "truncate", 4), PartitionField("a", "bucket", 16), PartitionField("c"),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "span"),
    [
        ("{value: 36, unit: h}", timedelta(hours=36)),
        ("{value: 1.5, unit: days}", timedelta(hours=36)),
        ("{value: 2, unit: mo}", timedelta(days=60)),
        ("{value: 7, unit: yr}", timedelta(days=7 * 365)),
        ("{value: 1d12h}", timedelta(hours=36)),
        ("{value: P1DT12H}", timedelta(hours=36)),
        ("{value: PT5M}", timedelta(minutes=5)),
    ],
)
def test_spans_of_time(load, written, span):
    entry = written.replace("{", "{property: retention, ")
    assert load(rest=f"slaProperties: [{entry}]\n").retention == span


def test_system_columns_may_be_declared_as_they_are(load):
    contract = load("""\
        - {name: _ingested_at, physicalType: timestamptz, partitioned: true,
           customProperties: [{property: transform, value: day}]}
        - {name: _op, logicalType: string}
        """)
    assert [column.name for column in contract.columns] == ["_ingested_at", "_op"]


def test_settings_may_stand_at_the_schema_as_well(load):
    setting = "customProperties: [{property: write, value: replace}]\n"
    assert load(schema=setting).write is WriteMode.REPLACE


def test_but_not_at_both(problems):
    setting = "customProperties: [{property: write, value: replace}]\n"
    assert problems(schema=setting, rest=setting) == [
        "15  write: is set both for the contract and for its schema"
    ]


def test_a_folder_of_contracts(write, tmp_path):
    write(TOUR)
    write(TOUR.replace("name: orders", "name: raw_orders"), "bronze/raw_orders")
    (tmp_path / "contracts" / ".hidden.yaml").write_text("not: [a contract")
    (tmp_path / "contracts" / "README.md").write_text("read me")
    contracts = load_contracts(tmp_path / "contracts")
    assert list(contracts) == ["bronze.raw_orders", "silver.orders"]
    assert contracts["bronze.raw_orders"].layer == "bronze"
    assert [c.name for c in contracts["bronze.raw_orders"].table_columns][-5:] == [
        "_source", "_source_file", "_position", "_ingested_at", "_rescued",
    ]  # fmt: skip
    assert load_contracts(tmp_path / "nothing") == {}


def test_all_problems_of_all_files_come_together(write, tmp_path):
    write(TOUR.replace("decimal(12,2)", "decimal(50,2)").replace("value: merge}", "value: mrege}"))
    write(TOUR, "gold/revenue")
    write("a: [", "gold/broken")
    (tmp_path / "contracts" / "loose.odcs.yaml").write_text(TOUR)
    (tmp_path / "contracts" / "gold" / "forgotten.yaml").write_text(TOUR)
    with pytest.raises(ContractError) as caught:
        load_contracts(tmp_path / "contracts")
    texts = [str(problem) for problem in caught.value.problems]
    assert texts[0].startswith("contracts/gold/broken.odcs.yaml:2  not YAML: ")
    assert texts[1:] == [
        "contracts/gold/forgotten.yaml  is not read as a contract; "
        "name it forgotten.odcs.yaml, or keep it elsewhere",
        'contracts/gold/revenue.odcs.yaml:9  schema: the table is "orders" but the file is '
        '"revenue.odcs.yaml"; name the file orders.odcs.yaml',
        "contracts/loose.odcs.yaml  belongs to no layer; "
        "put it into a folder named after its layer, such as contracts/silver/",
        'contracts/silver/orders.odcs.yaml:15  net_amount: unknown type "decimal(50,2)"; '
        "precision must be at most 38",
        'contracts/silver/orders.odcs.yaml:26  write: unknown value "mrege"; did you mean "merge"?',
    ]
    assert caught.value.next_step == "Fix these 6 problems in the contract. Nothing was written."
    assert caught.value.as_dict()["error"]["details"]["problems"] == texts


def test_references_are_checked_against_the_other_contracts(write, tmp_path):
    def referring(to: str) -> str:
        link = f"relationships: [{{to: {to}}}]"
        return TOUR.replace("classification: pii.direct", link)

    customers = TOUR.replace("name: orders", "name: customers")
    write(customers, "silver/customers")
    write(referring("customers.order_id"))
    contract = load_contracts(tmp_path / "contracts")["silver.orders"]
    assert contract.rules[0].argument("table") == "silver.customers"

    write(referring("custmers.order_id"))
    with pytest.raises(ContractError) as caught:
        load_contracts(tmp_path / "contracts")
    assert [str(problem) for problem in caught.value.problems] == [
        "contracts/silver/orders.odcs.yaml:16  customer_email: "
        'silver.custmers has no contract; did you mean "silver.customers"?'
    ]

    write(referring("silver.customers.id"))
    with pytest.raises(ContractError, match=r'silver\.customers has no column "id"'):
        load_contracts(tmp_path / "contracts")

    # What a broken contract promises is not known, so nothing is said about references to it.
    write(customers.replace("12,2", "99,2"), "silver/customers")
    with pytest.raises(ContractError) as caught:
        load_contracts(tmp_path / "contracts")
    assert [problem.path for problem in caught.value.problems] == [
        "contracts/silver/customers.odcs.yaml"
    ]


def test_two_contracts_of_one_table_are_refused(write, tmp_path):
    write(TOUR)
    write(TOUR, "SILVER/orders")
    with pytest.raises(ContractError) as caught:
        load_contracts(tmp_path / "contracts")
    assert str(caught.value.problems[0]) == (
        "contracts/silver/orders.odcs.yaml:1  silver.orders has two contracts; "
        "the other is contracts/SILVER/orders.odcs.yaml"
    )


def test_a_missing_file_is_not_found(tmp_path: Path):
    with pytest.raises(NotFound, match="There is no contract at"):
        load_contract(tmp_path / "silver" / "orders.odcs.yaml")
