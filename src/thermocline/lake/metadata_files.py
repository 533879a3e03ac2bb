"""Parsed metadata files, cached by their location.

A commit writes a new metadata file under a new name and never changes an old one, so a file that
was parsed or written once in a process need not be read again. A local file is looked at all the
same, which costs microseconds: somebody may have restored or removed it. What is cached is shared
by all callers: nobody may change it.
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
    """What was made from files, by their version: the most recently used, up to a budget of bytes.

    The bytes are those of the files' JSON; objects take about three times as much. Only a file that
    is larger than the whole budget is never kept.
    """

    def __init__(self, budget: int = _CACHE_BYTES) -> None:
        self._budget = budget
        self._lock = Lock()
        self._kept: OrderedDict[Hashable, tuple[T, int]] = OrderedDict()
        self._bytes = 0

    def get(self, location: Hashable, load: Callable[[], tuple[T, int]]) -> T:
        """The cached value of a file, or what `load` makes of it, with its size in bytes."""
        with self._lock:
            found = self._kept.get(location)
            if found is not None:
                self._kept.move_to_end(location)
                return found[0]
        value, size = load()  # without the lock: others need not wait for this file
        self.put(location, value, size)
        return value

    def peek(self, location: Hashable) -> T | None:
        """The cached value of a file, if there is one."""
        with self._lock:
            found = self._kept.get(location)
            return None if found is None else found[0]

    def put(self, location: Hashable, value: T, size: int) -> None:
        """Keep the value of a file, unless it is there already or too large."""
        with self._lock:
            if location in self._kept or size > self._budget:
                return
            self._kept[location] = value, size
            self._bytes += size
            while self._bytes > self._budget:
                self._bytes -= self._kept.popitem(last=False)[1][1]


RawMetadata = Mapping[str, Any]
"""A metadata file's JSON."""


class MetadataFile:
    """A metadata file's JSON, and what PyIceberg makes of it once that is asked for."""

    def __init__(self, raw: RawMetadata, size: int) -> None:
        self.raw = raw
        self.size = size

    @cached_property
    def metadata(self) -> TableMetadata:
        """PyIceberg's object. It is shared and must not be changed."""
        from thermocline.lake.lazy_metadata import parse_metadata

        return parse_metadata(self.raw)


_FILES: FileCache[MetadataFile] = FileCache()


def load_metadata_file(location: str, read: Callable[[], bytes]) -> MetadataFile:
    """A metadata file; `read` gives its bytes, where this process has not had them before."""

    def load() -> tuple[MetadataFile, int]:
        content = decompress(read())
        return MetadataFile(json.loads(content), len(content)), len(content)

    return _FILES.get(file_version(location), load)


def cache_json(location: str, raw: RawMetadata, size: int) -> None:
    """Have a file that was just written in the cache, so that it need not be read again."""
    _FILES.put(file_version(location), MetadataFile(raw, size), size)


def read_raw_metadata(io: FileIO, location: str) -> RawMetadata:
    """A metadata file's JSON, read from wherever it lies. It must not be changed."""
    return load_metadata_file(location, lambda: _read_bytes(io, location)).raw


def read_metadata(io: FileIO, location: str) -> TableMetadata:
    """A metadata file as PyIceberg's object. It is shared and must not be changed."""
    return load_metadata_file(location, lambda: _read_bytes(io, location)).metadata


def _read_bytes(io: FileIO, location: str) -> bytes:
    with io.new_input(location).open() as stream:
        return bytes(stream.read())


def file_version(location: str) -> Hashable:
    """What a file is cached by: its location, and of a local file when it was last written."""
    path = local_path(location)
    if path is None:
        return location
    found = path.stat()
    return location, found.st_mtime_ns, found.st_size


def local_path(location: str) -> Path | None:
    """The path of a file: URI in any of its spellings, or of a plain path; None elsewhere."""
    if location.startswith("file:"):
        return Path(unquote(urlsplit(location).path))
    return None if "://" in location else Path(location)


def decompress(content: bytes) -> bytes:
    """A metadata file's JSON, whether the file is compressed or not."""
    return gzip.decompress(content) if content[:2] == _GZIP_MAGIC else content
