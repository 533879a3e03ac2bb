"""The names of all files that a table needs, from metadata that was read just now.

Files are compared by their names alone, in every spelling: writers give each file a name of its
own, and the same file has many locations (`s3:` and `s3a:`, `file:/` and `/`, doubled slashes,
percent-encoded characters, links). A file whose name is needed anywhere is needed. That may keep a
file too many, never one too few.
"""

from __future__ import annotations

import posixpath
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from thermocline.errors import Permanent, ThermoclineError
from thermocline.lake.carried_state import list_state_files
from thermocline.lake.metadata_files import read_raw_metadata

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from thermocline.lake.lake import Lake


class UnreadableMetadata(Permanent):
    """Part of a table's metadata cannot be read, so it is not known which files it needs."""

    code = "unreadable"


@contextmanager
def unreadable_metadata(table: str) -> Iterator[None]:
    """Convert whatever a damaged or missing file does to its reader to UnreadableMetadata."""
    try:
        yield
    except ThermoclineError:
        raise
    except Exception as error:
        raise UnreadableMetadata(
            f"The metadata of {table} cannot be read: {type(error).__name__}: {error}",
            "`thermo doctor` lists missing files. Until then nothing is removed.",
            table=table,
        ) from error


class ReachableFiles:
    """The names of the files that a table needs, and that waiting commits will add to it."""

    def __init__(self, lake: Lake, table: str) -> None:
        self._lake = lake
        self._table = table
        self._pointer = ""
        self._waiting: frozenset[str] = frozenset()
        self._by_manifest: dict[str, frozenset[str]] = {}
        self._metadata: frozenset[str] = frozenset()

    def refresh(self) -> None:
        """Read the table's current metadata; manifests that were read before are not read again.

        Raise UnreadableMetadata if any part of it cannot be read.
        """
        with unreadable_metadata(self._table):
            # Waiting commits first: one that lands in between is then in the table.
            self._waiting = frozenset(_spell_all(self._find_waiting()))
            table = self._lake.iceberg(self._table)
            if table.metadata_location != self._pointer:
                self._read(table)
                self._pointer = table.metadata_location

    def select_needed(self, paths: Iterable[str]) -> set[str]:
        """Return the paths whose files are needed."""
        every = self._metadata.union(self._waiting, *self._by_manifest.values())
        return {path for path in paths if not every.isdisjoint(spell_name(path))}

    def _find_waiting(self) -> Iterator[str]:
        for entry in self._lake.waiting_commits(self._table):
            yield from entry.paths

    def _read(self, table: Table) -> None:
        raw = read_raw_metadata(table.io, table.metadata_location)
        listed = {entry["snapshot-id"] for entry in raw.get("snapshots") or ()}
        if any(ref["snapshot-id"] not in listed for ref in (raw.get("refs") or {}).values()):
            raise ValueError("a branch or tag has no snapshot")
        if any(not entry.get("manifest-list") for entry in raw.get("snapshots") or ()):
            raise ValueError("a snapshot has no manifest list")
        manifests: dict[str, ManifestFile] = {}
        for snapshot in table.metadata.snapshots:
            manifests.update({m.manifest_path: m for m in snapshot.manifests(table.io)})
        self._by_manifest = {
            path: self._by_manifest.get(path) or _read_manifest(table, manifest)
            for path, manifest in manifests.items()
        }
        summaries = [entry.get("summary") or {} for entry in raw.get("snapshots") or ()]
        states = list_state_files(raw["location"], summaries, raw.get("properties") or {})
        named = (table.metadata_location, *_find_texts(raw), *manifests, *states)
        self._metadata = frozenset(_spell_all(named))


def _read_manifest(table: Table, manifest: ManifestFile) -> frozenset[str]:
    files = (entry.data_file for entry in manifest.fetch_manifest_entry(table.io))
    return frozenset(_spell_all(str(file.file_path) for file in files))


def _find_texts(value: Any) -> Iterator[str]:
    """Yield all texts of a metadata file, known fields and unknown ones: any may name a file."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _find_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _find_texts(each)


def _spell_all(locations: Iterable[str]) -> Iterator[str]:
    for location in locations:
        yield from spell_name(location)


def spell_name(location: str) -> tuple[str, ...]:
    """Return the possible spellings of the name of the file at a location."""
    name = location.rpartition("/")[2]
    if name and name.isascii() and not any(char in name for char in "%?#") and name != "..":
        return (name,)
    found = set()
    for text in (location, location.partition("?")[0], location.partition("#")[0]):
        for _ in range(3):  # encoded once by a writer, and once more by a catalog
            tail = posixpath.normpath(text.rstrip("/") or "/").rpartition("/")[2]
            found |= {tail, unicodedata.normalize("NFC", tail), unicodedata.normalize("NFD", tail)}
            text = unquote(text)
    return tuple(found)
