"""The files of a table: those that its snapshots need, and orphans."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from thermocline.lake import carried_state
from thermocline.lake.metadata import location_path

if TYPE_CHECKING:
    from pyiceberg.table import Table


def referenced_files(table: Table) -> set[str]:
    """Return all files that the table's snapshots need, and its metadata files."""
    metadata = table.metadata
    found = {table.metadata_location, *(entry.metadata_file for entry in metadata.metadata_log)}
    found |= {file.statistics_path for file in metadata.statistics}
    found |= {file.statistics_path for file in metadata.partition_statistics}
    summaries = (s.summary.additional_properties for s in metadata.snapshots if s.summary)
    found |= carried_state.list_state_files(metadata.location, summaries, metadata.properties)
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
    """Yield the files in the table's folder, with their sizes."""
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


def _filesystem(table: Table) -> Any:
    parts = urlsplit(table.location())
    return table.io.fs_by_scheme(parts.scheme, parts.netloc)  # type: ignore[attr-defined]


def find_orphans(table: Table) -> list[tuple[str, int]]:
    """Return the files in the table's folder that no snapshot needs, as dead runs leave them.

    A running write has such files too, so nothing is deleted here.
    """
    needed = referenced_files(table)
    return sorted((path, size) for path, size in list_files(table) if path not in needed)


def normalize_path(location: str) -> str:
    """Return the canonical spelling of a path: s3, s3a and s3n are the same store."""
    if location.startswith("file:"):
        return str(location_path(location))
    parts = urlsplit(location)
    if parts.scheme in {"s3", "s3a", "s3n"}:
        return f"{parts.netloc}{unquote(parts.path)}"
    return location
