"""Compare a table's snapshots at the new location with the originals."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from thermocline.errors import CheckFailed
from thermocline.lake.locations import normalize_location
from thermocline.lake.metadata import MAIN
from thermocline.recover.snapshot_checksums import SnapshotChecksums

if TYPE_CHECKING:
    from thermocline.recover.file_store import FileStore


class SnapshotComparison:
    """Compares tables before and after relocation. Originals are read at the old location."""

    def __init__(self, store: FileStore, map_location: Callable[[str], str]) -> None:
        self._store = store
        self._before = OriginalFiles(store, map_location)
        self._checksums = SnapshotChecksums()

    def verify_table(
        self, table: str, old: Mapping[str, Any], new: Mapping[str, Any], target: str
    ) -> int:
        """Return the number of rows of main. Raise CheckFailed if a snapshot differs."""
        written = json.loads(self._store.read(target))
        if written != json.loads(json.dumps(new)):
            raise _difference_error(table, "its metadata file is not what was written")
        before, after = self._before, self._store.io
        sums = (
            dict(self._checksums.compute(_open_table(table, old, before), before.resolve)),
            dict(self._checksums.compute(_open_table(table, written, after), normalize_location)),
        )
        for snapshot, original in sums[0].items():
            copy = sums[1].get(snapshot)
            if copy != original:
                found = "is missing" if copy is None else f"has {copy.rows:,} rows here"
                raise _difference_error(
                    table, f"{snapshot} {found}, {original.rows:,} at the old location"
                )
        head = (old.get("refs") or {}).get(MAIN)
        return sums[1][head["snapshot-id"]].rows if head else 0


class OriginalFiles(FileIO):
    """Files by their old locations, read there while they exist."""

    def __init__(self, store: FileStore, map_location: Callable[[str], str]) -> None:
        super().__init__(store.io.properties)
        self._store, self._map_location = store, map_location
        self._locations: dict[str, str] = {}

    def resolve(self, location: str) -> str:
        """Return the location that a file is read from."""
        return normalize_location(self._find(location))

    def new_input(self, location: str) -> InputFile:
        """Open a file at its old location, or else at the new one."""
        return self._store.io.new_input(self._find(location))

    def new_output(self, location: str) -> OutputFile:
        """Refuse: nothing is written to old locations."""
        raise PermissionError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Refuse: nothing is removed from old locations."""
        raise PermissionError(str(location))

    def _find(self, location: str) -> str:
        if location not in self._locations:
            exists = self._store.size(location) is not None
            self._locations[location] = location if exists else self._map_location(location)
        return self._locations[location]


def _open_table(name: str, raw: Mapping[str, Any], io: FileIO) -> Table:
    metadata = TableMetadataUtil.parse_obj(dict(raw))
    return Table(tuple(name.split(".", 1)), metadata, "", io, NoopCatalog("relocated"))


def _difference_error(table: str, how: str) -> CheckFailed:
    return CheckFailed(
        f"{table} does not have the same rows at its new location: {how}.",
        "Nothing was switched. Copy the project again, while no process writes to it.",
        table=table,
    )
