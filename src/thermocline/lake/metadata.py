"""A table's metadata as values, without an Iceberg library or an engine.

Iceberg's metadata file is JSON of a published specification. Reading it directly costs a
millisecond; importing an Iceberg library costs seconds. So read-only operations (listing, history,
staleness) use this module. Writes go through PyIceberg or Spark.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from thermocline.errors import NotFound
from thermocline.lake import metadata_files
from thermocline.lake.metadata_files import FileCache

MAIN = "main"
REF_GUARD = "thermocline-ref-guard"
"""A tag that is no ref of users; see `ref_guard`."""


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
        """Return a number of the summary; 0 if the writer omitted it."""
        return int(self.summary.get(key, 0))


class MetadataFileMissing(NotFound):
    """A metadata file does not exist, for instance because a commit removed it."""


class Snapshots(Mapping[int, Snapshot]):
    """Snapshots by id, in the order of the metadata file, parsed on access."""

    def __init__(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._entries = {entry["snapshot-id"]: entry for entry in entries}
        self._parsed: dict[int, Snapshot] = {}

    def __getitem__(self, snapshot_id: int) -> Snapshot:
        found = self._parsed.get(snapshot_id)
        if found is None:
            found = self._parsed[snapshot_id] = _parse_snapshot(self._entries[snapshot_id])
        return found

    def __contains__(self, snapshot_id: object) -> bool:
        return snapshot_id in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(self._entries)

    def __reversed__(self) -> Iterator[int]:
        return reversed(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


@dataclass(frozen=True)
class Ref:
    """A branch or a tag."""

    name: str
    type: str
    snapshot: int


@dataclass(frozen=True)
class TableState:
    """A table's state, as its metadata file describes it."""

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
    def snapshots(self) -> Snapshots:
        """All snapshots that have not expired, by id."""
        return Snapshots(self.raw.get("snapshots") or ())

    @cached_property
    def refs(self) -> dict[str, Ref]:
        """Branches and tags by name, without the ref guard. A table without snapshots has none."""
        return {
            name: Ref(name, ref["type"], ref["snapshot-id"])
            for name, ref in (self.raw.get("refs") or {}).items()
            if name != REF_GUARD
        }

    @cached_property
    def names(self) -> dict[int, tuple[str, ...]]:
        """The branches and tags at each snapshot, sorted."""
        found: dict[int, list[str]] = {}
        for name in sorted(self.refs):
            found.setdefault(self.refs[name].snapshot, []).append(name)
        return {snapshot: tuple(names) for snapshot, names in found.items()}

    @cached_property
    def schema(self) -> Mapping[str, Any]:
        """The current schema, as in the specification's JSON."""
        return self.schema_of(self.raw["current-schema-id"])

    def schema_of(self, schema_id: int) -> Mapping[str, Any]:
        """Return a schema by its id."""
        return next(s for s in self.raw["schemas"] if s["schema-id"] == schema_id)

    @cached_property
    def may_hold_nan(self) -> bool:
        """Whether any schema of the table has a float or double column, at any depth."""
        return any(map(_has_floats, self.raw["schemas"]))

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
        """Return the newest snapshot of a branch or the snapshot of a tag, if the ref exists."""
        found = self.refs.get(ref)
        return found.snapshot if found else None

    def snapshot(self, snapshot_id: int) -> Snapshot:
        """Return a snapshot by id."""
        if snapshot_id not in self.snapshots:
            raise NotFound(
                f"{self.table} has no snapshot {snapshot_id}.",
                f"`thermo history {self.table}` lists the ones it has.",
            )
        return self.snapshots[snapshot_id]

    def published_at(self, snapshot_id: int) -> datetime:
        """Return when a snapshot became visible on main, which is after its commit."""
        published = self._published_ms.get(snapshot_id)
        if published is not None:
            return datetime.fromtimestamp(published / 1000, tz=UTC)
        return self.snapshot(snapshot_id).committed_at

    def was_published(self, snapshot_id: int) -> bool:
        """Whether main has pointed to a snapshot, by its log."""
        return snapshot_id in self._published_ms

    @cached_property
    def _published_ms(self) -> dict[int, int]:
        """When main first pointed to each snapshot."""
        first: dict[int, int] = {}
        for entry in self.raw.get("snapshot-log") or ():
            first.setdefault(entry["snapshot-id"], entry["timestamp-ms"])
        return first

    def ancestry(self, snapshot_id: int | None) -> Iterator[Snapshot]:
        """Yield a snapshot and its unexpired ancestors, newest first."""
        while snapshot_id is not None and snapshot_id in self.snapshots:
            snapshot = self.snapshots[snapshot_id]
            yield snapshot
            snapshot_id = snapshot.parent

    @cached_property
    def only_tagged(self) -> list[Snapshot]:
        """The snapshots that are reachable from tags only, newest first."""
        heads = (ref.snapshot for ref in self.refs.values() if ref.type == "branch")
        reachable = {snapshot.id for head in heads for snapshot in self.ancestry(head)}
        tags = {ref.snapshot for ref in self.refs.values() if ref.type == "tag"}
        found = [self.snapshots[each] for each in tags - reachable if each in self.snapshots]
        return sorted(found, key=lambda each: each.sequence, reverse=True)

    def is_ancestor(self, ancestor: int, of: int | None) -> bool:
        """Whether one snapshot is an ancestor of another."""
        return any(snapshot.id == ancestor for snapshot in self.ancestry(of))

    def between(self, start: int | None, end: int | None) -> list[Snapshot] | None:
        """Return the snapshots after `start` up to `end`, newest first; None if unrelated."""
        found: list[Snapshot] = []
        for snapshot in self.ancestry(end):
            if snapshot.id == start:
                return found
            found.append(snapshot)
        complete = not found or found[-1].parent is None
        return found if start is None and complete else None


_STATES: FileCache[TableState] = FileCache()


def read_state(table: str, location: str, content: Callable[[], bytes] | None = None) -> TableState:
    """Read a metadata file, from `content` or else from local disk.

    Each file is parsed once in a process. The state is shared and must not be modified.
    """

    def load() -> tuple[TableState, int]:
        bytes_of = location_path(location).read_bytes if content is None else content
        file = metadata_files.load_metadata_file(location, bytes_of)
        return TableState(table, location, file.raw), file.size

    try:
        found = _STATES.get(metadata_files.file_version(location), load)
    except FileNotFoundError as error:
        path = str(location_path(location) or location)
        raise MetadataFileMissing(
            f"{table}: the catalog points to its metadata file {path}, which is not there.",
            "Restore the file from a backup; `thermo doctor` lists what else is missing.",
            table=table,
            file=path,
        ) from error
    except ValueError as error:
        raise NotFound(
            f"{table}: its metadata file {location.rsplit('/', 1)[-1]} is damaged.",
            "Restore the file from a backup, or register an older metadata file.",
        ) from error
    return found if found.table == table else replace(found, table=table)


def cached_state(table: str, location: str) -> TableState | None:
    """Return a cached state of this process, if there is one."""
    found = _STATES.peek(state_version(location))
    return found if found is not None and found.table == table else None


def cache_state(state: TableState, size: int) -> TableState:
    """Cache a state that was not read from its file, with its size in bytes."""
    return _STATES.get(state_version(state.metadata_location), lambda: (state, size))


def state_version(location: str) -> Hashable:
    """Return the cache key of a file, also if only the catalog's server can read it."""
    try:
        return metadata_files.file_version(location)
    except OSError:
        return location


def location_path(location: str) -> Path:
    """Return the path of a file: URI in any of its spellings, or of a path."""
    return metadata_files.local_path(location) or Path(location)


def _has_floats(of: Any) -> bool:
    """Whether a schema or type in the specification's JSON contains a float or double."""
    if isinstance(of, str):
        return of in {"float", "double"}
    if of["type"] == "struct":
        return any(_has_floats(field["type"]) for field in of["fields"])
    inner = (of.get(name) for name in ("element", "key", "value"))
    return any(_has_floats(each) for each in inner if each is not None)


def _parse_snapshot(entry: Mapping[str, Any]) -> Snapshot:
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
