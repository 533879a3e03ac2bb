"""The folder of one table: list its files, look at one again, and delete one.

Only files of a table's data and metadata are listed: under `data/` and `metadata/`, with the
endings that Iceberg's writers use, and without hidden names. Symbolic links are never followed, and
paths are relative to the folder, so no other file can be named.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol
from urllib.parse import urlsplit

from thermocline.lake.metadata_files import local_path

if TYPE_CHECKING:
    from pyiceberg.io import FileIO

_ENDINGS = (
    ".parquet", ".orc", ".avro", ".puffin", ".stats", ".metadata.json", ".metadata.json.gz",
    ".gz.metadata.json",
)  # fmt: skip
_FOLDERS = ("data", "metadata")


class FolderFile(NamedTuple):
    """A file of a table's folder. `path` is relative to it."""

    path: str
    size: int
    modified_ms: int


class TableFolder(Protocol):
    """The files of a table's location."""

    def list_files(self) -> Iterator[FolderFile]:
        """Yield the files of data and metadata. Raise OSError if a part cannot be listed."""

    def find(self, path: str) -> FolderFile | None:
        """Return a listed file as it is now, or None if there is none."""

    def delete(self, path: str) -> None:
        """Delete a listed file. A file that is already deleted is no error."""


def open_folder(io: FileIO, location: str) -> TableFolder:
    """Return the folder at a table's location."""
    path = local_path(location)
    return _StoreFolder(io, location) if path is None else _DiskFolder(path)


def is_table_file(path: str) -> bool:
    """Whether a relative path can be that of a data or metadata file of a table."""
    *folders, name = path.split("/")
    if not folders or folders[0] not in _FOLDERS or not name.endswith(_ENDINGS):
        return False
    # The folder of a partition may begin with an underscore: `_day=2026-01-01`.
    hidden = (part for part in (*folders, name) if part[:1] == "_" and "=" not in part)
    return not any(hidden) and not any(part[:1] in (".", "") for part in (*folders, name))


class _DiskFolder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def list_files(self) -> Iterator[FolderFile]:
        for folder in _FOLDERS:
            with suppress(FileNotFoundError):
                yield from self._walk(folder, (self._root / folder).lstat())

    def _walk(self, folder: str, found: os.stat_result) -> Iterator[FolderFile]:
        if not stat.S_ISDIR(found.st_mode):
            return
        with os.scandir(self._root / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}"
                try:
                    each = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # a writer removed it meanwhile
                if stat.S_ISDIR(each.st_mode):
                    yield from self._walk(path, each)
                elif stat.S_ISREG(each.st_mode) and is_table_file(path):
                    yield _local_file(path, each)

    def find(self, path: str) -> FolderFile | None:
        try:
            found = (self._root / path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        regular = stat.S_ISREG(found.st_mode) and self._is_inside(path)
        return _local_file(path, found) if regular else None

    def delete(self, path: str) -> None:
        if not self._is_inside(path):
            raise OSError(f"{path} is not in the table's folder any more")
        target = self._root / path
        with suppress(FileNotFoundError):
            target.unlink()
        with suppress(FileNotFoundError):  # Hadoop's checksum of the file
            target.with_name(f".{target.name}.crc").unlink()

    def _is_inside(self, path: str) -> bool:
        """Whether no folder between the table's folder and the file is a symbolic link."""
        parent = (self._root / path).parent.resolve()
        return is_table_file(path) and parent == self._root.resolve().joinpath(path).parent


def _local_file(path: str, found: os.stat_result) -> FolderFile:
    return FolderFile(path, found.st_size, found.st_mtime_ns // 1_000_000)


class _StoreFolder:
    def __init__(self, io: FileIO, location: str) -> None:
        parts = urlsplit(location)
        self._files: Any = io.fs_by_scheme(parts.scheme, parts.netloc)  # type: ignore[attr-defined]
        self._root = f"{parts.netloc}{parts.path}".rstrip("/")

    def list_files(self) -> Iterator[FolderFile]:
        from pyarrow.fs import FileSelector

        everything = FileSelector(self._root, allow_not_found=True, recursive=True)
        for entry in self._files.get_file_info(everything):
            if (found := self._as_file(entry)) is not None:
                yield found

    def find(self, path: str) -> FolderFile | None:
        return self._as_file(self._files.get_file_info(f"{self._root}/{path}"))

    def delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._files.delete_file(f"{self._root}/{path}")

    def _as_file(self, entry: Any) -> FolderFile | None:
        from pyarrow.fs import FileType

        above, path = entry.path[: len(self._root) + 1], entry.path[len(self._root) + 1 :]
        if entry.type != FileType.File or above != f"{self._root}/" or not is_table_file(path):
            return None
        if entry.mtime_ns is None:
            raise OSError(f"{path} has no modification time")
        return FolderFile(path, entry.size, entry.mtime_ns // 1_000_000)
