"""The files of a table: which ones its snapshots need, and which lie there for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from thermocline.lake.metadata import location_path

if TYPE_CHECKING:
    from pyiceberg.table import Table


def referenced_files(table: Table) -> set[str]:
    """Every file that some snapshot, branch or tag of the table needs, and the metadata's own."""
    metadata = table.metadata
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {file.statistics_path for file in metadata.statistics}
    found |= {file.statistics_path for file in metadata.partition_statistics}
    manifests = {}
    for snapshot in metadata.snapshots:
        found.add(snapshot.manifest_list)
        manifests.update({m.manifest_path: m for m in snapshot.manifests(table.io)})
    found |= set(manifests)
    for manifest in manifests.values():
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            found.add(entry.data_file.file_path)
    return {normalize_path(location) for location in found}


class StoredFile(NamedTuple):
    """A file in a table's folder."""

    path: str
    size: int
    modified: datetime


def list_files(table: Table) -> Iterator[tuple[str, int]]:
    """Every file in the table's folder, with its size."""
    return ((file.path, file.size) for file in list_stored_files(table))


def list_stored_files(table: Table) -> Iterator[StoredFile]:
    """Every file in the table's folder, with its size and the time of its last change."""
    location = table.location()
    if location.startswith("file:") or "://" not in location:
        folder = location_path(location)
        for path in folder.rglob("*"):
            # Hadoop's checksum of a file belongs to that file.
            if path.is_file() and not (path.name.startswith(".") and path.suffix == ".crc"):
                found = path.stat()
                modified = datetime.fromtimestamp(found.st_mtime, tz=UTC)
                yield StoredFile(str(path), found.st_size, modified)
        return
    from pyarrow.fs import FileSelector, FileType

    filesystem = _filesystem(table)
    for entry in filesystem.get_file_info(FileSelector(normalize_path(location), recursive=True)):
        if entry.type == FileType.File:
            yield StoredFile(entry.path, entry.size, entry.mtime)


def delete_stored_file(table: Table, path: str) -> None:
    """Delete a file by its path as it is listed. One that is gone already is no error."""
    with suppress(FileNotFoundError):
        if "://" not in table.location() or table.location().startswith("file:"):
            Path(path).unlink()
        else:
            _filesystem(table).delete_file(path)


def _filesystem(table: Table) -> Any:
    parts = urlsplit(table.location())
    return table.io.fs_by_scheme(parts.scheme, parts.netloc)  # type: ignore[attr-defined]


def find_orphans(table: Table) -> list[tuple[str, int]]:
    """Files in the table's folder that no snapshot needs: what runs that died left behind.

    A write that is under way right now has such files too. So nothing is deleted here.
    """
    needed = referenced_files(table)
    return sorted((path, size) for path, size in list_files(table) if path not in needed)


def normalize_path(location: str) -> str:
    """One spelling of a path, whichever engine wrote it: s3, s3a and s3n are one store."""
    if location.startswith("file:"):
        return str(location_path(location))
    parts = urlsplit(location)
    if parts.scheme in {"s3", "s3a", "s3n"}:
        return f"{parts.netloc}{unquote(parts.path)}"
    return location
