"""A small lake without Spark: days of orders, customers without a time, and revenue by day."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from thermocline.config import load_settings
from thermocline.lake import Lake

SETTINGS = '[lake]\nname = "served"\n[engine.duckdb]\nmemory_limit = "256MB"\n'
DAYS = 30
PER_DAY = 40

ORDERS = Schema(
    NestedField(1, "order_id", LongType(), required=True),
    NestedField(2, "ordered_at", TimestamptzType()),
    NestedField(3, "customer_id", LongType()),
    NestedField(4, "amount", DecimalType(12, 2)),
    NestedField(5, "note", StringType()),
)
CUSTOMERS = Schema(
    NestedField(1, "customer_id", LongType(), required=True),
    NestedField(2, "city", StringType()),
)
REVENUE = Schema(NestedField(1, "day", DateType()), NestedField(2, "revenue", DecimalType(18, 2)))


def today() -> datetime:
    """Midnight, UTC."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def order(number: int, at: datetime) -> dict[str, Any]:
    """An order whose content follows from its number."""
    return {
        "order_id": number,
        "ordered_at": at + timedelta(microseconds=number % 1_000_000),
        "customer_id": number % 10,
        "amount": Decimal(number % 5000) / 100,
        "note": None if number % 7 == 0 else f"n°{number} “quoted”, comma\n",
    }


def orders_of(day: int) -> list[dict[str, Any]]:
    """The orders of a day, counted back from today."""
    at = today() - timedelta(days=day)
    return [order(day * PER_DAY + n, at + timedelta(minutes=30 * n)) for n in range(PER_DAY)]


def build(project: Path, **environ: str) -> Lake:
    """Make the project and its tables, where the environment says."""
    project.mkdir(parents=True, exist_ok=True)
    (project / "thermocline.toml").write_text(SETTINGS)
    lake = Lake(load_settings(project, environ=environ))
    for layer in ("silver", "gold"):
        lake.catalog.create_namespace(layer)
    by_day = PartitionSpec(PartitionField(2, 1000, DayTransform(), "ordered_at_day"))
    lake.catalog.create_table("silver.orders", ORDERS, partition_spec=by_day)
    lake.catalog.create_table("silver.customers", CUSTOMERS)
    by_date = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "day"))
    lake.catalog.create_table("gold.revenue", REVENUE, partition_spec=by_date)
    rows = [row for day in range(DAYS) for row in orders_of(day)]
    append(lake, "silver.orders", rows)
    cities = ["Bern", "Oslo", "Zürich", None, "São Paulo"]
    append(lake, "silver.customers", [{"customer_id": n, "city": cities[n % 5]} for n in range(10)])
    append(lake, "gold.revenue", [
        {"day": date_of(day), "revenue": sum((r["amount"] for r in orders_of(day)), Decimal(0))}
        for day in range(DAYS)
    ])  # fmt: skip
    return lake


def date_of(day: int) -> date:
    """The date of a day, counted back from today."""
    return (today() - timedelta(days=day)).date()


def append(lake: Lake, table: str, rows: list[dict[str, Any]]) -> int:
    """Append rows; the new snapshot."""
    iceberg = lake.iceberg(table)
    iceberg.append(pa.Table.from_pylist(rows, schema=iceberg.schema().as_arrow()))
    return head(lake, table)


def head(lake: Lake, table: str) -> int:
    """The newest snapshot of a table."""
    found = lake.state(table).head()
    assert found is not None
    return found
