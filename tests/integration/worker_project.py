"""A small lake whose models are cut by day, for the tests of workers."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
from tests.integration.odcs import HEAD

import thermocline as tc
from thermocline.api import Lakehouse
from thermocline.lake.naming import new_run_id

FIRST = date(2026, 1, 1)
CONTRACTS = {
    "bronze/raw": """\
      - {name: id, logicalType: integer, physicalType: long}
      - {name: at, logicalType: timestamp, physicalType: timestamptz, partitioned: true,
         customProperties: [{property: transform, value: day}]}
      - {name: kind, logicalType: string, physicalType: string}
      - {name: amount, logicalType: number, physicalType: "decimal(12,2)"}
customProperties:
  - {property: write, value: append}
""",
    "silver/clean": """\
      - {name: id, logicalType: integer, physicalType: long, required: true}
      - {name: at, logicalType: timestamp, physicalType: timestamptz, partitioned: true,
         customProperties: [{property: transform, value: day}]}
      - {name: kind, logicalType: string, physicalType: string}
      - {name: amount, logicalType: number, physicalType: "decimal(12,2)"}
    quality:
      - {type: sql, query: "select count(*) from {object} where amount < 0", mustBe: 0,
         name: no negative amount}
customProperties:
  - {property: write, value: partitions}
""",
    "gold/daily": """\
      - {name: day, logicalType: date, physicalType: date, partitioned: true}
      - {name: events, logicalType: integer, physicalType: long}
      - {name: total, logicalType: number, physicalType: "decimal(38,2)"}
customProperties:
  - {property: write, value: partitions}
""",
    "gold/kinds": """\
      - {name: kind, logicalType: string, physicalType: string, required: true, primaryKey: true}
      - {name: events, logicalType: integer, physicalType: long}
customProperties:
  - {property: write, value: merge}
""",
}
MODELS = {
    "silver/clean.sql": """\
select id, at, kind, amount from (
    select *, row_number() over (
        partition by cast(at as date), id order by at desc, amount desc, kind) as n
    from bronze.raw where kind <> 'bad'
) as ranked where n = 1
""",
    "gold/daily.sql": """\
select cast(at as date) as day, count(*) as events, cast(sum(amount) as decimal(38,2)) as total
from silver.clean group by cast(at as date)
""",
    "gold/kinds.sql": "select kind, count(*) as events from silver.clean group by kind\n",
}


def make(project: Path) -> Lakehouse:
    """The project in a folder that has settings already, with an empty bronze table."""
    for name, columns in CONTRACTS.items():
        path = project / "contracts" / f"{name}.odcs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(HEAD.format(name=name.partition("/")[2]) + columns)
    for name, text in MODELS.items():
        path = project / "models" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    house = tc.open(project)
    house.lake.ensure(house.contracts["bronze.raw"])
    return house


def row(
    id_: int, day: int, kind: str = "a", amount: str = "1.50", minute: int = 0
) -> dict[str, Any]:
    """One row of bronze.raw, on the so-manieth day."""
    at = datetime.combine(FIRST + timedelta(days=day), datetime.min.time(), UTC)
    return {
        "id": id_,
        "at": at + timedelta(minutes=minute),
        "kind": kind,
        "amount": Decimal(amount),
    }


def many(days: Iterable[int], each: int = 20) -> list[dict[str, Any]]:
    """Rows of some days: kinds and amounts of many sorts, a repeated id and a bad row a day."""
    rows = []
    for day in days:
        for n in range(each):
            rows.append(row(day * each + n, day, "abc"[n % 3], f"{(day * 7 + n) % 50}.25", n))
        rows.append(row(day * each, day, "b", "9.75", 700))
        rows.append(row(day * each + 1, day, "bad", "-5.00", 701))
    return rows


def land(house: Lakehouse, rows: list[dict[str, Any]]) -> None:
    """Add rows to bronze.raw and publish them."""
    kinds = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC")),
                       ("kind", pa.string()), ("amount", pa.decimal128(12, 2))])  # fmt: skip
    draft = house.lake.draft(new_run_id())
    draft.begin("bronze.raw")
    draft.append("bronze.raw", pa.Table.from_pylist(rows, kinds), bookmark=None, operation="append")
    draft.publish()


def content(house: Lakehouse, table: str) -> list[tuple[Any, ...]]:
    """All rows of a table, in order."""
    rows = house.query(f"select * from {table}").to_arrow().to_pylist()
    return sorted((tuple(each.values()) for each in rows), key=repr)
