"""Sums over a table's data files by day: what routing needs to know of files, without a list.

A file counts at the day of the first time in it and at the day of the last. The files whose times
meet a range of days are those that begin by its end, less those that end before its start. Sums
are folded from one manifest at a time, and two states of a table share what did not change, so
that a commit costs what its new manifests hold, whatever the table holds beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NamedTuple

SMALL_FILE = 32_000_000
"""Files with fewer bytes than this count as small."""

_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1).toordinal()
_UNKNOWN_BEGIN, _UNKNOWN_END = -(1 << 40), 1 << 40
"""Days of files whose first or last time is not known: before and after all others."""
_DIGESTS = 1 << 128
_CHUNK = 6
"""A chunk has 64 days."""


class Sums(NamedTuple):
    """Sums over some files. `digest` stands for which files they are, in whatever order."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    small: int = 0
    digest: int = 0

    def plus(self, other: Sums) -> Sums:
        """Sums over these files and others."""
        return Sums(
            self.files + other.files,
            self.bytes + other.bytes,
            self.rows + other.rows,
            self.small + other.small,
            (self.digest + other.digest) % _DIGESTS,
        )

    def minus(self, other: Sums) -> Sums:
        """Sums over these files without some of them."""
        return Sums(
            max(self.files - other.files, 0),
            max(self.bytes - other.bytes, 0),
            max(self.rows - other.rows, 0),
            max(self.small - other.small, 0),
            (self.digest - other.digest) % _DIGESTS,
        )


NOTHING = Sums()
DaySums = tuple[tuple[int, Sums], ...]
"""Days and the sums of each."""


class ManifestSums(NamedTuple):
    """The sums of one manifest, by the day that files begin and by the day that they end."""

    begins: DaySums
    ends: DaySums


class FileTimes(NamedTuple):
    """A data file: its size, its first and last time in microseconds since 1970, its identity."""

    bytes: int
    rows: int
    low: int | None
    high: int | None
    digest: int


class ByDay:
    """Sums by day, of which two that differ in a few days share the rest. Never changes."""

    __slots__ = ("_chunks", "total")

    def __init__(self, chunks: Mapping[int, _Chunk] | None = None, total: Sums = NOTHING) -> None:
        self._chunks: Mapping[int, _Chunk] = chunks or {}
        self.total = total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByDay) and self._chunks == other._chunks

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[tuple[int, Sums]]:
        for key in sorted(self._chunks):
            yield from sorted(self._chunks[key].days.items())

    def at(self, day: int) -> Sums:
        """The sums of one day."""
        chunk = self._chunks.get(day >> _CHUNK)
        return NOTHING if chunk is None else chunk.days.get(day, NOTHING)

    def before(self, day: int) -> Sums:
        """The sums of all days before one."""
        of, found = day >> _CHUNK, NOTHING
        for key, chunk in self._chunks.items():
            if key < of:
                found = found.plus(chunk.total)
        if (last := self._chunks.get(of)) is not None:
            for each, sums in last.days.items():
                if each < day:
                    found = found.plus(sums)
        return found

    def with_days(self, days: Mapping[int, Sums]) -> ByDay:
        """The same with other sums for some days; a day without files is left out."""
        if not days:
            return self
        changed: dict[int, dict[int, Sums]] = {}
        for day, sums in days.items():
            changed.setdefault(day >> _CHUNK, {})[day] = sums
        chunks, total = dict(self._chunks), self.total
        for key, some in changed.items():
            before = chunks.pop(key, _Chunk(NOTHING, {}))
            kept = {d: sums for d, sums in {**before.days, **some}.items() if sums.files}
            after = NOTHING
            for sums in kept.values():
                after = after.plus(sums)
            total = total.minus(before.total).plus(after)
            if kept:
                chunks[key] = _Chunk(after, kept)
        return ByDay(chunks, total)

    def folded(self, came: Iterable[DaySums], gone: Iterable[DaySums]) -> ByDay:
        """The same with the files of some manifests, and without those of others."""
        days: dict[int, Sums] = {}
        for some in came:
            for day, sums in some:
                days[day] = (days[day] if day in days else self.at(day)).plus(sums)
        for some in gone:
            for day, sums in some:
                days[day] = (days[day] if day in days else self.at(day)).minus(sums)
        return self.with_days(days)

    def changes_since(self, other: ByDay) -> dict[int, Sums]:
        """The days to give to `other.with_days` to have this."""
        found: dict[int, Sums] = {}
        for key in self._chunks.keys() | other._chunks.keys():
            mine, theirs = self._chunks.get(key), other._chunks.get(key)
            if mine is theirs:
                continue
            now = {} if mine is None else mine.days
            then = {} if theirs is None else theirs.days
            found |= {day: sums for day, sums in now.items() if then.get(day) != sums}
            found |= dict.fromkeys(then.keys() - now.keys(), NOTHING)
        return found


class _Chunk(NamedTuple):
    total: Sums
    days: Mapping[int, Sums]


@dataclass(frozen=True)
class FileSums:
    """The sums of all data files of a table: by the day that they begin, and that they end."""

    begins: ByDay = field(default_factory=ByDay)
    ends: ByDay = field(default_factory=ByDay)

    @property
    def total(self) -> Sums:
        """The sums over all files."""
        return self.begins.total

    def within(self, first: int | None, last: int | None) -> Sums:
        """The files that can have rows of these days, both included; None: no bound."""
        begun = self.begins.total if last is None else self.begins.before(last + 1)
        return begun if first is None else begun.minus(self.ends.before(first))

    def begun_before(self, day: int) -> Sums:
        """The files that can have rows before a day."""
        return self.begins.before(day)

    def folded(self, came: Iterable[ManifestSums], gone: Iterable[ManifestSums]) -> FileSums:
        """The same with the files of some manifests, and without those of others."""
        came, gone = list(came), list(gone)
        return FileSums(
            self.begins.folded((each.begins for each in came), (each.begins for each in gone)),
            self.ends.folded((each.ends for each in came), (each.ends for each in gone)),
        )


def manifest_sums(files: Iterable[FileTimes]) -> ManifestSums:
    """The sums of the files of one manifest."""
    begins: dict[int, Sums] = {}
    ends: dict[int, Sums] = {}
    for file in files:
        low, high = file.low, file.high
        if low is not None and high is not None and low > high:
            low = high = None  # nothing is concluded from bounds that cannot be
        one = Sums(1, file.bytes, file.rows, int(file.bytes < SMALL_FILE), file.digest)
        begin = _UNKNOWN_BEGIN if low is None else low // _DAY
        end = _UNKNOWN_END if high is None else high // _DAY
        begins[begin] = begins.get(begin, NOTHING).plus(one)
        ends[end] = ends.get(end, NOTHING).plus(one)
    return ManifestSums(tuple(begins.items()), tuple(ends.items()))


def file_sums(files: Iterable[FileTimes]) -> FileSums:
    """The sums of these files."""
    return FileSums().folded([manifest_sums(files)], [])


def day_of(at: datetime) -> int:
    """The day of a moment, since 1970; without a zone it is UTC."""
    utc = at.astimezone(UTC) if at.tzinfo else at
    return utc.toordinal() - _EPOCH


def day_after(at: datetime) -> int:
    """The first day that has nothing before a moment; without a zone it is UTC."""
    utc = at.astimezone(UTC) if at.tzinfo else at
    midnight = utc.time() == datetime.min.time()
    return day_of(utc) + (not midnight)
