"""Sums over a table's data files by day: what routing needs to know of files, without a list.

A file counts at the day of its first time and at the day of its last. The files whose times overlap
a range of days are those that begin by its end, minus those that end before its start. Sums are
computed per manifest, and two states of a table share what did not change, so that the cost of a
commit follows its new manifests, not the table.
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
_NO_BEGIN, _NO_END = -(1 << 40), 1 << 40
"""Days of files whose first or last time is not known: before and after all others."""
_DIGESTS = 1 << 128
_CHUNK = 6
"""A chunk has 64 days."""


class FileTotals(NamedTuple):
    """Sums over some files. `digest` identifies the set of files."""

    files: int = 0
    bytes: int = 0
    rows: int = 0
    small: int = 0
    digest: int = 0

    def plus(self, other: FileTotals) -> FileTotals:
        """Return the sums over these files and others."""
        return FileTotals(
            self.files + other.files,
            self.bytes + other.bytes,
            self.rows + other.rows,
            self.small + other.small,
            (self.digest + other.digest) % _DIGESTS,
        )

    def minus(self, other: FileTotals) -> FileTotals:
        """Return the sums over these files without some of them."""
        return FileTotals(
            max(self.files - other.files, 0),
            max(self.bytes - other.bytes, 0),
            max(self.rows - other.rows, 0),
            max(self.small - other.small, 0),
            (self.digest - other.digest) % _DIGESTS,
        )


NO_FILES = FileTotals()
DayTotals = tuple[tuple[int, FileTotals], ...]
"""Days and the sums of each."""


class ManifestTotals(NamedTuple):
    """The sums of one manifest, by the day that files begin and by the day that they end."""

    begins: DayTotals
    ends: DayTotals


class FileTimes(NamedTuple):
    """A data file: its size, its first and last time in microseconds since 1970, its identity."""

    bytes: int
    rows: int
    low: int | None
    high: int | None
    digest: int


class DailyTotals:
    """Sums by day. Immutable; two versions that differ in a few days share the rest."""

    __slots__ = ("_chunks", "total")

    def __init__(
        self, chunks: Mapping[int, _DayChunk] | None = None, total: FileTotals = NO_FILES
    ) -> None:
        self._chunks: Mapping[int, _DayChunk] = chunks or {}
        self.total = total

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DailyTotals) and self._chunks == other._chunks

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[tuple[int, FileTotals]]:
        for key in sorted(self._chunks):
            yield from sorted(self._chunks[key].days.items())

    def at(self, day: int) -> FileTotals:
        """Return the sums of one day."""
        chunk = self._chunks.get(day >> _CHUNK)
        return NO_FILES if chunk is None else chunk.days.get(day, NO_FILES)

    def before(self, day: int) -> FileTotals:
        """Return the sums of all days before one."""
        of, found = day >> _CHUNK, NO_FILES
        for key, chunk in self._chunks.items():
            if key < of:
                found = found.plus(chunk.total)
        if (last := self._chunks.get(of)) is not None:
            for each, sums in last.days.items():
                if each < day:
                    found = found.plus(sums)
        return found

    def with_days(self, days: Mapping[int, FileTotals]) -> DailyTotals:
        """Return a version with other sums for some days; days without files are left out."""
        if not days:
            return self
        changed: dict[int, dict[int, FileTotals]] = {}
        for day, sums in days.items():
            changed.setdefault(day >> _CHUNK, {})[day] = sums
        chunks, total = dict(self._chunks), self.total
        for key, some in changed.items():
            before = chunks.pop(key, _DayChunk(NO_FILES, {}))
            kept = {d: sums for d, sums in {**before.days, **some}.items() if sums.files}
            after = NO_FILES
            for sums in kept.values():
                after = after.plus(sums)
            total = total.minus(before.total).plus(after)
            if kept:
                chunks[key] = _DayChunk(after, kept)
        return DailyTotals(chunks, total)

    def with_manifests(
        self, added: Iterable[DayTotals], removed: Iterable[DayTotals]
    ) -> DailyTotals:
        """Return a version with the files of some manifests, and without those of others."""
        days: dict[int, FileTotals] = {}
        for some in added:
            for day, sums in some:
                days[day] = (days[day] if day in days else self.at(day)).plus(sums)
        for some in removed:
            for day, sums in some:
                days[day] = (days[day] if day in days else self.at(day)).minus(sums)
        return self.with_days(days)

    def changes_since(self, other: DailyTotals) -> dict[int, FileTotals]:
        """Return the days that `other.with_days` needs to become this."""
        found: dict[int, FileTotals] = {}
        for key in self._chunks.keys() | other._chunks.keys():
            mine, theirs = self._chunks.get(key), other._chunks.get(key)
            if mine is theirs:
                continue
            now = {} if mine is None else mine.days
            then = {} if theirs is None else theirs.days
            found |= {day: sums for day, sums in now.items() if then.get(day) != sums}
            found |= dict.fromkeys(then.keys() - now.keys(), NO_FILES)
        return found


class _DayChunk(NamedTuple):
    total: FileTotals
    days: Mapping[int, FileTotals]


@dataclass(frozen=True)
class TableFileTotals:
    """The sums of all data files of a table, by the days that they begin and end."""

    begins: DailyTotals = field(default_factory=DailyTotals)
    ends: DailyTotals = field(default_factory=DailyTotals)

    @property
    def total(self) -> FileTotals:
        """The sums over all files."""
        return self.begins.total

    def within(self, first: int | None, last: int | None) -> FileTotals:
        """Return the sums of files that can have rows of these days, inclusive; None: no bound."""
        begun = self.begins.total if last is None else self.begins.before(last + 1)
        return begun if first is None else begun.minus(self.ends.before(first))

    def begun_before(self, day: int) -> FileTotals:
        """Return the sums of files that can have rows before a day."""
        return self.begins.before(day)

    def with_manifests(
        self, added: Iterable[ManifestTotals], removed: Iterable[ManifestTotals]
    ) -> TableFileTotals:
        """Return a version with the files of some manifests, and without those of others."""
        added, removed = list(added), list(removed)
        return TableFileTotals(
            self.begins.with_manifests(
                (each.begins for each in added), (each.begins for each in removed)
            ),
            self.ends.with_manifests(
                (each.ends for each in added), (each.ends for each in removed)
            ),
        )


def sum_manifest(files: Iterable[FileTimes]) -> ManifestTotals:
    """Return the sums of the files of one manifest."""
    begins: dict[int, FileTotals] = {}
    ends: dict[int, FileTotals] = {}
    for file in files:
        low, high = file.low, file.high
        if low is not None and high is not None and low > high:
            low = high = None  # ignore impossible bounds
        one = FileTotals(1, file.bytes, file.rows, int(file.bytes < SMALL_FILE), file.digest)
        begin = _NO_BEGIN if low is None else low // _DAY
        end = _NO_END if high is None else high // _DAY
        begins[begin] = begins.get(begin, NO_FILES).plus(one)
        ends[end] = ends.get(end, NO_FILES).plus(one)
    return ManifestTotals(tuple(begins.items()), tuple(ends.items()))


def sum_files(files: Iterable[FileTimes]) -> TableFileTotals:
    """Return the sums of these files."""
    return TableFileTotals().with_manifests([sum_manifest(files)], [])


def day_of(at: datetime) -> int:
    """Return the number of days since 1970 of a time; without a zone it is UTC."""
    utc = at.astimezone(UTC) if at.tzinfo else at
    return utc.toordinal() - _EPOCH


def day_after(at: datetime) -> int:
    """Return the first day that begins at or after a time; without a zone it is UTC."""
    utc = at.astimezone(UTC) if at.tzinfo else at
    midnight = utc.time() == datetime.min.time()
    return day_of(utc) + (not midnight)
