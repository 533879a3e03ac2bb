"""Which files a table already holds: read from the bookmarks of its own commits.

Every commit of ingestion says which files it landed, by the hash of their content. So what is
known is exactly what main holds: after a rollback, files landed since are new again. When old
snapshots have expired, the rows themselves still name their files; a file of such a name that has
not changed since then counts as landed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from thermocline.lake import bookmark as bookmarks

if TYPE_CHECKING:
    from thermocline.ingest.examine import Examined
    from thermocline.ingest.landing import LandingFile
    from thermocline.lake import Lake

FILES, SEEN = "files", "seen"


@dataclass
class Ledger:
    """The files of a table: by content, and as they were last seen in the landing folder."""

    contents: set[str] = field(default_factory=set)
    seen: set[tuple[str, int, int]] = field(default_factory=set)
    before_cut: frozenset[str] = frozenset()
    cut_ns: int = 0

    def holds_unread(self, file: LandingFile) -> bool:
        """Whether a file is known without reading it: same name, size and time of change."""
        if (file.name, file.size, file.modified_ns) in self.seen:
            return True
        return file.name in self.before_cut and file.modified_ns <= self.cut_ns

    def holds(self, file: Examined) -> bool:
        """Whether the content has landed, under whatever name."""
        return file.sha256 in self.contents

    def add(self, files: Iterable[Examined]) -> None:
        """Remember files that have just landed."""
        self.contents.update(file.sha256 for file in files)


def bookmark_of(files: Iterable[Examined]) -> dict[str, Any]:
    """What a commit says of the files it lands."""
    listed = list(files)
    return {
        FILES: {file.sha256: file.file.name for file in listed},
        SEEN: {file.sha256: [file.file.size, file.file.modified_ns] for file in listed},
    }


def read_ledger(lake: Lake, table: str, quarantine: str) -> Ledger:
    """The files that a table's main branch holds."""
    ledger = Ledger()
    if not lake.exists(table):
        return ledger
    state = lake.state(table)
    oldest = None
    for snapshot in state.ancestry(state.head()):
        oldest = snapshot
        _note(ledger, bookmarks.of(snapshot) or {})
    if oldest is not None and not bookmarks.chain_is_whole(state, state.head()):
        ledger.cut_ns = oldest.timestamp_ms * 1_000_000
        ledger.before_cut = _named_in_rows(lake, table, "_source_file")
        if lake.exists(quarantine):
            ledger.contents |= _named_in_rows(lake, quarantine, "file_sha256")
    return ledger


def _note(ledger: Ledger, bookmark: Mapping[str, Any]) -> None:
    seen = bookmark.get(SEEN, {})
    for sha256, name in bookmark.get(FILES, {}).items():
        ledger.contents.add(sha256)
        if sha256 in seen:
            size, modified_ns = seen[sha256]
            ledger.seen.add((name, size, modified_ns))


def _named_in_rows(lake: Lake, table: str, column: str) -> frozenset[str]:
    import pyarrow.compute as pc

    found: set[str] = set()
    for batch in lake.iceberg(table).scan(selected_fields=(column,)).to_arrow_batch_reader():
        found.update(pc.unique(batch.column(0)).drop_null().to_pylist())
    return frozenset(found)
