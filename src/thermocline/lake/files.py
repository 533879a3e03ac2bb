"""The files of a table: which ones its snapshots need, and which lie there for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from thermocline.lake.metadata import local_path

if TYPE_CHECKING:
    from pyiceberg.table import Table


def reachable(table: Table) -> set[str]:
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
    return {path_of(location) for location in found}


def present(table: Table) -> Iterator[tuple[str, int]]:
    """Every file in the table's folder, with its size."""
    location = table.location()
    if location.startswith("file:") or "://" not in location:
        folder = local_path(location)
        for path in folder.rglob("*"):
            # Hadoop's checksum of a file belongs to that file.
            if path.is_file() and not (path.name.startswith(".") and path.suffix == ".crc"):
                yield str(path), path.stat().st_size
        return
    from pyarrow.fs import FileSelector, FileType

    parts = urlsplit(location)
    filesystem = table.io.fs_by_scheme(parts.scheme, parts.netloc)  # type: ignore[attr-defined]
    for entry in filesystem.get_file_info(FileSelector(path_of(location), recursive=True)):
        if entry.type == FileType.File:
            yield entry.path, entry.size


def orphans(table: Table) -> list[tuple[str, int]]:
    """Files in the table's folder that no snapshot needs: what runs that died left behind.

    A write that is under way right now has such files too. So nothing is deleted here.
    """
    needed = reachable(table)
    return sorted((path, size) for path, size in present(table) if path not in needed)


def path_of(location: str) -> str:
    """One spelling of a path, whichever engine wrote it: s3, s3a and s3n are one store."""
    if location.startswith("file:"):
        return str(local_path(location))
    parts = urlsplit(location)
    if parts.scheme in {"s3", "s3a", "s3n"}:
        return f"{parts.netloc}{unquote(parts.path)}"
    return location
