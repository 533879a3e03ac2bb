"""Decode the messages of pgoutput, the logical decoding plugin that ships with Postgres.

Protocol version 1: whole transactions arrive in commit order. Values arrive as the text that the
type's output function writes, so no type loses information.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import Enum


class Unsent(Enum):
    """Marks an unchanged large value, which Postgres does not send again."""

    UNSENT = "unsent"


UNSENT = Unsent.UNSENT
Value = bytes | Unsent | None
Row = tuple[Value, ...]


@dataclass(frozen=True)
class Begin:
    """The start of a transaction. `commit_us` is its commit time in microseconds since 1970."""

    txn: int
    commit_us: int


@dataclass(frozen=True)
class Commit:
    """The end of a transaction. `end` is the log position just after its commit."""

    end: int


@dataclass(frozen=True)
class RelationColumn:
    """A column as of the changes that follow."""

    name: str
    type: int
    modifier: int
    in_identity: bool


@dataclass(frozen=True)
class Relation:
    """A table. Sent before its first change, and again after its definition changes."""

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


@dataclass(frozen=True)
class Change:
    """A row that was inserted (c), updated (u) or deleted (d).

    `old` is the row before the change, if the replica identity includes it: the whole row if
    `whole_old`, else only its identity columns.
    """

    op: str
    relation: int
    new: Row | None = None
    old: Row | None = None
    whole_old: bool = False


@dataclass(frozen=True)
class Truncate:
    """Tables that were truncated."""

    relations: tuple[int, ...]


Message = Begin | Commit | Relation | Change | Truncate

_EPOCH_US = 946_684_800_000_000
"""Postgres counts time from 2000-01-01."""


def decode(data: bytes) -> Message | None:
    """Decode one message; return None for a type that does not concern rows."""
    reader = _MessageReader(data)
    match reader.take(1):
        case b"B":
            reader.skip(8)
            commit_us = reader.int64() + _EPOCH_US
            return Begin(reader.int32(), commit_us)
        case b"C":
            reader.skip(9)
            return Commit(reader.int64())
        case b"R":
            return _read_relation(reader)
        case b"I":
            relation = reader.int32()
            reader.skip(1)
            return Change("c", relation, new=reader.row())
        case b"U":
            return _read_update(reader)
        case b"D":
            relation, kind = reader.int32(), reader.take(1)
            return Change("d", relation, old=reader.row(), whole_old=kind == b"O")
        case b"T":
            count = reader.int32()
            reader.skip(1)
            return Truncate(tuple(reader.int32() for _ in range(count)))
    return None


def _read_relation(reader: _MessageReader) -> Relation:
    relation, schema, name = reader.int32(), reader.text(), reader.text()
    identity = reader.take(1).decode()
    columns = []
    for _ in range(reader.int16()):
        in_identity = reader.take(1) == b"\x01"
        column = reader.text()
        columns.append(RelationColumn(column, reader.int32(), reader.signed32(), in_identity))
    return Relation(relation, schema or "pg_catalog", name, identity, tuple(columns))


def _read_update(reader: _MessageReader) -> Change:
    relation, kind, old = reader.int32(), reader.take(1), None
    whole_old = kind == b"O"
    if kind in {b"K", b"O"}:
        old = reader.row()
        reader.skip(1)
    return Change("u", relation, reader.row(), old, whole_old)


class _MessageReader:
    """Reads the fields of one message in order."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def skip(self, count: int) -> None:
        self._at += count

    def take(self, count: int) -> bytes:
        self._at += count
        return self._data[self._at - count : self._at]

    def int16(self) -> int:
        return int.from_bytes(self.take(2), "big")

    def int32(self) -> int:
        return int.from_bytes(self.take(4), "big")

    def signed32(self) -> int:
        return int.from_bytes(self.take(4), "big", signed=True)

    def int64(self) -> int:
        return int(struct.unpack(">q", self.take(8))[0])

    def text(self) -> str:
        end = self._data.index(b"\0", self._at)
        found = self._data[self._at : end].decode()
        self._at = end + 1
        return found

    def row(self) -> Row:
        cells: list[Value] = []
        for _ in range(self.int16()):
            kind = self.take(1)
            if kind == b"n":
                cells.append(None)
            elif kind == b"u":
                cells.append(UNSENT)
            else:
                cells.append(self.take(self.int32()))
        return tuple(cells)
