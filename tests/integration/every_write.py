"""A small lake with a table of each write mode, all cut by day, made of the same events."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tests.integration import worker_project
from tests.integration.odcs import HEAD
from tests.integration.worker_project import land, many, row

import thermocline as tc
from thermocline.api import Lakehouse

__all__ = ["MODES", "land", "make", "many", "row"]

_COLUMNS = """\
      - {{name: id, logicalType: integer, physicalType: long, required: true{key}}}
      - {{name: at, logicalType: timestamp, physicalType: timestamptz, required: true,
         partitioned: true, customProperties: [{{property: transform, value: {transform}}}]}}
      - {{name: kind, logicalType: string, physicalType: string}}
      - {{name: amount, logicalType: number, physicalType: "decimal(12,2)"}}
customProperties:
  - {{property: write, value: {write}}}
"""
_KEY = ", primaryKey: true"
_ORDERED = "  - {property: orderBy, value: [at]}\n"
_DELETES = "  - {property: deleteWhen, value: \"kind = 'gone'\"}\n"
_ON_READ = "  - {property: updates, value: merge-on-read}\n"
_PLAIN = "select id, at, kind, amount from bronze.raw\n"
_STATE = (
    "select id, max(at) as at, max(kind) as kind, sum(amount) as amount from bronze.raw group by id"
)

# mode → its write, more of its contract, its model, and the transform that it is cut by
MODES: dict[str, tuple[str, str, str, str]] = {
    "append": ("append", "", _PLAIN, "day"),
    "monthly": ("append", "", _PLAIN, "month"),
    "merge": ("merge", _ORDERED + _DELETES, _PLAIN, "day"),
    "merge_on_read": ("merge", _ORDERED + _DELETES + _ON_READ, _PLAIN, "day"),
    "state": ("merge", "", _STATE, "day"),
    "scd2": ("scd2", _ORDERED + _DELETES, _PLAIN, "day"),
    "partitions": ("partitions", "", _PLAIN, "day"),
    "replace": ("replace", "", _PLAIN, "day"),
}


def make(project: Path, modes: Iterable[str] = MODES) -> Lakehouse:
    """The project in a folder that has settings already, with an empty bronze table."""
    (project / "contracts/silver").mkdir(parents=True)
    (project / "models/silver").mkdir(parents=True)
    for name in modes:
        write, more, model, transform = MODES[name]
        key = _KEY if write in {"merge", "scd2"} else ""
        columns: Any = _COLUMNS.format(key=key, write=write, transform=transform)
        text = HEAD.format(name=name) + columns + more
        (project / f"contracts/silver/{name}.odcs.yaml").write_text(text)
        (project / f"models/silver/{name}.sql").write_text(model)
    (project / "contracts/bronze").mkdir(parents=True)
    raw = HEAD.format(name="raw") + worker_project.CONTRACTS["bronze/raw"]
    (project / "contracts/bronze/raw.odcs.yaml").write_text(raw)
    house = tc.open(project)
    house.lake.ensure(house.contracts["bronze.raw"])
    return house
