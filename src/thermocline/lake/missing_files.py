"""Find missing files: files that a table's metadata references but that do not exist.

An engine reports such a file with its library's own message. This module finds the table that needs
it: it compares one listing of the table's folder with the files that its branches and tags
reference.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.lake import carried_state
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
    """A file that does not exist, and its kind, such as "data file"."""

    table: str
    kind: str
    path: str

    def __str__(self) -> str:
        return f"{self.table}: its {self.kind} {self.path} is not there"


class MissingFileFinder:
    """Finds the files that snapshots of one table need and that do not exist."""

    def __init__(self, lake: Lake, table: str) -> None:
        self.state: TableState = lake.state(table)
        self._table = lake.iceberg(table)
        self._listed = {path for path, _ in list_files(self._table)}
        self._known: dict[str, bool] = {}
        self._checked: dict[str, list[MissingFile]] = {}

    def find(self, snapshot: int) -> list[MissingFile]:
        """Return the files that a snapshot needs and that do not exist."""
        found = self._table.snapshot_by_id(snapshot)
        if found is None:
            return []
        if not self._exists(found.manifest_list):
            return [self._missing_file("manifest list", found.manifest_list)]
        manifests = found.manifests(self._table.io)
        return [each for manifest in manifests for each in self._check(manifest, self._table.io)]

    def find_records(self, snapshot: int) -> list[MissingFile]:
        """Return the files with what was consumed up to a snapshot that do not exist."""
        found = carried_state.read_state(self.state, snapshot)
        locations = carried_state.stored_files(self.state.location, found)
        return [self._missing_file("record", each) for each in locations if not self._exists(each)]

    def _check(self, manifest: ManifestFile, io: FileIO) -> list[MissingFile]:
        path = manifest.manifest_path
        if path not in self._checked:
            if self._exists(path):
                self._checked[path] = [
                    self._missing_file(
                        _CONTENT_KINDS[int(entry.data_file.content)], entry.data_file.file_path
                    )
                    for entry in manifest.fetch_manifest_entry(io, discard_deleted=True)
                    if not self._exists(entry.data_file.file_path)
                ]
            else:
                self._checked[path] = [self._missing_file("manifest", path)]
        return self._checked[path]

    def _missing_file(self, kind: str, location: str) -> MissingFile:
        return MissingFile(self.state.table, kind, normalize_path(location))

    def _exists(self, location: str) -> bool:
        if normalize_path(location) in self._listed:
            return True
        if location not in self._known:  # it may be outside the table's folder
            self._known[location] = self._table.io.new_input(location).exists()
        return self._known[location]


_CONTENT_KINDS = ("data file", "delete file", "delete file")
"""By Iceberg's content number: data, position deletes, equality deletes."""


def find_missing_files(lake: Lake, table: str) -> Iterator[MissingFile]:
    """Yield the files that the branches and tags of a table need and that do not exist.

    Branches of runs are skipped: only the run reads its branch.
    """
    try:
        finder = MissingFileFinder(lake, table)
    except MetadataFileMissing as error:
        yield MissingFile(table, "metadata file", str(error.details.get("file", "")))
        return
    refs = finder.state.refs.values()
    heads = dict.fromkeys(ref.snapshot for ref in refs if not ref.name.startswith(RUN_PREFIX))
    yield from dict.fromkeys(each for head in heads for each in finder.find(head))
    yield from dict.fromkeys(each for head in heads for each in finder.find_records(head))


def may_be_missing_file(error: BaseException) -> bool:
    """Whether a missing file may have caused an error."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, FileNotFoundError) or _MISSING_FILE_TEXTS.search(str(seen)):
            return True
        seen = seen.__cause__ or seen.__context__
    return False
