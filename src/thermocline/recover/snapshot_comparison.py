"""Whether a table's snapshots hold at one place what they hold at another."""

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
from thermocline.recover.snapshot_checksums import ContentSums

if TYPE_CHECKING:
    from thermocline.recover.file_store import FileStore


class SnapshotComparison:
    """Compares tables before and after. What lies where it was is read there."""

    def __init__(self, store: FileStore, moved: Callable[[str], str]) -> None:
        self._store = store
        self._before = OriginalFiles(store, moved)
        self._contents = ContentSums()

    def rows_of(
        self, table: str, old: Mapping[str, Any], new: Mapping[str, Any], target: str
    ) -> int:
        """How many rows main has. Raises CheckFailed where a snapshot differs."""
        written = json.loads(self._store.read(target))
        if written != json.loads(json.dumps(new)):
            raise _difference_error(table, "its metadata file is not what was written")
        before, after = self._before, self._store.io
        sums = (
            dict(self._contents.of(_open_table(table, old, before), before.place)),
            dict(self._contents.of(_open_table(table, written, after), normalize_location)),
        )
        for snapshot, there in sums[0].items():
            here = sums[1].get(snapshot)
            if here != there:
                found = "is missing" if here is None else f"has {here.rows:,} rows here"
                raise _difference_error(table, f"{snapshot} {found}, {there.rows:,} where it was")
        head = (old.get("refs") or {}).get(MAIN)
        return sums[1][head["snapshot-id"]].rows if head else 0


class OriginalFiles(FileIO):
    """Files by their old locations, read where they were as long as they are there."""

    def __init__(self, store: FileStore, moved: Callable[[str], str]) -> None:
        super().__init__(store.io.properties)
        self._store, self._moved = store, moved
        self._places: dict[str, str] = {}

    def place(self, location: str) -> str:
        """Where a file is read."""
        return normalize_location(self._found(location))

    def new_input(self, location: str) -> InputFile:
        """A file where it was, or else where it was brought to."""
        return self._store.io.new_input(self._found(location))

    def new_output(self, location: str) -> OutputFile:
        """Nothing is written to where tables were."""
        raise PermissionError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Nothing is removed from where tables were."""
        raise PermissionError(str(location))

    def _found(self, location: str) -> str:
        if location not in self._places:
            there = self._store.size(location) is not None
            self._places[location] = location if there else self._moved(location)
        return self._places[location]


def _open_table(name: str, raw: Mapping[str, Any], io: FileIO) -> Table:
    metadata = TableMetadataUtil.parse_obj(dict(raw))
    return Table(tuple(name.split(".", 1)), metadata, "", io, NoopCatalog("relocated"))


def _difference_error(table: str, how: str) -> CheckFailed:
    return CheckFailed(
        f"{table} does not hold the same rows in its new place: {how}.",
        "Nothing was switched. Copy the project again, while nobody writes to it.",
        table=table,
    )
