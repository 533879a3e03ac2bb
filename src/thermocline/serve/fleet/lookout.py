"""A Lookout between the keeper and the router: what changed from one to another, in pieces.

Each piece is a JSON object of bounded size, whatever the number of tables, days and snapshots; in
order they make one Lookout of another. What no piece names stays the same object, so that whoever
has concluded something from it can see that it still holds. All moments are in UTC and say so.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from thermocline.serve.filesums import ByDay, FileSums, Sums
from thermocline.serve.terms import Head, Held, Lookout

ENTRIES = 1_000
"""So many days, snapshots or copies are in one piece."""
_WHOLE = "whole"
_TRIES = 100

NOTHING = Lookout(0, datetime.fromtimestamp(0, UTC), {}, {})
"""What is known before anything is: from this, what changed is all there is."""


# Writing ------------------------------------------------------------------------------------------


def changed(old: Lookout, new: Lookout) -> list[tuple[str, str]]:
    """What differs: ("table" | "node", name), in an order that follows from the two alone."""
    heads = set() if new.heads is old.heads else new.heads.keys() | old.heads.keys()
    tables = sorted(t for t in heads if old.heads.get(t) is not new.heads.get(t))
    names = new.held.keys() | old.held.keys()
    nodes = sorted(n for n in names if old.held.get(n) != new.held.get(n))
    return [*(("table", table) for table in tables), *(("node", node) for node in nodes)]


def pieces(old: Lookout, new: Lookout, of: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """What makes a table or a node of the new one from that of the old."""
    kind, name = of
    if kind == "node":
        yield from _node_pieces(name, old.held.get(name), new.held.get(name))
    elif name in new.heads:
        yield from _head_pieces(name, old.heads.get(name), new.heads[name])
    else:
        yield {"table": name, "gone": True}


def _node_pieces(
    node: str, old: Mapping[str, Held] | None, new: Mapping[str, Held] | None
) -> Iterator[dict[str, Any]]:
    if new is None:
        yield {"node": node, "gone": True}
        return
    before = old or {}
    copies = {t: _held(copy) for t, copy in new.items() if before.get(t) != copy}
    entries = [*copies.items(), *((table, None) for table in before.keys() - new.keys())]
    for start in range(0, max(len(entries), 1), ENTRIES):
        yield {"node": node, "held": dict(entries[start : start + ENTRIES])}


def _head_pieces(table: str, old: Head | None, new: Head) -> Iterator[dict[str, Any]]:
    came, skipped, kept = _history(() if old is None else old.snapshots, new.snapshots)
    before = FileSums() if old is None else old.files
    entries: list[tuple[str, Any]] = [
        *(("snapshots", str(each)) for each in came),
        *(("begins", [d, *s]) for d, s in new.files.begins.changes_since(before.begins).items()),
        *(("ends", [d, *s]) for d, s in new.files.ends.changes_since(before.ends).items()),
    ]
    head: dict[str, Any] = {
        "uuid": new.uuid,
        "snapshot": str(new.snapshot),
        "metadata": new.metadata,
        "committed_at": new.committed_at.isoformat(),
        "time": new.time,
        "hot": _WHOLE if new.hot is not None and math.isinf(new.hot) else new.hot,
        "alike": new.alike,
        "deletes": new.deletes,
        "skipped": skipped,
        "kept": kept,
    }
    if old is None or not _same_columns(old, new):
        head["columns"] = dict(new.columns)
    yield {"table": table, "head": head, **_grouped(entries[:ENTRIES])}
    for start in range(ENTRIES, len(entries), ENTRIES):
        yield {"table": table, **_grouped(entries[start : start + ENTRIES])}


def _same_columns(one: Head, other: Head) -> bool:
    return list(one.columns.items()) == list(other.columns.items())


def _grouped(entries: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, entry in entries:
        found.setdefault(name, []).append(entry)
    return found


def _history(old: Sequence[int], new: Sequence[int]) -> tuple[Sequence[int], int, int]:
    """The newest snapshots, and which of the old ones follow them: from where on, and how many."""
    for count, snapshot in enumerate(new[:_TRIES]):
        if snapshot in old:
            start, length = old.index(snapshot), len(new) - count
            if old[start : start + length] == new[count:]:
                return new[:count], start, length
    return new, 0, 0


def _held(copy: Held) -> dict[str, Any]:
    return {
        "snapshot": str(copy.snapshot),
        "since": copy.since.isoformat() if copy.since else None,
        "rows": copy.rows,
        "bytes": copy.bytes,
    }


# Reading ------------------------------------------------------------------------------------------


@dataclass
class Incoming:
    """A Lookout in the making: `base` with what changed since, piece by piece.

    Where a head comes out as the `known` Lookout has it, that one is taken.
    """

    base: Lookout
    known: Lookout
    tables: set[str] = field(default_factory=set)
    """The tables that were told of."""
    _heads: dict[str, Head] = field(init=False)
    _held: dict[str, Mapping[str, Held]] = field(init=False)
    _nodes: set[str] = field(default_factory=set)
    _draft: _Draft | None = None

    def __post_init__(self) -> None:
        self._heads = dict(self.base.heads)
        self._held = dict(self.base.held)

    def add(self, given: Iterable[Mapping[str, Any]]) -> None:
        """Take in the next pieces."""
        for piece in given:
            if (node := piece.get("node")) is not None:
                self._take_node(node, piece)
            else:
                self._take_table(piece["table"], piece)

    def done(self, epoch: int, looked_at: datetime) -> Lookout:
        """The Lookout, when all pieces were taken in."""
        self._finish()
        heads = self._heads if self.tables else self.base.heads
        held = self._held if self._nodes else self.base.held
        return Lookout(epoch, looked_at, heads, held)

    def _take_node(self, node: str, piece: Mapping[str, Any]) -> None:
        self._nodes.add(node)
        if piece.get("gone"):
            self._held.pop(node, None)
            return
        copies = dict(self._held.get(node, {}))
        for table, copy in piece["held"].items():
            if copy is None:
                copies.pop(table, None)
            else:
                copies[table] = read_held(copy)
        self._held[node] = copies

    def _take_table(self, table: str, piece: Mapping[str, Any]) -> None:
        if "head" in piece or piece.get("gone"):
            self._finish()
            self.tables.add(table)
        if piece.get("gone"):
            self._heads.pop(table, None)
            return
        if "head" in piece:
            self._draft = _Draft(table, piece["head"], self._heads.get(table))
        if self._draft is None or self._draft.table != table:
            raise ValueError(f"A piece of {table} came without its beginning.")
        self._draft.add(piece)

    def _finish(self) -> None:
        if self._draft is None:
            return
        head, before = self._draft.head(), self.known.heads.get(self._draft.table)
        same = before is not None and before == head and _same_columns(before, head)
        self._heads[head.table] = before if before is not None and same else head
        self._draft = None


class _Draft:
    """A head in the making."""

    def __init__(self, table: str, scalars: Mapping[str, Any], old: Head | None) -> None:
        self.table = table
        self._scalars = scalars
        self._old = old
        self._snapshots: list[int] = []
        self._days: dict[str, dict[int, Sums]] = {"begins": {}, "ends": {}}

    def add(self, piece: Mapping[str, Any]) -> None:
        self._snapshots += map(int, piece.get("snapshots", ()))
        for name, days in self._days.items():
            days |= {day: Sums(*sums) for day, *sums in piece.get(name, ())}

    def head(self) -> Head:
        given, old = self._scalars, self._old
        before: tuple[int, ...] = () if old is None else old.snapshots
        files = FileSums() if old is None else old.files
        columns = given.get("columns")
        if columns is None:
            if old is None:
                raise ValueError(f"The columns of {self.table} did not come.")
            columns = old.columns
        return Head(
            table=self.table,
            uuid=given["uuid"],
            snapshot=int(given["snapshot"]),
            metadata=given["metadata"],
            committed_at=datetime.fromisoformat(given["committed_at"]),
            columns=columns,
            time=given["time"],
            snapshots=(*self._snapshots, *before[given["skipped"] :][: given["kept"]]),
            files=FileSums(self._with("begins", files.begins), self._with("ends", files.ends)),
            hot=math.inf if given["hot"] == _WHOLE else given["hot"],
            alike=given["alike"],
            deletes=given["deletes"],
        )

    def _with(self, name: str, days: ByDay) -> ByDay:
        return days.with_days(self._days[name])


def read_held(given: Mapping[str, Any]) -> Held:
    """A node's copy from JSON values, where the snapshot is text or a number."""
    return Held(
        snapshot=int(given["snapshot"]),
        since=_moment(given.get("since")),
        rows=given.get("rows", 0),
        bytes=given.get("bytes", 0),
    )


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
