"""Read, write, copy and list files by location, on local disk or S3."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.lake.locations import normalize_location, relative_path

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_PART_SUFFIX = ".part"
"""The suffix of a local file until it is complete."""
_CHUNK_BYTES = 8 << 20


class FileStore:
    """Files by location. An existing file is always complete."""

    def __init__(self, io: FileIO) -> None:
        self.io = io

    def list_folder(self, location: str) -> FolderListing:
        """List a folder once, with all sizes."""
        return FolderListing(self, location, dict(self._list_files(normalize_location(location))))

    def size(self, location: str) -> int | None:
        """Return the size of a file; None if it does not exist or cannot be read."""
        path = _local_path(location)
        if path is not None:
            try:
                return path.stat().st_size if path.is_file() else None
            except OSError:
                return None
        try:
            return len(self.io.new_input(location))
        except OSError:
            return None

    def read(self, location: str) -> bytes:
        """Read the bytes of a file."""
        path = _local_path(location)
        if path is not None:
            return path.read_bytes()
        with self.io.new_input(location).open() as stream:
            return bytes(stream.read())

    def write(self, location: str, content: bytes) -> None:
        """Write a file, or overwrite it."""
        path = _local_path(location)
        if path is None:
            with self.io.new_output(location).create(overwrite=True) as stream:
                stream.write(content)
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        _part_path(path).write_bytes(content)
        _part_path(path).replace(path)

    def copy(self, source: str, target: str) -> None:
        """Copy a file."""
        there, here = _local_path(source), _local_path(target)
        if here is not None:
            here.parent.mkdir(parents=True, exist_ok=True)
        if there is not None and here is not None:
            shutil.copyfile(there, _part_path(here))
        elif here is not None:
            with self.io.new_input(source).open() as stream, _part_path(here).open("wb") as out:
                while chunk := stream.read(_CHUNK_BYTES):
                    out.write(chunk)
        else:
            with (
                self.io.new_input(source).open() as stream,
                self.io.new_output(target).create(overwrite=True) as sink,
            ):
                while chunk := stream.read(_CHUNK_BYTES):
                    sink.write(chunk)
        if here is not None:
            _part_path(here).replace(here)

    def delete(self, location: str) -> None:
        """Remove a file, if it exists and can be removed."""
        with suppress(OSError):
            self.io.delete(location)

    def _list_files(self, folder: str) -> Iterator[tuple[str, int]]:
        if folder.startswith("/"):
            for path in Path(folder).rglob("*"):
                if path.suffix != _PART_SUFFIX and path.is_file():
                    yield str(path), path.stat().st_size
            return
        from pyarrow.fs import FileSelector, FileType

        scheme, _, rest = folder.partition("://")
        bucket = rest.partition("/")[0]
        filesystem = self.io.fs_by_scheme(scheme, bucket)  # type: ignore[attr-defined]
        selector = FileSelector(rest, recursive=True, allow_not_found=True)
        for entry in filesystem.get_file_info(selector):
            if entry.type == FileType.File:
                yield f"{scheme}://{entry.path}", entry.size


@dataclass(frozen=True)
class FolderListing:
    """A listing of a folder. Files outside of it are looked up one by one."""

    store: FileStore
    location: str
    _sizes: Mapping[str, int]

    def size(self, location: str) -> int | None:
        """Return the size of a file; None if it does not exist."""
        if relative_path(location, self.location) is None:
            return self.store.size(location)
        return self._sizes.get(normalize_location(location))


def _local_path(location: str) -> Path | None:
    path = normalize_location(location)
    return Path(path) if path.startswith("/") else None


def _part_path(path: Path) -> Path:
    return path.with_name(path.name + _PART_SUFFIX)
