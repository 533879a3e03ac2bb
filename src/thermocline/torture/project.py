"""A project of its own for a trial: the user's settings, and tables that nobody else has.

It lies in a folder of its own, so that a lake beside the project is a fresh one; on a catalog
that is shared, the tables' names keep them apart.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.config import PROJECT_FILE, SECRETS_FILE
from thermocline.torture.lanes import Lane

if TYPE_CHECKING:
    from thermocline.config import Settings

CONTRACT = """\
apiVersion: v3.1.0
kind: DataContract
id: torture.{table}
version: 1.0.0
status: active
schema:
  - name: {name}
    properties:
      - {{name: event, physicalType: long, required: true}}
      - {{name: key, physicalType: string, required: true{key}}}
      - {{name: value, physicalType: long, required: true}}
      - {{name: op, physicalType: string}}
customProperties:
{properties}
"""
BRONZE = {"write": "append"}
SILVER = {"write": "merge", "orderBy": "event", "deleteWhen": "\"op = 'd'\""}


@dataclass(frozen=True)
class Scratch:
    """A trial's project. Each lane has a source, a bronze table and a silver one of its own."""

    folder: Path
    name: str
    lanes: tuple[Lane, ...]

    def source(self, lane: Lane) -> str:
        """The name of a lane's source."""
        return f"torture_{self.name}_{lane.kind}"

    def bronze(self, lane: Lane) -> str:
        """The table that takes a lane's events as they come."""
        return f"bronze.{self.source(lane)}"

    def silver(self, lane: Lane) -> str:
        """The table that holds the newest event of each key."""
        return f"silver.{self.source(lane)}"

    def quarantine(self, lane: Lane) -> str:
        """The table that keeps the spoiled events."""
        return f"quarantine.{self.source(lane)}"


def write(settings: Settings, folder: Path, name: str, lanes: Sequence[Lane]) -> Scratch:
    """Make the project in an empty folder."""
    scratch = Scratch(folder, name, tuple(lanes))
    folder.mkdir(parents=True)
    for file in (PROJECT_FILE, SECRETS_FILE):
        if (settings.project / file).is_file():
            shutil.copy(settings.project / file, folder / file)
    for lane in lanes:
        for table, key, properties in (
            (scratch.bronze(lane), "", BRONZE),
            (scratch.silver(lane), ", primaryKey: true", SILVER),
        ):
            _write(
                folder / "contracts" / f"{table.replace('.', '/')}.odcs.yaml",
                CONTRACT.format(
                    table=table,
                    name=table.partition(".")[2],
                    key=key,
                    properties="\n".join(
                        f"  - {{property: {k}, value: {v}}}" for k, v in properties.items()
                    ),
                ),
            )
        model = f"select event, key, value, op from {scratch.bronze(lane)}\n"
        _write(folder / "models" / f"{scratch.silver(lane).replace('.', '/')}.sql", model)
        source = {"name": scratch.source(lane), "target": scratch.bronze(lane), **lane.source()}
        _write(folder / "sources" / f"{lane.kind}.yaml", json.dumps(source, indent=2))
    return scratch


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
