"""The shop's default first load, read back by plain Python: no part of the generator helps."""

from __future__ import annotations

import csv
import gzip
import importlib.util
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow.parquet as pq
import pytest

SHOP = Path(__file__).resolve().parents[3] / "examples" / "shop"
STATUSES = {"pending", "processing", "shipped", "delivered", "cancelled"}
SEGMENTS = {"consumer", "small_business", "enterprise", "vip"}
STAGES = {"page_view", "product_view", "add_to_cart", "checkout", "purchase"}
CENT = Decimal("0.01")

Row = dict[str, Any]


@dataclass
class Landed:
    """The rows of one table's files: the sound ones in the order of arrival, the bad by reason."""

    rows: list[Row] = field(default_factory=list)
    bad: Counter[str] = field(default_factory=Counter)


@pytest.fixture(scope="session")
def generator() -> Iterator[ModuleType]:
    """examples/shop/generate.py, loaded by its path as `thermo demo` does."""
    spec = importlib.util.spec_from_file_location("shop_generate_test", SHOP / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    before = list(sys.path)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    sys.path[:] = before
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="session")
def first_load(generator: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The default generation: its folder and its summary."""
    folder = tmp_path_factory.mktemp("shop")
    return folder, generator.generate(folder)


@pytest.fixture(scope="session")
def read() -> Callable[..., Landed]:
    """Reads the landing files of one table, of all batches or of one."""

    def read_table(folder: Path, table: str, batch: int | None = None) -> Landed:
        landed = Landed()
        part = "*" if batch is None else f"{batch:03d}"
        for path in sorted((folder / "landing" / table).glob(f"{table}-{part}-*")):
            for record in _records(path):
                fault = "malformed" if record is None else _FAULTS[table](record)
                if record is None or fault is not None:
                    landed.bad[fault or "malformed"] += 1
                else:
                    landed.rows.append(record)
        return landed

    return read_table


@pytest.fixture(scope="session")
def landing(first_load: Any, read: Callable[..., Landed]) -> dict[str, Landed]:
    """The default first load, a table at a time."""
    folder, summary = first_load
    return {table: read(folder, table) for table in summary.tables}


def _records(path: Path) -> Iterator[Row | None]:
    """Each record of a file; None where it does not parse."""
    if path.suffix == ".parquet":
        yield from pq.read_table(path).to_pylist()
    elif path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            header, *lines = csv.reader(file)
        for cells in lines:
            yield (
                None if len(cells) != len(header) else _typed(dict(zip(header, cells, strict=True)))
            )
    else:
        opened = gzip.open(path, "rt") if path.suffix == ".gz" else path.open(encoding="utf-8")
        with opened as file:
            for line in file:
                try:
                    yield _typed(json.loads(line, parse_float=Decimal))
                except json.JSONDecodeError:
                    yield None


def _typed(record: Row) -> Row:
    """Instants and CSV numbers as values."""
    for name, value in record.items():
        if name.endswith(("_at", "_date")) and value:
            record[name] = datetime.strptime(value, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=UTC)
        elif name in {"price", "cost"}:
            record[name] = Decimal(value)
        elif name == "stock_quantity":
            record[name] = int(value)
    return record


def _order_fault(row: Row) -> str | None:
    if not row["order_id"]:
        return "missing_key"
    if row["order_status"] not in STATUSES:
        return "unknown_status"
    return "negative_amount" if row["total_amount"] < 0 else None


def _customer_fault(row: Row) -> str | None:
    if not row["customer_id"]:
        return "missing_key"
    if row["segment"] not in SEGMENTS:
        return "unknown_segment"
    return None if re.fullmatch(r"\s*[^@\s]+@[^@\s]+\.[^@\s]+\s*", row["email"]) else "bad_email"


def _product_fault(row: Row) -> str | None:
    if not row["product_id"]:
        return "missing_key"
    return "negative_price" if row["price"] < 0 else None


def _event_fault(row: Row) -> str | None:
    if not row["event_id"]:
        return "missing_key"
    if not row["user_id"]:
        return "missing_user"
    return None if row["event_type"] in STAGES else "unknown_type"


_FAULTS: dict[str, Callable[[Row], str | None]] = {
    "customers": _customer_fault,
    "products": _product_fault,
    "orders": _order_fault,
    "events": _event_fault,
}


def newest(rows: list[Row], key: str, *order: str) -> dict[str, Row]:
    """The newest record of each key, deleted ones left out."""
    latest: dict[str, Row] = {}
    for row in rows:
        known = latest.get(row[key])
        if known is None or [row[name] for name in order] > [known[name] for name in order]:
            latest[row[key]] = row
    return {name: row for name, row in latest.items() if row.get("_op") != "d"}


def amounts(order: Row) -> dict[str, Decimal]:
    """What an order comes to, by the shop's terms."""
    gross = sum((i["quantity"] * i["unit_price"] for i in order["items"]), Decimal(0))
    exact = sum(
        (i["quantity"] * i["unit_price"] * (1 - i["discount"]) for i in order["items"]), Decimal(0)
    )
    subtotal = exact.quantize(CENT, ROUND_HALF_UP)
    tax = (subtotal * Decimal("0.08")).quantize(CENT, ROUND_HALF_UP)
    shipping = Decimal("0.00") if subtotal > 100 else Decimal("9.99")
    return {
        "subtotal": subtotal,
        "discount_amount": gross.quantize(CENT) - subtotal,
        "tax_amount": tax,
        "shipping_cost": shipping,
        "net_amount": subtotal + tax + shipping,
    }


@pytest.fixture(scope="session")
def plain() -> SimpleNamespace:
    """The shop's rules in plain Python, to hold the models against."""
    return SimpleNamespace(newest=newest, amounts=amounts, shop=SHOP)
