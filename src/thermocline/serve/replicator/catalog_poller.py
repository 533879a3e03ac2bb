"""Poll the catalog for the current state of all tables.

One query returns the pointers of all tables; only tables whose pointer moved are read again, and of
those only new manifests. So a poll of an unchanged lake costs one query, and a poll after a commit
costs what the commit added.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from thermocline import telemetry
from thermocline.errors import NotFound, Transient
from thermocline.lake import catalog, read_schema, schema
from thermocline.lake.companions import QUARANTINE, TOMBSTONES
from thermocline.lake.metadata import Snapshot, TableState
from thermocline.serve.file_sums import FileTimes, ManifestTotals, TableFileTotals, sum_manifest
from thermocline.serve.replicator import hot_policy as policies
from thermocline.serve.replicator.retry import retry_reads
from thermocline.serve.values import NO_SNAPSHOT, TableHead

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import DataFile, ManifestFile
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from thermocline.config import Settings
    from thermocline.contract import Contract

_TIME_TYPES = frozenset({"date", "timestamp", "timestamptz"})
_TIME_TRANSFORMS = frozenset({"year", "month", "day", "hour", "identity"})
_DAY = 86_400_000_000
_RETRY_BROKEN_SECONDS = 10.0
_FILE_ERRORS = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError)
"""Errors of one file; any other OSError is one of the whole store."""


CopySchema = tuple[int | None, tuple[tuple[int, str, str], ...]]
"""The id of the time field, and the columns: any change of these needs a new copy."""


@dataclass(frozen=True)
class PolledTable:
    """A table at one poll: its head for the router, and what the node copies need beyond that."""

    head: TableHead
    table: Table
    schema: Schema
    time_id: int | None
    _sizes: dict[datetime | None, int] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def copy_schema(self) -> CopySchema:
        """The schema of a copy of the table."""
        columns = tuple((f.field_id, f.name, str(f.field_type)) for f in self.schema.fields)
        return self.time_id, columns

    def estimate_bytes(self, begin: datetime | None) -> int:
        """Return the approximate memory of a copy that holds the table from `begin` on."""
        if begin not in self._sizes:
            self._sizes.clear()  # the window has moved
            self._sizes[begin] = policies.estimate_bytes(self.head, begin)
        return self._sizes[begin]


@dataclass(frozen=True)
class _PolledPointer:
    """The table that a pointer led to."""

    pointer: str
    polled: PolledTable
    manifests: Mapping[str, ManifestTotals]
    """The sums of the snapshot's data manifests, by path."""


class CatalogPoller:
    """Polls the catalog and caches what did not change."""

    def __init__(
        self, settings: Settings, policy: policies.Policy, contracts: Mapping[str, Contract]
    ) -> None:
        self._reader = catalog.open_reader(settings)
        self._settings = settings
        self._policy = policy
        self._contracts = contracts
        self._known: dict[str, _PolledPointer] = {}
        self._broken: dict[str, tuple[str, float]] = {}

    def poll(self) -> dict[str, PolledTable]:
        """Return all readable tables, as of one moment.

        Companion tables are left out. Raises CatalogUnavailable.
        """
        pointers = {
            table: pointer
            for table, pointer in self._reader.pointers().items()
            if not table.endswith(TOMBSTONES)
        }
        polled_pointers = {
            table: self._poll_table(table, pointer) for table, pointer in pointers.items()
        }
        self._known = {table: one for table, one in polled_pointers.items() if one is not None}
        return {table: one.polled for table, one in self._known.items()}

    def _poll_table(self, table: str, pointer: str) -> _PolledPointer | None:
        before = self._known.get(table)
        if before is not None and before.pointer == pointer:
            return before
        broken, since = self._broken.get(table, ("", 0.0))
        if broken == pointer and time.monotonic() - since < _RETRY_BROKEN_SECONDS:
            return None
        try:
            found = retry_reads(lambda: self._read(table, pointer, before))
        except Transient:
            raise
        except Exception as error:  # libraries raise anything for a damaged file
            if isinstance(error, OSError) and not isinstance(error, _FILE_ERRORS):
                raise Transient(f"Files of {table} cannot be read: {error}") from error
            self._broken[table] = pointer, time.monotonic()
            telemetry.log("replicator", "unreadable", level="ERROR", table=table, error=str(error))
            return None
        self._broken.pop(table, None)
        return found

    def _read(self, table: str, pointer: str, before: _PolledPointer | None) -> _PolledPointer:
        from pyiceberg.manifest import ManifestContent

        state = self._reader.state_at(table, pointer)
        snapshot = state.head()
        iceberg = self._iceberg(table, state)
        if snapshot is None:
            return _PolledPointer(pointer, _empty_table(state, iceberg), {})
        shown_schema = read_schema.schema_at(iceberg, snapshot)
        contract = self._contracts.get(table)
        time_id = _time_field_id(state, shown_schema, contract)
        same = before and before.polled.time_id == time_id
        known = before.manifests if before and same else {}
        ancestors = list(state.ancestry(snapshot))
        listed = _list_manifests(iceberg, snapshot)
        manifests = _sum_manifests(iceberg, listed, time_id, known)
        files = (before.polled.head.files if before and same else TableFileTotals()).with_manifests(
            added=(each for path, each in manifests.items() if path not in known),
            removed=(each for path, each in known.items() if path not in manifests),
        )
        head = TableHead(
            table=table,
            uuid=state.uuid,
            snapshot=snapshot,
            metadata=pointer,
            committed_at=state.published_at(snapshot),
            columns=_columns(state, shown_schema),
            time=None if time_id is None else shown_schema.find_column_name(time_id),
            snapshots=tuple(each.id for each in ancestors),
            same_schema_count=_count_same_schema(ancestors),
            files=files,
            deletes=_digest(
                *sorted(m.manifest_path for m in listed if m.content != ManifestContent.DATA)
            ),
            hot=policies.hot_seconds(
                self._policy,
                contract,
                # Quarantined rows are for those who fix them, not for dashboards.
                off=state.properties.get(policies.HOT_PROPERTY) == "off"
                or table.startswith(QUARANTINE + "."),
                timed=time_id is not None,
                size=files.total.bytes,
            ),
        )
        return _PolledPointer(pointer, PolledTable(head, iceberg, shown_schema, time_id), manifests)

    @cached_property
    def _io(self) -> FileIO:
        return catalog.load_file_io(self._settings)

    def _iceberg(self, table: str, state: TableState) -> Table:
        """Return the table exactly as of the pointer, whatever was committed since."""
        from pyiceberg.catalog.noop import NoopCatalog
        from pyiceberg.table import Table
        from pyiceberg.table.metadata import TableMetadataUtil

        return Table(
            identifier=tuple(table.split(".", 1)),
            metadata=TableMetadataUtil.parse_obj(dict(state.raw)),
            metadata_location=state.metadata_location,
            io=self._io,
            catalog=NoopCatalog("polled"),
        )


def file_times(file: DataFile, time_id: int | None) -> tuple[int | None, int | None]:
    """Return the first and the last time in a file, in microseconds since 1970, if known."""
    if time_id is None:
        return None, None
    low, high = (file.lower_bounds or {}), (file.upper_bounds or {})
    return _bound(low.get(time_id)), _bound(high.get(time_id))


def _bound(value: bytes | None) -> int | None:
    """Decode a bound: four bytes of days for a date, eight of microseconds for a timestamp."""
    if value is None or len(value) not in (4, 8):
        return None
    number = int.from_bytes(value, "little", signed=True)
    return number * _DAY if len(value) == 4 else number


def _time_field_id(
    state: TableState, shown_schema: Schema, contract: Contract | None
) -> int | None:
    """Return the id of the field with the rows' time."""
    kinds = {each.field_id: str(each.field_type) for each in shown_schema.fields}
    for part in state.partition_fields:
        kind = kinds.get(part["source-id"])
        if kind not in _TIME_TYPES or part["transform"] not in _TIME_TRANSFORMS:
            continue
        if part["transform"] != "identity" or kind == "date":
            return int(part["source-id"])
    named = contract.freshness_column if contract else None
    found = next((f for f in shown_schema.fields if f.name == named), None)
    return found.field_id if found and kinds[found.field_id] in _TIME_TYPES else None


def _empty_table(state: TableState, iceberg: Table) -> PolledTable:
    """Return a table without commits: there are no rows to hold or to read."""
    shown_schema = iceberg.schema()
    head = TableHead(
        table=state.table,
        uuid=state.uuid,
        snapshot=NO_SNAPSHOT,
        metadata=state.metadata_location,
        committed_at=datetime.fromtimestamp(int(state.raw["last-updated-ms"]) / 1000, UTC),
        columns=_columns(state, shown_schema),
        time=None,
        snapshots=(NO_SNAPSHOT,),
    )
    return PolledTable(head, iceberg, shown_schema, None)


def _columns(state: TableState, shown_schema: Schema) -> dict[str, str]:
    """Return the columns of the snapshot's schema, which may be an older one, in contract types."""
    then = TableState(state.table, "", {**state.raw, "current-schema-id": shown_schema.schema_id})
    return {column.name: str(column.type) for column in schema.shape_of(then).columns}


def _count_same_schema(ancestors: Sequence[Snapshot]) -> int:
    """Return how many of the newest snapshots have the same schema."""
    schema_id = ancestors[0].schema_id
    return len(list(takewhile(lambda each: each.schema_id == schema_id, ancestors)))


def _list_manifests(table: Table, snapshot: int) -> list[ManifestFile]:
    """Return the manifests of a snapshot."""
    found = table.snapshot_by_id(snapshot)
    if found is None:
        raise NotFound(f"{'.'.join(table.name())} has no snapshot {snapshot}.")
    return found.manifests(table.io)


def _sum_manifests(
    table: Table,
    listed: Iterable[ManifestFile],
    time_id: int | None,
    known: Mapping[str, ManifestTotals],
) -> dict[str, ManifestTotals]:
    """Return the sums of each data manifest; read only those that are not known."""
    from pyiceberg.manifest import ManifestContent

    return {
        manifest.manifest_path: known[manifest.manifest_path]
        if manifest.manifest_path in known
        else sum_manifest(_read_file_times(table, manifest, time_id))
        for manifest in listed
        if manifest.content == ManifestContent.DATA
    }


def _read_file_times(
    table: Table, manifest: ManifestFile, time_id: int | None
) -> Iterator[FileTimes]:
    for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
        file: Any = entry.data_file
        low, high = file_times(file, time_id)
        yield FileTimes(
            file.file_size_in_bytes, file.record_count, low, high, _digest(file.file_path)
        )


def _digest(*paths: str) -> int:
    """Return a number that identifies these paths; 0 for none."""
    text = "\n".join(paths).encode()
    return int.from_bytes(blake2b(text, digest_size=16).digest(), "big") if paths else 0
