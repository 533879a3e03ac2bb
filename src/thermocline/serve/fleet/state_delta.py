"""Encode and decode the difference between two `LakeState`s, as sent by the replicator.

Each piece is a JSON object of bounded size, whatever the number of tables, days and snapshots;
applied in order, the pieces turn one state into the other. What no piece names stays the same
object, so that caches can detect by identity that it did not change. All times are in UTC.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from thermocline.serve.file_sums import DailyTotals, FileTotals, TableFileTotals
from thermocline.serve.values import HotCopy, LakeState, TableHead

PIECE_ENTRIES = 1_000
"""How many days, snapshots or copies one piece has at most."""
_WHOLE = "whole"
_MAX_TRIES = 100

EMPTY_STATE = LakeState(0, datetime.fromtimestamp(0, UTC), {}, {})
"""The state before the first poll. The difference from it is the whole state."""


# Writing ------------------------------------------------------------------------------------------


def list_changes(old: LakeState, new: LakeState) -> list[tuple[str, str]]:
    """Return what differs as ("table" | "node", name), in a deterministic order."""
    heads = (
        set()
        if new.table_heads is old.table_heads
        else new.table_heads.keys() | old.table_heads.keys()
    )
    tables = sorted(t for t in heads if old.table_heads.get(t) is not new.table_heads.get(t))
    names = new.hot_copies.keys() | old.hot_copies.keys()
    nodes = sorted(n for n in names if old.hot_copies.get(n) != new.hot_copies.get(n))
    return [*(("table", table) for table in tables), *(("node", node) for node in nodes)]


def encode_changes(old: LakeState, new: LakeState, of: tuple[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the pieces that turn a table or a node of the old state into that of the new one."""
    kind, name = of
    if kind == "node":
        yield from _encode_node(name, old.hot_copies.get(name), new.hot_copies.get(name))
    elif name in new.table_heads:
        yield from _encode_head(name, old.table_heads.get(name), new.table_heads[name])
    else:
        yield {"table": name, "gone": True}


def _encode_node(
    node: str, old: Mapping[str, HotCopy] | None, new: Mapping[str, HotCopy] | None
) -> Iterator[dict[str, Any]]:
    if new is None:
        yield {"node": node, "gone": True}
        return
    before = old or {}
    copies = {t: _encode_copy(copy) for t, copy in new.items() if before.get(t) != copy}
    entries = [*copies.items(), *((table, None) for table in before.keys() - new.keys())]
    for start in range(0, max(len(entries), 1), PIECE_ENTRIES):
        yield {"node": node, "held": dict(entries[start : start + PIECE_ENTRIES])}


def _encode_head(table: str, old: TableHead | None, new: TableHead) -> Iterator[dict[str, Any]]:
    added, skipped, worker = _diff_history(() if old is None else old.snapshots, new.snapshots)
    before = TableFileTotals() if old is None else old.files
    entries: list[tuple[str, Any]] = [
        *(("snapshots", str(each)) for each in added),
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
        "same_schema_count": new.same_schema_count,
        "deletes": new.deletes,
        "skipped": skipped,
        "kept": worker,
    }
    if old is None or not _same_columns(old, new):
        head["columns"] = dict(new.columns)
    yield {"table": table, "head": head, **_group_entries(entries[:PIECE_ENTRIES])}
    for start in range(PIECE_ENTRIES, len(entries), PIECE_ENTRIES):
        yield {"table": table, **_group_entries(entries[start : start + PIECE_ENTRIES])}


def _same_columns(one: TableHead, other: TableHead) -> bool:
    return list(one.columns.items()) == list(other.columns.items())


def _group_entries(entries: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for name, entry in entries:
        found.setdefault(name, []).append(entry)
    return found


def _diff_history(old: Sequence[int], new: Sequence[int]) -> tuple[Sequence[int], int, int]:
    """Return the new snapshots, and which old ones follow them, as an index and a count."""
    for count, snapshot in enumerate(new[:_MAX_TRIES]):
        if snapshot in old:
            start, length = old.index(snapshot), len(new) - count
            if old[start : start + length] == new[count:]:
                return new[:count], start, length
    return new, 0, 0


def _encode_copy(copy: HotCopy) -> dict[str, Any]:
    return {
        "snapshot": str(copy.snapshot),
        "since": copy.since.isoformat() if copy.since else None,
        "rows": copy.rows,
        "bytes": copy.bytes,
    }


# Reading ------------------------------------------------------------------------------------------


@dataclass
class StateDecoder:
    """Applies pieces to `base`.

    Where a resulting table head equals that of the `known` state, it reuses that object.
    """

    base: LakeState
    known: LakeState
    tables: set[str] = field(default_factory=set)
    """The tables that the pieces named."""
    _table_heads: dict[str, TableHead] = field(init=False)
    _hot_copies: dict[str, Mapping[str, HotCopy]] = field(init=False)
    _nodes: set[str] = field(default_factory=set)
    _head_decoder: _HeadDecoder | None = None

    def __post_init__(self) -> None:
        self._table_heads = dict(self.base.table_heads)
        self._hot_copies = dict(self.base.hot_copies)

    def add(self, pieces: Iterable[Mapping[str, Any]]) -> None:
        """Apply the next pieces."""
        for piece in pieces:
            if (node := piece.get("node")) is not None:
                self._apply_node(node, piece)
            else:
                self._apply_table(piece["table"], piece)

    def finish(self, epoch: int, polled_at: datetime) -> LakeState:
        """Return the state after all pieces."""
        self._finish_head()
        heads = self._table_heads if self.tables else self.base.table_heads
        copies = self._hot_copies if self._nodes else self.base.hot_copies
        return LakeState(epoch, polled_at, heads, copies)

    def _apply_node(self, node: str, piece: Mapping[str, Any]) -> None:
        self._nodes.add(node)
        if piece.get("gone"):
            self._hot_copies.pop(node, None)
            return
        copies = dict(self._hot_copies.get(node, {}))
        for table, copy in piece["held"].items():
            if copy is None:
                copies.pop(table, None)
            else:
                copies[table] = decode_copy(copy)
        self._hot_copies[node] = copies

    def _apply_table(self, table: str, piece: Mapping[str, Any]) -> None:
        if "head" in piece or piece.get("gone"):
            self._finish_head()
            self.tables.add(table)
        if piece.get("gone"):
            self._table_heads.pop(table, None)
            return
        if "head" in piece:
            self._head_decoder = _HeadDecoder(table, piece["head"], self._table_heads.get(table))
        if self._head_decoder is None or self._head_decoder.table != table:
            raise ValueError(f"A piece of {table} arrived before its head.")
        self._head_decoder.add(piece)

    def _finish_head(self) -> None:
        if self._head_decoder is None:
            return
        head, before = (
            self._head_decoder.head(),
            self.known.table_heads.get(self._head_decoder.table),
        )
        same = before is not None and before == head and _same_columns(before, head)
        self._table_heads[head.table] = before if before is not None and same else head
        self._head_decoder = None


class _HeadDecoder:
    """Collects the pieces of one table head."""

    def __init__(self, table: str, scalars: Mapping[str, Any], old: TableHead | None) -> None:
        self.table = table
        self._scalars = scalars
        self._old = old
        self._snapshots: list[int] = []
        self._days: dict[str, dict[int, FileTotals]] = {"begins": {}, "ends": {}}

    def add(self, piece: Mapping[str, Any]) -> None:
        self._snapshots += map(int, piece.get("snapshots", ()))
        for name, days in self._days.items():
            days |= {day: FileTotals(*sums) for day, *sums in piece.get(name, ())}

    def head(self) -> TableHead:
        fields, old = self._scalars, self._old
        before: tuple[int, ...] = () if old is None else old.snapshots
        files = TableFileTotals() if old is None else old.files
        columns = fields.get("columns")
        if columns is None:
            if old is None:
                raise ValueError(f"The columns of {self.table} are missing.")
            columns = old.columns
        return TableHead(
            table=self.table,
            uuid=fields["uuid"],
            snapshot=int(fields["snapshot"]),
            metadata=fields["metadata"],
            committed_at=datetime.fromisoformat(fields["committed_at"]),
            columns=columns,
            time=fields["time"],
            snapshots=(*self._snapshots, *before[fields["skipped"] :][: fields["kept"]]),
            files=TableFileTotals(
                self._apply_days("begins", files.begins), self._apply_days("ends", files.ends)
            ),
            hot=math.inf if fields["hot"] == _WHOLE else fields["hot"],
            same_schema_count=fields["same_schema_count"],
            deletes=fields["deletes"],
        )

    def _apply_days(self, name: str, days: DailyTotals) -> DailyTotals:
        return days.with_days(self._days[name])


def decode_copy(fields: Mapping[str, Any]) -> HotCopy:
    """Return a node's copy from JSON, where the snapshot is text or a number."""
    return HotCopy(
        snapshot=int(fields["snapshot"]),
        since=_parse_time(fields.get("since")),
        rows=fields.get("rows", 0),
        bytes=fields.get("bytes", 0),
    )


def _parse_time(text: str | None) -> datetime | None:
    if text is None:
        return None
    found = datetime.fromisoformat(text)
    return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
