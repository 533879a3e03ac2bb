"""Files that a table's metadata names and that are not there: removed by hand, or never restored.

An engine says of such a file what its library says. Here it is found which table needs it: one
listing of the table's folder, against the files that the snapshots of its branches and tags name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.lake.metadata import MetadataFileMissing, TableState
from thermocline.lake.naming import RUN_PREFIX
from thermocline.lake.orphans import list_files, normalize_path

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile

    from thermocline.lake import Lake

_MISSING_FILE_TEXTS = re.compile(
    r"No such file|not? found|does(?:n't| not) exist|FileNotFound|NotFoundException"
    r"|No files found|Cannot open file|Could not (?:find|open)|NoSuchKey|is not there",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class MissingFile:
    """A file that is not there. `kind` says what of the table it is."""

    table: str
    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.table}: its {self.kind} {self.path} is not there"


class TableFiles:
    """The files of one table: which ones there are, and which ones snapshots need."""

    def __init__(self, lake: Lake, table: str) -> None:
        self.state: TableState = lake.state(table)
        self._table = lake.iceberg(table)
        self._there = {path for path, _ in list_files(self._table)}
        self._known: dict[str, bool] = {}
        self._checked: dict[str, list[MissingFile]] = {}

    def missing(self, snapshot: int) -> list[MissingFile]:
        """The files that a snapshot needs and that are not there."""
        found = self._table.snapshot_by_id(snapshot)
        if found is None:
            return []
        if not self._is_there(found.manifest_list):
            return [self._named("manifest list", found.manifest_list)]
        manifests = found.manifests(self._table.io)
        return [each for manifest in manifests for each in self._of(manifest, self._table.io)]

    def _of(self, manifest: ManifestFile, io: FileIO) -> list[MissingFile]:
        path = manifest.manifest_path
        if path not in self._checked:
            if self._is_there(path):
                self._checked[path] = [
                    self._named(
                        _CONTENT_KINDS[int(entry.data_file.content)], entry.data_file.file_path
                    )
                    for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
                    if not self._is_there(entry.data_file.file_path)
                ]
            else:
                self._checked[path] = [self._named("manifest", path)]
        return self._checked[path]

    def _named(self, kind: str, location: str) -> MissingFile:
        return MissingFile(self.state.table, kind, normalize_path(location))

    def _is_there(self, location: str) -> bool:
        if normalize_path(location) in self._there:
            return True
        if location not in self._known:  # it may lie outside of the table's folder
            self._known[location] = self._table.io.new_input(location).exists()
        return self._known[location]


_CONTENT_KINDS = ("data file", "delete file", "delete file")
"""By what Iceberg calls the content of a file: data, position deletes, equality deletes."""


def find_missing_files(lake: Lake, table: str) -> Iterator[MissingFile]:
    """Yield the files that the branches and tags of a table need and that are not there.

    The private branch of a run is left out: nobody reads it but that run.
    """
    try:
        files = TableFiles(lake, table)
    except MetadataFileMissing as gone:
        yield MissingFile(table, "metadata file", str(gone.details.get("file", "")))
        return
    refs = files.state.refs.values()
    heads = dict.fromkeys(ref.snapshot for ref in refs if not ref.name.startswith(RUN_PREFIX))
    yield from dict.fromkeys(each for head in heads for each in files.missing(head))


def may_be_missing_file(error: BaseException) -> bool:
    """Whether an error may have been raised because a file is not there."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, FileNotFoundError) or _MISSING_FILE_TEXTS.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
