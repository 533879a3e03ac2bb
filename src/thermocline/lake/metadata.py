"""A table's metadata as plain values: what it holds, without opening a data file or an engine.

Iceberg's metadata file is JSON of a published specification. Reading it directly costs a
millisecond, where importing a whole Iceberg library costs seconds; so everything that only looks
(listing, history, what is stale) looks through here. Whatever writes goes through PyIceberg or
Spark.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from thermocline.errors import NotFound

MAIN = "main"


@dataclass(frozen=True)
class Snapshot:
    """One committed state of a table."""

    id: int
    parent: int | None
    sequence: int
    timestamp_ms: int
    operation: str
    summary: Mapping[str, str]
    schema_id: int | None

    @property
    def committed_at(self) -> datetime:
        """When it was committed, in UTC."""
        return datetime.fromtimestamp(self.timestamp_ms / 1000, tz=UTC)

    def count(self, key: str) -> int:
        """One of the summary's numbers; 0 where the writer left it out."""
        return int(self.summary.get(key, 0))


@dataclass(frozen=True)
class Ref:
    """A branch or a tag."""

    name: str
    type: str
    snapshot: int


@dataclass(frozen=True)
class TableState:
    """A table as its metadata file says."""

    table: str
    metadata_location: str
    raw: Mapping[str, Any]

    @property
    def location(self) -> str:
        """The table's folder."""
        return str(self.raw["location"])

    @property
    def uuid(self) -> str:
        """The table's identity, which survives a rename."""
        return str(self.raw["table-uuid"])

    @property
    def properties(self) -> Mapping[str, str]:
        """The table's properties."""
        return self.raw.get("properties") or {}

    @cached_property
    def snapshots(self) -> dict[int, Snapshot]:
        """All snapshots that have not expired, by id."""
        return {entry["snapshot-id"]: _snapshot(entry) for entry in self.raw.get("snapshots") or ()}

    @cached_property
    def refs(self) -> dict[str, Ref]:
        """Branches and tags by name. A table without a snapshot has none."""
        return {
            name: Ref(name, ref["type"], ref["snapshot-id"])
            for name, ref in (self.raw.get("refs") or {}).items()
        }

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The current schema, as in the specification's JSON."""
        return self.schema_of(self.raw["current-schema-id"])

    def schema_of(self, schema_id: int) -> Mapping[str, Any]:
        """A schema by its id."""
        return next(s for s in self.raw["schemas"] if s["schema-id"] == schema_id)

    @property
    def partition_fields(self) -> list[Mapping[str, Any]]:
        """The default partition spec's fields."""
        spec_id = self.raw["default-spec-id"]
        spec = next(s for s in self.raw["partition-specs"] if s["spec-id"] == spec_id)
        return [field for field in spec["fields"] if field["transform"] != "void"]

    @property
    def sort_fields(self) -> list[Mapping[str, Any]]:
        """The default sort order's fields."""
        order_id = self.raw.get("default-sort-order-id", 0)
        orders = self.raw.get("sort-orders") or ()
        return next((list(o["fields"]) for o in orders if o["order-id"] == order_id), [])

    def head(self, ref: str = MAIN) -> int | None:
        """The newest snapshot of a branch or the snapshot of a tag, if the ref exists."""
        found = self.refs.get(ref)
        return found.snapshot if found else None

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """A snapshot by id."""
        if snapshot_id not in self.snapshots:
            raise NotFound(
                f"{self.table} has no snapshot {snapshot_id}.",
                f"`thermo history {self.table}` lists the ones it has.",
            )
        return self.snapshots[snapshot_id]

    def published_at(self, snapshot_id: int) -> datetime:
        """When a snapshot became visible on main, which is later than when it was committed."""
        for entry in self.raw.get("snapshot-log") or ():
            if entry["snapshot-id"] == snapshot_id:
                return datetime.fromtimestamp(entry["timestamp-ms"] / 1000, tz=UTC)
        return self.snapshot(snapshot_id).committed_at

    def ancestry(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """A snapshot and its ancestors, newest first, as far as they have not expired."""
        while snapshot_id is not None and snapshot_id in self.snapshots:
            snapshot = self.snapshots[snapshot_id]
            yield snapshot
            snapshot_id = snapshot.parent

    def is_ancestor(self, ancestor: int, of: int | None) -> bool:
        """Whether one snapshot leads to another."""
        return any(snapshot.id == ancestor for snapshot in self.ancestry(of))

    def between(self, start: int | None, end: int | None) -> list[Snapshot] | None:
        """The snapshots after `start` up to `end`, newest first; None if `start` is no ancestor."""
        found: list[Snapshot] = []
        for snapshot in self.ancestry(end):
            if snapshot.id == start:
                return found
            found.append(snapshot)
        complete = not found or found[-1].parent is None
        return found if start is None and complete else None


def read(table: str, metadata_location: str) -> TableState:
    """Read a metadata file from local disk."""
    path = local_path(metadata_location)
    try:
        content = path.read_bytes()
    except FileNotFoundError as error:
        raise NotFound(
            f"{table}: the catalog points to {path.name}, which is not there.",
            "Restore the file from a backup; `thermo doctor` says what else is missing.",
        ) from error
    return parse(table, metadata_location, content)


def parse(table: str, metadata_location: str, content: bytes) -> TableState:
    """Make a state from the bytes of a metadata file, compressed or not."""
    if content[:2] == b"\x1f\x8b":
        content = gzip.decompress(content)
    try:
        return TableState(table, metadata_location, json.loads(content))
    except ValueError as error:
        raise NotFound(
            f"{table}: its metadata file {metadata_location.rsplit('/', 1)[-1]} is damaged.",
            "Restore the file from a backup, or register an older metadata file.",
        ) from error


def local_path(location: str) -> Path:
    """The path of a file: URI in any of its spellings, or of a plain path."""
    if not location.startswith("file:"):
        return Path(location)
    return Path(unquote(urlsplit(location).path))


def _snapshot(entry: Mapping[str, Any]) -> Snapshot:
    summary = dict(entry.get("summary") or {})
    return Snapshot(
        id=entry["snapshot-id"],
        parent=entry.get("parent-snapshot-id"),
        sequence=entry.get("sequence-number", 0),
        timestamp_ms=entry["timestamp-ms"],
        operation=summary.pop("operation", "append"),
        summary=summary,
        schema_id=entry.get("schema-id"),
    )
