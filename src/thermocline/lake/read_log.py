"""How often tables are read, how much, and by which columns: a small log per project.

It has a count per table and day: no values, no query texts, no callers. It is written at most once
a minute, and after a kill that minute is missing, which only makes a plan a little worse. Tables,
days and columns are bounded, and so is the file.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from thermocline.config import private_files
from thermocline.telemetry import log

FILE = "reads.jsonl"
FLUSH_SECONDS = 60.0
LOCK_ATTEMPTS, LOCK_PAUSE = 20, 0.05
MAX_DAYS = 30
MAX_TABLES = 500
MAX_COLUMNS = 32
"""Columns of a table that are counted per day, those used most."""
MAX_BYTES = 1 << 20
"""A log of this size is summed up by day; if that is not enough, its oldest days are dropped."""
RATE_DAYS = 7
"""Rates are averages over so many days, or over the log's age if that is less."""
_DAY = 86_400


@dataclass
class ReadCounts:
    """Scans of one table on one day."""

    scans: int = 0
    files: int = 0
    bytes: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    """Scans by the columns that they filtered by a comparison with a value."""

    def add(self, other: ReadCounts) -> None:
        """Add the counts of other scans."""
        self.scans += other.scans
        self.files += other.files
        self.bytes += other.bytes
        for name, count in other.columns.items():
            if name in self.columns or len(self.columns) < MAX_COLUMNS:
                self.columns[name] = self.columns.get(name, 0) + count


@dataclass(frozen=True)
class ReadRate:
    """The scans of a table per day: how many, of what, filtered by which columns."""

    scans: float = 0.0
    files: float = 0.0
    bytes: float = 0.0
    columns: Mapping[str, float] = field(default_factory=dict)


_Counts = dict[tuple[int, str], ReadCounts]
"""Counts by day and table."""


class ReadLog:
    """The reads of one process, which it adds to the log of its project."""

    def __init__(self, project: Path, clock: Callable[[], float] = time.time) -> None:
        self._project = project
        self._clock = clock
        self._pending: _Counts = {}
        self._lock = Lock()
        self._writing = Lock()
        self._flushed_at = 0.0

    def record(self, table: str, files: int, size: int, columns: Collection[str]) -> None:
        """Count a scan of a table. Writes at most once a minute, in a thread of its own."""
        now = self._clock()
        day = int(now // _DAY)
        counted = dict.fromkeys(sorted(columns)[:MAX_COLUMNS], 1)
        with self._lock:
            counts = self._pending.get((day, table))
            if counts is None:
                if len(self._pending) >= 2 * MAX_TABLES:
                    return
                counts = self._pending[day, table] = ReadCounts()
            counts.add(ReadCounts(1, files, size, counted))
            if abs(now - self._flushed_at) < FLUSH_SECONDS:  # the clock may have been set back
                return
            self._flushed_at = now
        # No daemon: the process of a short command must not end in the middle.
        Thread(target=self.flush, name="read-log").start()

    def flush(self) -> None:
        """Write what has been counted. Where that is not possible, it is dropped."""
        with self._writing:
            with self._lock:
                pending, self._pending = self._pending, {}
            if not pending:
                return
            try:
                self._append(pending)
            except OSError as error:
                log("read-log", "dropped", error=str(error))

    def _append(self, pending: _Counts) -> None:
        lines = "".join(_to_line(*key, counts) for key, counts in pending.items())
        with _locked(self._project) as path:
            with path.open("a", encoding="utf-8") as out:
                out.write(lines)
            if path.stat().st_size > MAX_BYTES:
                _compact(path, int(self._clock() // _DAY))


def read_rates(project: Path, now: float | None = None) -> Mapping[str, ReadRate] | None:
    """Return the rate of each table that was read lately; None if nothing has been recorded."""
    path = project / private_files.FOLDER / FILE
    try:
        counts = _parse(path)
    except OSError:
        return None
    today = int((time.time() if now is None else now) // _DAY)
    first = min((day for day, _ in counts if day <= today), default=None)
    if first is None:
        return None
    days = min(RATE_DAYS, today - first + 1)
    sums: dict[str, ReadCounts] = {}
    for (day, table), some in counts.items():
        if today - days < day <= today:
            sums.setdefault(table, ReadCounts()).add(some)
    return {
        table: ReadRate(
            some.scans / days, some.files / days, some.bytes / days,
            {name: count / days for name, count in some.columns.items()},
        )
        for table, some in sums.items()
    }  # fmt: skip


@contextmanager
def _locked(project: Path) -> Iterator[Path]:
    """Have the log for this process alone; a lock of its own, because the log is replaced."""
    lock = private_files.ensure_file(project, f"{FILE}.lock")
    handle = os.open(lock, os.O_RDWR)
    try:
        _lock_soon(handle)
        yield private_files.ensure_file(project, FILE)
    finally:
        os.close(handle)


def _lock_soon(handle: int) -> None:
    """Take the lock; give up soon, because the process that has it may be stopped."""
    for _ in range(LOCK_ATTEMPTS):
        with suppress(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(LOCK_PAUSE)
    raise BlockingIOError("the log is locked by another process")


def _compact(path: Path, today: int) -> None:
    """Sum up the log by day and table. What is beyond the bounds is dropped, the oldest first."""
    counts = {key: some for key, some in _parse(path).items() if today - key[0] < MAX_DAYS}
    lines, size = [], 0
    for key in sorted(counts, key=lambda key: (-key[0], -counts[key].scans)):
        lines.append(_to_line(*key, counts[key]))
        size += len(lines[-1])
        if size > MAX_BYTES // 2:
            break
    part = path.with_name(f".{path.name}.new")
    part.write_text("".join(reversed(lines)), encoding="utf-8")
    part.chmod(0o600)
    part.replace(path)


def _to_line(day: int, table: str, counts: ReadCounts) -> str:
    entry = [day, table, counts.scans, counts.files, counts.bytes, counts.columns]
    return json.dumps(entry, separators=(",", ":")) + "\n"


def _parse(path: Path) -> _Counts:
    """Return the counts of a log. Lines that a killed process left in parts are ignored."""
    found: _Counts = {}
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        entry = _parse_line(line)
        if entry is not None:
            key, counts = entry
            found.setdefault(key, ReadCounts()).add(counts)
    return found


def _parse_line(line: str) -> tuple[tuple[int, str], ReadCounts] | None:
    try:
        day, table, scans, files, size, columns = json.loads(line)
        numbers: list[Any] = [day, scans, files, size, *columns.values()]
    except (ValueError, TypeError, AttributeError):
        return None
    if not isinstance(table, str) or not all(isinstance(number, int) for number in numbers):
        return None
    return (day, table), ReadCounts(scans, files, size, columns)
