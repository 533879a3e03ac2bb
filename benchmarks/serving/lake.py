"""Ten million page views over thirty days, and fifty queries of a dashboard."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform
from pyiceberg.types import (
    DecimalType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
)

from thermocline.config import load_settings
from thermocline.lake import Lake

TABLE = "silver.views"
DAYS = 30
COUNTRIES = ("CH", "NO", "BR", "IN", "JP", "KE", "CA", "FR")
KINDS = ("view", "click", "cart", "order")
SETTINGS = """\
[lake]
name = "bench"
[engine.spark]
master = "local[2]"
memory = "2g"
[serve]
nodes = 2
node_memory = "900MB"
replicas = 2
port = 0
verify_share = 0.0
"""
SCHEMA = Schema(
    NestedField(1, "view_id", LongType(), required=True),
    NestedField(2, "seen_at", TimestamptzType()),
    NestedField(3, "customer", IntegerType()),
    NestedField(4, "country", StringType()),
    NestedField(5, "kind", StringType()),
    NestedField(6, "amount", DecimalType(10, 2)),
)


def midnight() -> datetime:
    """Return the beginning of today, UTC."""
    return datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)


def build(project: Path, rows: int) -> Lake:
    """Build the lake: one or two files per day, sorted by time."""
    project.mkdir(parents=True)
    (project / "thermocline.toml").write_text(SETTINGS)
    lake = opened(project)
    lake.catalog.create_namespace("silver")
    by_day = PartitionSpec(PartitionField(2, 1000, DayTransform(), "seen_at_day"))
    table = lake.catalog.create_table(TABLE, SCHEMA, partition_spec=by_day)
    for day in range(DAYS):
        start = midnight() - timedelta(days=DAYS - 1 - day)
        table.append(views(day * (rows // DAYS), rows // DAYS, start, timedelta(days=1)))
    return lake


def opened(project: Path) -> Lake:
    """Open a lake of an earlier run."""
    return Lake(load_settings(project, environ={}))


def views(first: int, count: int, start: datetime, span: timedelta) -> pa.Table:
    """Return page views, evenly over a time range; their values follow from their numbers."""
    ids = np.arange(first, first + count, dtype=np.int64)
    step = int(span.total_seconds() * 1e6) // max(count, 1)
    micros = int(start.timestamp() * 1e6) + np.arange(count, dtype=np.int64) * step
    mixed = (ids * 2654435761) % (1 << 32)
    cents = pa.array(mixed % 20_000, pa.int64())
    amount = pc.multiply(cents.cast(pa.decimal128(19, 0)), pa.scalar(Decimal("0.01")))
    return pa.table(
        {
            "view_id": pa.array(ids),
            "seen_at": pa.array(micros, pa.timestamp("us", "UTC")),
            "customer": pa.array((mixed >> 7) % 50_000, pa.int32()),
            "country": pa.array(COUNTRIES).take(pa.array((mixed >> 3) % len(COUNTRIES))),
            "kind": pa.array(KINDS).take(pa.array((mixed >> 11) % len(KINDS))),
            "amount": amount.cast(pa.decimal128(10, 2)),
        },
        schema=SCHEMA.as_arrow(),
    )


def hot_questions() -> list[str]:
    """Return queries within the last seven days."""
    asked: list[str] = []
    for days in (0, 1, 2, 4, 6):
        recent = f"from {TABLE} where seen_at >= current_date - {days}"
        asked += [
            f"select count(*) as n {recent}",
            f"select country, count(*) as n, sum(amount) as total {recent} group by 1 order by 1",
            f"select kind, count(*) as n, max(seen_at) as newest {recent} group by 1 order by 1",
            f"select date_trunc('hour', seen_at) as h, count(*) as n {recent}"
            " group by 1 order by 1",
            f"select count(distinct customer) as n {recent} and kind = 'order'",
            f"select customer, sum(amount) as total {recent} and country = 'CH' group by 1"
            " order by 2 desc, 1 limit 10",
            f"select country, kind, avg(amount) as mean {recent} group by 1, 2 order by 1, 2",
            f"select view_id, amount {recent} and kind = 'order' order by seen_at desc, 1 limit 20",
            f"select sum(amount) filter (where kind = 'order') as sold {recent}",
        ]
    return asked


def cold_questions() -> list[str]:
    """Return queries that read further back than the hot window."""
    return [
        f"select country, sum(amount) as total from {TABLE}"
        f" where seen_at >= current_date - {days} group by 1 order by 1"
        for days in (9, 12, 15, 20, 29)
    ]
