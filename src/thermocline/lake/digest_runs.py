"""Runs: immutable sorted files of digests, for sets that only grow.

A set is a list of runs, oldest first. An addition writes a run and merges it with the runs before
it that are not twice as large, so a set has a logarithmic number of runs, and each digest is
rewritten a logarithmic number of times. A run is never changed: a value that names its runs stays
valid for as long as the files are there. Digests are distributed evenly, so a lookup in a large run
reads only the bytes around the expected place.

The files are in the folder `_thermocline` of the table. Iceberg's and Trino's removal of orphans
leave it alone: they ignore names with an underscore, or list other folders.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from math import isqrt
from typing import TYPE_CHECKING
from uuid import uuid4

from thermocline.errors import Permanent
from thermocline.lake.crash_points import crash_point
from thermocline.lake.metadata_files import FileCache

if TYPE_CHECKING:
    from pyiceberg.io import FileIO, InputStream

WIDTH = 32
"""Bytes of a digest."""
_FOLDER = "_thermocline"
_READ_WHOLE_BYTES = 1 << 20
"""Runs up to this size are read whole, and cached."""
_MAX_MERGED = 1 << 20
"""A run with more digests is not merged any more, which bounds the cost of one addition."""

_RUNS: FileCache[bytes] = FileCache(64 << 20)


@dataclass(frozen=True)
class DigestRun:
    """A file of sorted digests, by its name, and their number."""

    name: str
    count: int


def digest(*parts: object) -> bytes:
    """Return the digest of a value that consists of these parts."""
    text = "\0".join(map(str, parts))
    return sha256(text.encode(errors="surrogatepass")).digest()


def stored_location(table_location: str, name: str) -> str:
    """Return the location of a run, or of another file beside it."""
    return f"{table_location.rstrip('/')}/{_FOLDER}/{name}"


class RunFiles:
    """The runs of one table. `open_io` is called at the first access to a file."""

    def __init__(self, table: str, location: str, open_io: Callable[[], FileIO]) -> None:
        self._table = table
        self._location = location
        self._open_io = open_io
        self._opened: FileIO | None = None
        self._written: list[str] = []

    def write(self, content: bytes, suffix: str) -> str:
        """Write a file under a new name, and return the name."""
        name = f"{uuid4().hex}.{suffix}"
        with self._io.new_output(stored_location(self._location, name)).create() as stream:
            stream.write(content)
        self._written.append(name)
        crash_point("consumed.written")
        return name

    def discard(self) -> None:
        """Remove the files that were written. Only if their commit certainly did not land."""
        for name in self._written:
            with suppress(OSError):
                self._io.delete(stored_location(self._location, name))
        self._written.clear()

    def read(self, name: str) -> bytes:
        """Return the content of a file."""
        location = stored_location(self._location, name)
        try:
            with self._io.new_input(location).open() as stream:
                return bytes(stream.read())
        except FileNotFoundError as error:
            raise self._missing(location) from error

    def add(self, runs: Sequence[DigestRun], digests: Iterable[bytes]) -> tuple[DigestRun, ...]:
        """Return the runs of the set with more digests in it. The given runs stay as they are."""
        kept, added = list(runs), set(digests)
        while kept and kept[-1].count < 2 * len(added) and kept[-1].count <= _MAX_MERGED:
            last = kept.pop()
            content = self._load(last)
            added.update(content[at : at + WIDTH] for at in range(0, len(content), WIDTH))
        if not added:
            return tuple(kept)
        name = self.write(b"".join(sorted(added)), "run")
        return (*kept, DigestRun(name, len(added)))

    def find(self, runs: Iterable[DigestRun], wanted: Collection[bytes]) -> set[bytes]:
        """Return which of these digests are in the set."""
        found: set[bytes] = set()
        for run in runs:
            left = [each for each in wanted if each not in found]
            if not left:
                break
            window = 2 * WIDTH * _spread(run.count)
            if run.count * WIDTH <= max(_READ_WHOLE_BYTES, window * len(left)):
                content = self._load(run)
                found.update(each for each in left if _contains(content, each))
            else:
                found |= self._search(run, left)
        return found

    def _load(self, run: DigestRun) -> bytes:
        """Return a run's content, which is cached: it never changes."""
        location = stored_location(self._location, run.name)

        def load() -> tuple[bytes, int]:
            content = self.read(run.name)
            if len(content) != run.count * WIDTH:
                raise self._missing(location, "is damaged")
            return content, len(content)

        return _RUNS.get(location, load)

    def _search(self, run: DigestRun, wanted: Iterable[bytes]) -> set[bytes]:
        """Return which digests are in a large run, reading only the places where they would be."""
        location = stored_location(self._location, run.name)
        try:
            with self._io.new_input(location).open() as stream:
                return {each for each in wanted if _search_stream(stream, run.count, each)}
        except FileNotFoundError as error:
            raise self._missing(location) from error
        except EOFError as error:
            raise self._missing(location, "is damaged") from error

    @property
    def _io(self) -> FileIO:
        if self._opened is None:
            self._opened = self._open_io()
        return self._opened

    def _missing(self, location: str, flaw: str = "is not there") -> Permanent:
        return Permanent(
            f"{self._table}: {location} {flaw}. It records what the table has consumed.",
            "Restore the file from a backup; without it, records could land twice.",
            table=self._table,
            file=location,
        )


def _spread(count: int) -> int:
    """Return how far from its expected place a digest is searched first: four deviations."""
    return 2 * isqrt(count) + 16


def _contains(content: bytes, wanted: bytes) -> bool:
    places = range(len(content) // WIDTH)
    at = bisect_left(places, wanted, key=lambda n: content[n * WIDTH : (n + 1) * WIDTH])
    return content[at * WIDTH : (at + 1) * WIDTH] == wanted


def _search_stream(stream: InputStream, count: int, wanted: bytes) -> bool:
    expected, spread = int.from_bytes(wanted[:8]) * count >> 64, _spread(count)
    while True:
        low, high = max(0, expected - spread), min(count, expected + spread)
        stream.seek(low * WIDTH)
        content = stream.read((high - low) * WIDTH)
        if len(content) != (high - low) * WIDTH:
            raise EOFError
        is_low = low == 0 or content[:WIDTH] <= wanted
        if is_low and (high == count or wanted <= content[-WIDTH:]):
            return _contains(content, wanted)
        spread *= 4
