"""A project with one Kafka source, for tests of what happens to its messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.integration.odcs import HEAD
from tests.servers.kafka import Kafka

import thermocline as tc

if TYPE_CHECKING:
    from thermocline.api import Lakehouse

CONTRACT = (
    HEAD
    + """\
      - {{name: id, physicalType: long{required}}}
      - {{name: amount, physicalType: "decimal(12,2)"}}
      - {{name: note, physicalType: string}}
customProperties:
  - {{property: write, value: append}}
  - {{property: drift, value: {drift}}}
"""
)
TARGET = "bronze.raw_orders"


class Project:
    """The files of a project. `source` writes the source again, with other settings."""

    def __init__(self, folder: Path, server: Kafka, topic: str) -> None:
        self.folder = folder
        self.server = server
        self.topic = topic
        self.contract()
        self.source()

    def contract(self, drift: str = "refuse", *, required: bool = True) -> None:
        path = self.folder / "contracts" / "bronze" / "raw_orders.odcs.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        needed = ", required: true" if required else ""
        path.write_text(CONTRACT.format(name="raw_orders", drift=drift, required=needed))

    def source(self, **settings: Any) -> None:
        path = self.folder / "sources" / "orders.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        given = {
            "name": "orders",
            "kind": "kafka",
            "servers": self.server.servers,
            "topic": self.topic,
            "target": TARGET,
            **settings,
        }
        path.write_text("\n".join(f"{key}: {json.dumps(v)}" for key, v in given.items()) + "\n")

    def open(self) -> Lakehouse:
        """The project, opened anew as the next command would."""
        return tc.open(self.folder)

    def ingest(self, **options: Any) -> tuple[int, int]:
        """One ingestion by a command of its own: rows that landed, rows that were set aside."""
        [target] = self.open().ingest(**options).targets
        return target.rows, target.quarantined

    def rows(self, *columns: str) -> list[tuple[Any, ...]]:
        """What bronze holds, by partition and offset."""
        found = self.open().table(TARGET).to_arrow().to_pylist()
        found.sort(key=lambda row: (row["_source_file"], row["_position"]))
        return [tuple(row[name] for name in columns) for row in found]


def order(number: int, **more: Any) -> bytes:
    """A message that the contract allows."""
    return json.dumps({"id": number, "amount": f"{number}.50", "note": "n", **more}).encode()
