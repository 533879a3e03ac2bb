"""The shop's tables by its own contracts, with rows that are as awkward as the contracts allow.

Keys meet each other as in the shop, whatever may be null sometimes is, and times lie around the
moment from which on tables are hot: on it, and a microsecond to either side.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from tests.integration.serve import awkward
from tests.integration.serve.awkward import EDGE
from tests.integration.serve.nodes.keeping import delete_positions

from thermocline.contract import load_contracts

if TYPE_CHECKING:
    from thermocline.lake import Lake

CONTRACTS = Path(__file__).parents[3] / "examples" / "shop" / "contracts"
ROWS = {
    "silver.customers": 60, "silver.products": 30, "silver.orders": 180, "silver.sessions": 150,
    "gold.daily_revenue": 8, "gold.daily_metrics": 40, "gold.funnel_metrics": 24,
    "gold.user_features": 40,
}  # fmt: skip
MORE = {"silver.orders": 40, "silver.sessions": 30, "silver.customers": 10, "gold.daily_metrics": 5}
"""Rows that come while the tables are served."""
CUSTOMERS, PRODUCTS, DAYS = 40, 30, 8
STATUSES = ("pending", "processing", "shipped", "delivered", "cancelled")
DEVICES = ("desktop", "mobile", "tablet")
CHOICES: dict[str, tuple[str, ...]] = {
    "order_status": STATUSES, "device": DEVICES, "color": ("red", "Red", "black", "blue"),
    "segment": ("consumer", "small_business", "enterprise", "vip"),
    "country": ("CH", "NO", "BR", "JP"), "shipping_country": ("CH", "NO", "BR", "JP"),
    "category": ("books", "toys", "garden", "Möbel"),
    "payment_method": ("card", "invoice", "wallet"),
    "city": ("Zürich", "Oslo", "São Paulo", "東京", ""),
    "shipping_city": ("Zürich", "Oslo", "São Paulo", "東京", ""),
    "metric_type": ("daily", "segment", "category"),
}  # fmt: skip
CENTS = (0, 1, -1, 5, 110, 250, 333, 999, 9999, 10000, 123456, 77777)
TEXTS = tuple(text for text in awkward.TEXTS if text is not None)


class Rows:
    """Makes rows by chance; the same ones from the same seed."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._keys: dict[str, Callable[[int], Any]] = {
            "order_id": lambda n: f"ORD-{n:09d}",
            "session_id": lambda n: f"CUST-{n % CUSTOMERS:08d}/{n}",
            "product_id": lambda n: f"PROD-{n % PRODUCTS:06d}",
            "sku": lambda n: f"SKU-{n}",
            "source_lsn": lambda n: n,
            "customer_id": self._customer,
            "user_id": self._customer,
            "day": self._nth_day,
            "metric_date": self._nth_day,
            "dimension_key": lambda n: "all" if n % 5 == 0 else f"key {n % 5 % 2}",
            "dimension_value": lambda n: f"value {n % 5}",
        }
        self._table = ""

    def of(self, table: str, schema: pa.Schema, first: int, count: int) -> pa.Table:
        """So many rows of a table, from a number on."""
        self._table = table
        rows = [{field.name: self._cell(field, n) for field in schema}
                for n in range(first, first + count)]  # fmt: skip
        return pa.Table.from_pylist(rows, schema=schema)

    def _cell(self, field: pa.Field, n: int) -> Any:
        made = self._keys.get(field.name)
        if made is not None:
            return made(n)
        if self._table == "gold.funnel_metrics" and field.name == "device":
            return DEVICES[n % len(DEVICES)]
        if field.nullable and self._chance.random() < 0.2:
            return None
        if field.name in CHOICES:
            return self._chance.choice(CHOICES[field.name])
        return self._by_type(field.type)

    def _by_type(self, kind: pa.DataType) -> Any:
        pick = self._chance.choice
        if pa.types.is_boolean(kind):
            return pick((True, False))
        if pa.types.is_integer(kind):
            return pick((0, 1, 1, 2, 3, 5, 8, 24, 3600))
        if pa.types.is_decimal(kind):
            fitting = [cents for cents in CENTS if abs(cents) < 10**kind.precision]
            return Decimal(pick(fitting)).scaleb(-kind.scale)
        if pa.types.is_date(kind):
            return self._day(pick(range(DAYS)))
        if pa.types.is_timestamp(kind):
            moved = EDGE + timedelta(days=pick((-2, 0, 0, 1))) + pick(awkward.STEPS)
            return moved.replace(tzinfo=UTC) if kind.tz else moved
        if pa.types.is_list(kind) or pa.types.is_large_list(kind):
            return [self._by_type(kind.value_type) for _ in range(pick((0, 1, 2, 3)))]
        if pa.types.is_struct(kind):
            return {each.name: self._cell(each, pick(range(99))) for each in kind}
        return pick(TEXTS)

    def _customer(self, n: int) -> str:
        # Every customer once where it is the key; elsewhere some have much and others nothing.
        alone = self._table in ("gold.user_features", "silver.customers")
        number = n % CUSTOMERS if alone else self._chance.choice(range(0, CUSTOMERS + 3, 2))
        return f"CUST-{number:08d}"

    def _nth_day(self, n: int) -> date:
        """As many rows for each day as the table has at first."""
        return self._day(n * DAYS // ROWS[self._table])

    def _day(self, n: int) -> date:
        return (EDGE + timedelta(days=n - DAYS // 2)).date()


def build(lake: Lake) -> None:
    """Make the tables; each has one commit with rows."""
    rows = Rows(seed=7)
    for table, contract in load_contracts(CONTRACTS).items():
        if table in ROWS:
            lake.ensure(contract)
            _append(lake, table, rows, 0, ROWS[table])


def stir(lake: Lake) -> None:
    """Commits to the tables that change every day: rows are added, of orders some deleted."""
    rows = Rows(seed=8)
    for table, count in MORE.items():
        _append(lake, table, rows, ROWS[table], count)
    orders = lake.iceberg("silver.orders")
    files = [task.file.file_path for task in orders.scan().plan_files()]
    delete_positions(lake, orders, dict.fromkeys(files, (0,)))


def _append(lake: Lake, table: str, rows: Rows, first: int, count: int) -> None:
    iceberg = lake.iceberg(table)
    iceberg.append(rows.of(table, iceberg.schema().as_arrow(), first, count))
