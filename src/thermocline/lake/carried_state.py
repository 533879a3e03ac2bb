"""Carried state: what a table has consumed, carried from snapshot to snapshot by reference.

A REST catalog gives us no database to write rows to (`consumption_store`). There, each commit that
consumes has its whole state in its snapshot's summary: the positions of feeds, digests of the last
files, and the names of immutable runs with all earlier ones (`digest_runs`). The size of this value
does not depend on the number of files or commits. Every snapshot names its own state, so a
rollback, a branch or a tag needs nothing else, and the state is in the same commit as the data. A
process that is killed before the commit leaves files that nothing names: orphans.

Snapshots without a state of their own have the state of their nearest ancestor. When that ancestor
expires, the commit that expires it writes the state to a table property, for each kept snapshot
that depends on it (`plan_anchors`). If another tool expired it, the state is not known: `gap_ns`
says up to when.

Summaries of older versions list files and positions themselves; they are read, and the next commit
that consumes carries them over.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from thermocline.lake import bookmark as bookmarks
from thermocline.lake.consumption import Consumption, LandedFile, SourcePosition
from thermocline.lake.digest_runs import DigestRun, RunFiles, digest, stored_location

if TYPE_CHECKING:
    from thermocline.lake.lake import Lake
    from thermocline.lake.metadata import Snapshot, TableState

CONSUMED = bookmarks.PREFIX + "consumed"
"""The summary property with a snapshot's state."""
ANCHORS = bookmarks.PREFIX + "consumed-anchors"
"""The table property with the states of snapshots whose own ancestors have expired."""
_MAX_RECENT = 40
"""Up to this many digests are in the summary itself, without a file."""
_MAX_POSITION = 1_000
"""A position with more characters is in a file of its own."""

Document = Mapping[str, Any]


@dataclass(frozen=True)
class CarriedState:
    """What a table has consumed up to a snapshot."""

    feeds: Mapping[str, Document] = field(default_factory=dict)
    """By source: stream, sequence, and the position, or the name of the file with it."""
    recent: frozenset[bytes] = frozenset()
    runs: tuple[DigestRun, ...] = ()
    gap_ns: int | None = None
    """Until when it is not known what was consumed: snapshots expired without their state, or the
    table comes from a catalog with a database."""
    has_lost_names: bool = False
    """Whether the names of the files that landed before the gap were added from the table."""

    def to_document(self) -> dict[str, Any]:
        """Return the state as JSON."""
        found: dict[str, Any] = {
            "feeds": dict(self.feeds),
            "recent": sorted(b64encode(each).decode() for each in self.recent),
            "runs": [[run.name, run.count] for run in self.runs],
            "gap": self.gap_ns,
            "names": self.has_lost_names,
        }
        return {name: value for name, value in found.items() if value}

    @classmethod
    def from_document(cls, document: Document) -> CarriedState:
        """Return the state in a JSON value."""
        return cls(
            document.get("feeds", {}),
            frozenset(map(b64decode, document.get("recent", ()))),
            tuple(DigestRun(name, count) for name, count in document.get("runs", ())),
            document.get("gap"),
            document.get("names", False),
        )


def content_digest(content: str) -> bytes:
    """Return the digest that records a landed content, by its hash."""
    return digest("content", content)


def file_digest(name: str, size: int, modified_ns: int) -> bytes:
    """Return the digest that records a file of a landing folder with its attributes."""
    return digest("file", name, size, modified_ns)


def name_digest(name: str) -> bytes:
    """Return the digest that records a file that landed before a gap, by its name."""
    return digest("name", name)


def key_digest(key: str) -> bytes:
    """Return the digest that records a group-commit entry that landed."""
    return digest("key", key)


def open_runs(lake: Lake, state: TableState) -> RunFiles:
    """Return the access to a table's runs; nothing is opened before they are needed."""
    return RunFiles(state.table, state.location, lambda: lake.iceberg(state.table).io)


def read_state(state: TableState, snapshot: int | None) -> CarriedState:
    """Return what a table has consumed up to a snapshot."""
    anchored, chain = read_anchors(state), list[bookmarks.Bookmark]()
    base, last, gaps = CarriedState(), None, list[int]()
    for last in state.ancestry(snapshot):
        if CONSUMED not in last.summary:
            chain.append(bookmarks.parse_bookmark(last) or {})
            if _is_recorded_elsewhere(chain[-1]):
                gaps.append(last.timestamp_ms * 1_000_000)
        own = _own_document(last, anchored)
        if own is not None:
            base = CarriedState.from_document(own)
            break
    else:
        if last is not None and not bookmarks.is_first(last):
            gaps.append(last.timestamp_ms * 1_000_000)
    if gaps and max(gaps) > (base.gap_ns or 0):
        base = replace(base, gap_ns=max(gaps), has_lost_names=False)
    marks: Document = next(
        (found[bookmarks.FEEDS] for found in chain if bookmarks.FEEDS in found), {}
    )
    feeds = {source: mark for source, mark in marks.items() if "position" in mark}
    listed = {each for found in chain for file in listed_files(found) for each in _digests(file)}
    return replace(base, feeds={**base.feeds, **feeds}, recent=base.recent | listed)


def _is_recorded_elsewhere(bookmark: Document) -> bool:
    """Whether files landed whose record is in another catalog's database."""
    return bool(bookmark.get("landed")) and "files" not in bookmark


def find_feeds(state: TableState, snapshot: int | None) -> dict[str, Document]:
    """Return the marks of all sources, without positions that are carried beside them."""
    anchored = read_anchors(state)
    for each in state.ancestry(snapshot):
        found = bookmarks.parse_bookmark(each) or {}
        if bookmarks.FEEDS in found:
            return dict(found[bookmarks.FEEDS])
        own = _own_document(each, anchored)
        if own is not None:
            return {
                source: {"stream": mark["stream"], "sequence": mark["sequence"]}
                for source, mark in own.get("feeds", {}).items()
            }
    return {}


def load_position(runs: RunFiles, mark: Document) -> Any:
    """Return the position of a carried mark."""
    return mark["position"] if "position" in mark else json.loads(runs.read(mark["file"]))


def extend_state(
    runs: RunFiles, state: CarriedState, consumed: Consumption, keys: Iterable[str] = ()
) -> CarriedState:
    """Return the state after a commit that consumes. Writes files if it becomes large."""
    added = {each for file in consumed.files for each in _digests(file)}
    added.update(map(key_digest, keys))
    added.update(map(name_digest, consumed.lost_names))
    added.update(map(content_digest, consumed.lost_contents))
    feeds = {each.source: _carry_position(runs, each) for each in consumed.positions}
    return settle_state(runs, replace(
        state, feeds={**state.feeds, **feeds}, recent=state.recent | added,
        has_lost_names=state.has_lost_names or bool(consumed.lost_names),
    ))  # fmt: skip


def settle_state(runs: RunFiles, state: CarriedState) -> CarriedState:
    """Return the state in a form that is small enough for a summary."""
    if len(state.recent) <= _MAX_RECENT:
        return state
    return replace(state, recent=frozenset(), runs=runs.add(state.runs, state.recent))


def find_digests(runs: RunFiles, state: CarriedState, wanted: Collection[bytes]) -> set[bytes]:
    """Return which of these digests a state contains."""
    here = {each for each in wanted if each in state.recent}
    return here | runs.find(state.runs, [each for each in wanted if each not in here])


def summary_properties(state: CarriedState) -> dict[str, str]:
    """Return the snapshot properties with a state."""
    return {CONSUMED: _dump(state.to_document())}


def is_carried(state: TableState, snapshot: Snapshot) -> bool:
    """Whether a snapshot has a state, of a time when its table was in a REST catalog."""
    return CONSUMED in snapshot.summary or snapshot.id in read_anchors(state)


def read_anchors(state: TableState) -> dict[int, Document]:
    """Return the states that the table carries for snapshots whose ancestors have expired."""
    found = json.loads(state.properties.get(ANCHORS, "{}"))
    return {int(snapshot): document for snapshot, document in found.items()}


def plan_anchors(
    runs: RunFiles, state: TableState, gone: Collection[int], pending: int | None
) -> dict[str, str]:
    """Return the table properties to set when snapshots expire; empty if none changes.

    `pending` is the snapshot that the commit adds to main, if it has no state of its own.
    """
    before = read_anchors(state)
    kept = [state.snapshots[each] for each in state.snapshots if each not in gone]
    anchored = {each.id: before[each.id] for each in kept if each.id in before}
    cut = {
        each.id: each.id for each in kept
        if each.parent in gone and each.id not in anchored and CONSUMED not in each.summary
    }  # fmt: skip
    if pending is not None and state.head() in gone:
        head = state.head()
        assert head is not None
        cut[pending] = head
    for snapshot, source in cut.items():
        found = settle_state(runs, read_state(state, source))
        anchored[snapshot] = found.to_document()
    if anchored == before:
        return {}
    return {ANCHORS: _dump({str(each): anchored[each] for each in sorted(anchored)})}


def list_state_files(
    location: str, summaries: Iterable[Mapping[str, Any]], properties: Mapping[str, str]
) -> set[str]:
    """Return the locations of all files that states of a table name."""
    documents = [json.loads(each[CONSUMED]) for each in summaries if CONSUMED in each]
    documents += json.loads(properties.get(ANCHORS, "{}")).values()
    names = {name for each in documents for name in _file_names(each)}
    return {stored_location(location, name) for name in names}


def stored_files(location: str, state: CarriedState) -> list[str]:
    """Return the locations of the files that a state of a table names."""
    return [stored_location(location, name) for name in _file_names(state.to_document())]


def listed_files(bookmark: Document) -> Iterator[LandedFile]:
    """Yield the files that a bookmark of an older version lists."""
    stats = bookmark.get("seen", {})
    for content, name in bookmark.get("files", {}).items():
        size, modified_ns = stats.get(content, (-1, -1))
        yield LandedFile(content, name, size, modified_ns)


def _own_document(snapshot: Snapshot, anchored: Mapping[int, Document]) -> Document | None:
    """Return the state in the summary of a snapshot, or the one that is anchored at it."""
    text = snapshot.summary.get(CONSUMED)
    return anchored.get(snapshot.id) if text is None else json.loads(text)


def _digests(file: LandedFile) -> Iterator[bytes]:
    yield content_digest(file.content)
    yield file_digest(file.name, file.size, file.modified_ns)


def _carry_position(runs: RunFiles, position: SourcePosition) -> Document:
    mark = {"stream": position.stream, "sequence": position.sequence}
    if len(position.position) <= _MAX_POSITION:
        return {**mark, "position": json.loads(position.position)}
    return {**mark, "file": runs.write(position.position.encode(), "json")}


def _file_names(document: Document) -> Iterator[str]:
    yield from (name for name, _ in document.get("runs", ()))
    yield from (mark["file"] for mark in document.get("feeds", {}).values() if "file" in mark)


def _dump(document: Document) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
