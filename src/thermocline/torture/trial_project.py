"""A separate project for a trial: the user's settings, and tables of its own.

The project has its own folder, so a lake inside the project is new; in a shared catalog the tables
have unique names.
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
class LaneColumns:
    """The columns of a lane's tables beside event, key and value.

    `op` is bronze's operation column, `order_by` silver's order of versions.
    """

    op: str
    bronze: Mapping[str, str]
    silver: Mapping[str, str]
    select: str
    order_by: str


MESSAGES = LaneColumns("op", {"op": "string"}, {"op": "string"}, "event, key, value, op", "event")
CHANGES = LaneColumns(
    "_op",
    {"_op": "string", "_lsn": "long"},
    {"source_lsn": "long"},
    "event, key, value, _lsn as source_lsn, _op",
    "source_lsn",
)


@dataclass(frozen=True)
class TrialProject:
    """A trial's project. Each lane has its own source, bronze table and silver table."""

    folder: Path
    name: str
    lanes: tuple[Lane, ...]

    def source(self, lane: Lane) -> str:
        """Return the name of a lane's source."""
        return f"torture_{self.name}_{lane.kind}"

    def bronze(self, lane: Lane) -> str:
        """Return the table that a lane's events land in."""
        return f"bronze.{self.source(lane)}"

    def silver(self, lane: Lane) -> str:
        """Return the table with the newest event of each key."""
        return f"silver.{self.source(lane)}"

    def op(self, lane: Lane) -> str:
        """Return the operation column of a lane's bronze table."""
        return lane_columns(lane).op

    def quarantine(self, lane: Lane) -> str:
        """Return the table with the spoiled events."""
        return f"quarantine.{self.source(lane)}"


def write(settings: Settings, folder: Path, name: str, lanes: Sequence[Lane]) -> TrialProject:
    """Create the project in a new folder."""
    project = TrialProject(folder, name, tuple(lanes))
    folder.mkdir(parents=True)
    for file in (PROJECT_FILE, SECRETS_FILE):
        if (settings.project / file).is_file():
            shutil.copy(settings.project / file, folder / file)
    _share_warehouse(settings, folder)
    for lane in lanes:
        bronze, silver, kind = project.bronze(lane), project.silver(lane), lane_columns(lane)
        merge = {
            "write": "merge", "orderBy": kind.order_by, "deleteWhen": f"\"{kind.op} = 'd'\"",
        }  # fmt: skip
        _write_contract(folder, bronze, "", kind.bronze, {"write": "append"})
        _write_contract(folder, silver, ", primaryKey: true", kind.silver, merge)
        model = f"select {kind.select} from {bronze}\n"
        _write(folder / "models" / f"{silver.replace('.', '/')}.sql", model)
        source = {"name": project.source(lane), "target": bronze, **lane.source()}
        _write(folder / "sources" / f"{lane.kind}.yaml", json.dumps(source, indent=2))
    return project


def _share_warehouse(settings: Settings, folder: Path) -> None:
    """Link the trial's warehouse to the project's, if both use the same catalog."""
    project = load_settings(folder, settings.profile)
    if project.catalog.type == "rest" or project.catalog.uri != settings.catalog.uri:
        return
    link, target = Path(project.warehouse), Path(settings.warehouse)
    if project.warehouse != settings.warehouse:
        target.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(target)


def lane_columns(lane: Lane) -> LaneColumns:
    """Return the columns of a lane's tables."""
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
