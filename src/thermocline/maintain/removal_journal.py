"""What is known of a table's unreferenced files between passes: since when each is unreferenced.

One file for each table in the project's private folder, replaced atomically. Losing it, or one that
does not fit the table, only delays: then every file counts as unreferenced from the next listing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline.config import private_files
from thermocline.lake.table_folder import FolderFile, is_table_file

if TYPE_CHECKING:
    from thermocline.lake import Lake
    from thermocline.lake.metadata import TableState

_FOLDER, _VERSION = "removal", 1


@dataclass(frozen=True)
class RemovalCandidate:
    """A file that was unreferenced at `since_ms` and in each listing after it."""

    file: FolderFile
    since_ms: int


@dataclass(frozen=True)
class RemovalJournal:
    """A table's unreferenced files, and when and at which metadata file it was listed last."""

    uuid: str
    location: str
    listed_ms: int = 0
    listed_at: str = ""
    latest_ms: int = 0
    """The latest time that a pass has seen: a clock that is behind it went back."""
    failed_ms: int = 0
    """When a pass was refused last, unless one has succeeded since."""
    candidates: Mapping[str, RemovalCandidate] = field(default_factory=dict)

    def record_listing(
        self, unreferenced: Iterable[FolderFile], pointer: str, now: int
    ) -> RemovalJournal:
        """Return the journal after a listing. Files that were known as they are stay so."""
        found = {}
        for file in unreferenced:
            known = self.candidates.get(file.path)
            same = known is not None and known.file == file
            found[file.path] = known if same and known else RemovalCandidate(file, now)
        return replace(
            self, listed_ms=now, listed_at=pointer, latest_ms=max(now, self.latest_ms),
            failed_ms=0, candidates=found,
        )  # fmt: skip

    def drop(self, paths: Iterable[str], now: int) -> RemovalJournal:
        """Return the journal without these files: they are deleted, or needed after all."""
        gone = set(paths)
        left = {path: each for path, each in self.candidates.items() if path not in gone}
        return replace(self, candidates=left, latest_ms=max(now, self.latest_ms), failed_ms=0)

    def record_failure(self, now: int) -> RemovalJournal:
        """Return the journal after a pass that was refused."""
        return replace(self, failed_ms=now, latest_ms=max(now, self.latest_ms))

    def reset(self) -> RemovalJournal:
        """Return an empty journal: every file is unreferenced from the next listing on."""
        return RemovalJournal(self.uuid, self.location)

    def save(self, lake: Lake) -> None:
        """Replace the table's file atomically."""
        path = _path(lake, self.uuid)
        private_files.ensure_folder(lake.settings.project)
        path.parent.mkdir(mode=0o700, exist_ok=True)
        private_files.write_json(path, {
            "version": _VERSION, "uuid": self.uuid, "location": self.location,
            "listed_ms": self.listed_ms, "listed_at": self.listed_at, "latest_ms": self.latest_ms,
            "failed_ms": self.failed_ms,
            "candidates": {p: [*c.file[1:], c.since_ms] for p, c in self.candidates.items()},
        })  # fmt: skip


def load_journal(lake: Lake, state: TableState) -> RemovalJournal:
    """Return a table's journal; an empty one if it is lost, damaged or of another location."""
    empty = RemovalJournal(state.uuid, state.location)
    try:
        found = json.loads(_path(lake, state.uuid).read_text(encoding="utf-8"))
        journal = _parse(found)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return empty
    return journal if (journal.uuid, journal.location) == (state.uuid, state.location) else empty


def _parse(found: Any) -> RemovalJournal:
    if found["version"] != _VERSION:
        raise ValueError("another version")
    candidates = {
        path: RemovalCandidate(FolderFile(path, int(size), int(modified)), int(since))
        for path, (size, modified, since) in found["candidates"].items()
        if is_table_file(path) and ".." not in path.split("/")
    }
    return RemovalJournal(
        str(found["uuid"]), str(found["location"]), int(found["listed_ms"]),
        str(found["listed_at"]), int(found["latest_ms"]), int(found["failed_ms"]), candidates,
    )  # fmt: skip


def _path(lake: Lake, uuid: str) -> Path:
    return lake.settings.project / private_files.FOLDER / _FOLDER / f"{uuid}.json"
