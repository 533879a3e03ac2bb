"""Read and parse metadata files, cached by their location.

A commit writes a new metadata file under a new name and never changes an old one, so a file that
was parsed or written once in a process is not read again. The time and size of a local file are
checked all the same, which costs microseconds: it may have been restored or removed. Cached values
are shared by all callers and must not be modified.
"""

from __future__ import annotations

import gzip
import json
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.table.metadata import TableMetadata

T = TypeVar("T")

_GZIP_MAGIC = b"\x1f\x8b"
_CACHE_BYTES = 32 << 20


class FileCache(Generic[T]):
    """An LRU cache of values parsed from files, by file version, up to a budget of bytes.

    The budget counts the bytes of the files' JSON; parsed objects need about three times as much. A
    file larger than the whole budget is not cached.
    """

    def __init__(self, budget: int = _CACHE_BYTES) -> None:
        self._budget = budget
        self._lock = Lock()
        self._entries: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def get(self, location: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """Return a file's cached value, or load it: `load` returns the value and its bytes."""
        with self._lock:
            found = self._entries.get(location)
            if found is not None:
                self._entries.move_to_end(location)
                return found[0]
        value, size = load()  # without the lock, so that other files are not blocked
        self.put(location, value, size)
        return value

    def peek(self, location: Hashable) -> T | None:
        """Return a file's cached value, if there is one."""
        with self._lock:
            found = self._entries.get(location)
            return None if found is None else found[0]

    def put(self, location: Hashable, value: T, size: int) -> None:
        """Cache a file's value, unless it is cached already or too large."""
        with self._lock:
            if location in self._entries or size > self._budget:
                return
            self._entries[location] = value, size
            self._bytes += size
            while self._bytes > self._budget:
                self._bytes -= self._entries.popitem(last=False)[1][1]


RawMetadata = Mapping[str, Any]
"""A metadata file's JSON."""


class MetadataFile:
    """A metadata file's JSON, and PyIceberg's object of it, parsed on access."""

    def __init__(self, raw: RawMetadata, size: int) -> None:
        self.raw = raw
        self.size = size

    @cached_property
    def metadata(self) -> TableMetadata:
        """PyIceberg's object. It is shared and must not be modified."""
        from thermocline.lake.lazy_metadata import parse_metadata

        return parse_metadata(self.raw)


_FILES: FileCache[MetadataFile] = FileCache()


def load_metadata_file(location: str, read: Callable[[], bytes]) -> MetadataFile:
    """Load a metadata file; `read` returns its bytes, if it is not cached."""

    def load() -> tuple[MetadataFile, int]:
        content = decompress(read())
        return MetadataFile(json.loads(content), len(content)), len(content)

    return _FILES.get(file_version(location), load)


def cache_json(location: str, raw: RawMetadata, size: int) -> None:
    """Cache a file that was just written, so that it is not read again."""
    _FILES.put(file_version(location), MetadataFile(raw, size), size)


def read_raw_metadata(io: FileIO, location: str) -> RawMetadata:
    """Read a metadata file's JSON. It is shared and must not be modified."""
    return load_metadata_file(location, lambda: _read_bytes(io, location)).raw


def read_metadata(io: FileIO, location: str) -> TableMetadata:
    """Read a metadata file as PyIceberg's object. It is shared and must not be modified."""
    return load_metadata_file(location, lambda: _read_bytes(io, location)).metadata


def _read_bytes(io: FileIO, location: str) -> bytes:
    with io.new_input(location).open() as stream:
        return bytes(stream.read())


def file_version(location: str) -> Hashable:
    """Return a file's cache key: its location, and for a local file its time and size."""
    path = local_path(location)
    if path is None:
        return location
    found = path.stat()
    return location, found.st_mtime_ns, found.st_size


def local_path(location: str) -> Path | None:
    """Return the path of a file: URI in any spelling, or of a path; None for other URIs."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return None if "://" in location else Path(location)


def decompress(content: bytes) -> bytes:
    """Return a metadata file's JSON, decompressed if necessary."""
    return gzip.decompress(content) if content[:2] == _GZIP_MAGIC else content
