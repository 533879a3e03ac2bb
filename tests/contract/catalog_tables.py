"""The tables that the catalog suite works with, and how it writes and reads them without Spark."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa

from thermocline.contract import Column, Contract, DriftMode, PartitionField, SortField
from thermocline.contract.types import Decimal, Field, Fixed, List, Map, Primitive, Struct
from thermocline.lake import Lake
from thermocline.lake.metadata import MAIN

STRING = Primitive("string")

EVERY_TYPE = Contract(
    "silver.every_type",
    (
        Column("id", Primitive("long"), True, doc="the key's first part"),
        Column("country", STRING, True),
        *(
            Column(f"a_{name}", Primitive(name))
            for name in (
                "boolean", "int", "float", "double", "date", "time", "timestamp", "timestamptz",
                "uuid", "binary",
            )
        ),
        Column("a_decimal", Decimal(38, 10)),
        Column("a_fixed", Fixed(16)),
        Column("born", Primitive("date")),
        Column("paid", Primitive("timestamp")),
        Column(
            "address",
            Struct(
                (
                    Field("city", STRING, True, doc="where"),
                    Field("places", List(Struct((Field("x", Primitive("double"), True),)))),
                )
            ),
        ),
        Column("tags", List(STRING, element_required=True)),
        Column("prices", Map(STRING, Decimal(12, 2), value_required=True)),
    ),
    key=("id", "country"),
    partition=(
        PartitionField("country"),
        PartitionField("a_date", "year"),
        PartitionField("born", "month"),
        PartitionField("paid", "day"),
        PartitionField("a_timestamptz", "hour"),
        PartitionField("id", "bucket", 8),
        PartitionField("a_decimal", "truncate", 10),
    ),
    sort=(SortField("paid", descending=True), SortField("id")),
)  # fmt: skip

ORDERS = Contract(
    "silver.orders",
    (
        Column("id", Primitive("long"), True),
        Column("note", STRING, True),
        Column("quantity", Primitive("int")),
        Column("weight", Primitive("float")),
        Column("amount", Decimal(9, 2)),
        Column("placed", Primitive("date")),
        Column("old", STRING),
    ),
    key=("id",),
    partition=(PartitionField("placed", "day"),),
)


def orders(table: str = "silver.orders", **changed: Any) -> Contract:
    """The contract of orders, under another name or with other parts."""
    return replace(ORDERS, table=table, **changed)


def evolved() -> Contract:
    """Orders after every change that is allowed: renamed, dropped, promoted, relaxed, reordered."""
    return orders(
        version="2.0.0",
        columns=(
            Column("id", Primitive("long"), True),
            Column("amount", Decimal(12, 2), doc="what the customer paid"),
            Column("title", STRING, renamed_from="note"),
            Column("channel", STRING),
            Column("quantity", Primitive("long")),
            Column("weight", Primitive("double")),
            Column("placed", Primitive("date")),
        ),
        dropped=("old",),
        partition=(PartitionField("placed", "month"), PartitionField("id", "bucket", 4)),
        sort=(SortField("amount", descending=True),),
    )


def wanted_by(worker: int) -> Contract:
    """Orders with a column that only this worker's contract names; what others add stays."""
    mine = Column(f"by_{worker}", STRING)
    return orders(columns=(*ORDERS.columns, mine), drift=DriftMode.ADD)


def order(number: int) -> dict[str, Any]:
    """One order as its first contract has it."""
    return {
        "id": number,
        "note": f"n{number}",
        "quantity": number,
        "weight": number + 0.5,
        "amount": Number(number).quantize(Number("0.01")),
        "placed": date(2026, 1, number % 28 + 1),
        "old": "x",
    }


def append(lake: Lake, table: str, *rows: dict[str, Any], branch: str = MAIN) -> int:
    """Write rows with PyIceberg; says which snapshot that made."""
    found = lake.iceberg(table)
    found.append(pa.Table.from_pylist(list(rows), found.schema().as_arrow()), branch=branch)
    snapshot = lake.state(table).head(branch)
    assert snapshot is not None
    return snapshot


def add_orders(lake: Lake, table: str, *numbers: int, branch: str = MAIN) -> int:
    """Write orders with PyIceberg; says which snapshot that made."""
    return append(lake, table, *map(order, numbers), branch=branch)


def rows(lake: Lake, table: str, snapshot: int | None = None) -> list[dict[str, Any]]:
    """What PyIceberg reads, in the order of the id."""
    found: pa.Table = lake.iceberg(table).scan(snapshot_id=snapshot).to_arrow()
    return list(found.sort_by("id").to_pylist())


def ids(lake: Lake, table: str, snapshot: int | None = None) -> list[int]:
    """The ids that PyIceberg reads."""
    return [row["id"] for row in rows(lake, table, snapshot)]


def duck_rows(lake: Lake, table: str) -> list[dict[str, Any]]:
    """What DuckDB reads on main, in the order of the id."""
    state = lake.state(table)
    lake.duck.view("seen", state.metadata_location, state.head() or 0)
    return list(lake.duck.query("select * from seen order by id").to_pylist())
