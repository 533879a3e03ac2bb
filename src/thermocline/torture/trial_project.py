"""A project of its own for a trial: the user's settings, and tables that nobody else has.

It lies in a folder of its own, so that a lake beside the project is a fresh one; on a catalog
that is shared, the tables' names keep them apart.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.config import PROJECT_FILE, SECRETS_FILE, load_settings
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
{columns}
customProperties:
{properties}
"""
COLUMN = "      - {{name: {}, physicalType: {}}}"


@dataclass(frozen=True)
class Shape:
    """The columns of a lane's tables beside event, key and value.

    `op` says in bronze what happened, `order_by` in silver what is newest.
    """

    op: str
    bronze: Mapping[str, str]
    silver: Mapping[str, str]
    select: str
    order_by: str


MESSAGES = Shape("op", {"op": "string"}, {"op": "string"}, "event, key, value, op", "event")
CHANGES = Shape(
    "_op",
    {"_op": "string", "_lsn": "long"},
    {"source_lsn": "long"},
    "event, key, value, _lsn as source_lsn, _op",
    "source_lsn",
)


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

    def op(self, lane: Lane) -> str:
        """The column of a lane's bronze table that says what happened."""
        return shape(lane).op

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
    _share_warehouse(settings, folder)
    for lane in lanes:
        bronze, silver, kind = scratch.bronze(lane), scratch.silver(lane), shape(lane)
        merge = {
            "write": "merge", "orderBy": kind.order_by, "deleteWhen": f"\"{kind.op} = 'd'\"",
        }  # fmt: skip
        _write_contract(folder, bronze, "", kind.bronze, {"write": "append"})
        _write_contract(folder, silver, ", primaryKey: true", kind.silver, merge)
        model = f"select {kind.select} from {bronze}\n"
        _write(folder / "models" / f"{silver.replace('.', '/')}.sql", model)
        source = {"name": scratch.source(lane), "target": bronze, **lane.source()}
        _write(folder / "sources" / f"{lane.kind}.yaml", json.dumps(source, indent=2))
    return scratch


def _share_warehouse(settings: Settings, folder: Path) -> None:
    """Have the trial's tables lie in the project's warehouse where both have one catalog."""
    scratch = load_settings(folder, settings.profile)
    if scratch.catalog.type == "rest" or scratch.catalog.uri != settings.catalog.uri:
        return
    here, there = Path(scratch.warehouse), Path(settings.warehouse)
    if scratch.warehouse != settings.warehouse:
        there.mkdir(parents=True, exist_ok=True)
        here.parent.mkdir(parents=True, exist_ok=True)
        here.symlink_to(there)


def shape(lane: Lane) -> Shape:
    """How a lane's tables look."""
    return CHANGES if lane.changes else MESSAGES


def _write_contract(
    folder: Path, table: str, key: str, columns: Mapping[str, str], properties: Mapping[str, str]
) -> None:
    text = CONTRACT.format(
        table=table,
        name=table.partition(".")[2],
        key=key,
        columns="\n".join(COLUMN.format(*column) for column in columns.items()),
        properties="\n".join(f"  - {{property: {k}, value: {v}}}" for k, v in properties.items()),
    )
    _write(folder / "contracts" / f"{table.replace('.', '/')}.odcs.yaml", text)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
