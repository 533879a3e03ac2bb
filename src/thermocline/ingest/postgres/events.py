"""Changes as lines: for each a key, and an event in the form that Debezium writes.

An event is an envelope: the operation (c created, u updated, d deleted, r read, t truncated), the
row before and after it, and its source. Beyond Debezium's form, `unsent` names the columns of a row
that Postgres did not send because their large values did not change; the row is without them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring as quote

from thermocline.ingest.postgres.pgoutput import UNSENT, Change, Row, Value
from thermocline.ingest.postgres.value_encoders import Encoder

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers of the two events that stand for a change of a key: each names the other's."""

ROUTED = "outbox.event."
"""How the topics begin that events of an outbox are routed to."""


@dataclass(frozen=True)
class TableColumn:
    """A column: its name as JSON, and how its values become JSON."""

    name: str
    encode: Encoder
    in_identity: bool = False


@dataclass(frozen=True)
class Table:
    """A captured table as it was when a change was made. `key` are names of columns."""

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]

    @property
    def label(self) -> str:
        """The name as a source's settings write it."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class Origin:
    """Where in the source's log a change is."""

    txn: int
    lsn: int
    ts_ms: int
    database: str
    snapshot: bool = False


@dataclass(frozen=True)
class Outbox:
    """Which columns of a table of events say what."""

    id: str
    key: str
    type: str
    payload: str


@dataclass
class Writer:
    """Writes changes as lines of cells with tabs between them, as `reader` promises them."""

    database: str
    outbox: Outbox | None = None
    _source: dict[str, str] = field(default_factory=dict)

    def change(self, table: Table, change: Change, at: Origin) -> list[str]:
        """Write a change: a line, or two where it moved the row to another key."""
        if self.outbox is not None:
            return self._routed(table, change.new, at) if change.op == "c" else []
        if change.op == "c" and change.new is not None:
            return [self._line(table, "c", at, new=change.new)]
        if change.op == "d" and change.old is not None:
            old = _known(table, change)
            return [self._line(table, "d", at, old=old)]
        assert change.new is not None
        if change.old is None:
            return [self._line(table, "u", at, new=change.new)]
        # The row before it has in full what is in the replica identity.
        new = tuple(
            o if n is UNSENT and (change.whole_old or c.in_identity) else n
            for c, n, o in zip(table.columns, change.new, change.old, strict=True)
        )
        old = _known(table, change)
        before, after = _key(table, old), _key(table, _cells(table, new))
        if before == after:
            return [self._line(table, "u", at, new=new, old=old if change.whole_old else None)]
        return [
            self._line(table, "d", at, old=old, header=(NEW_KEY, after)),
            self._line(table, "c", at, new=new, header=(OLD_KEY, before)),
        ]

    def read(self, table: Table, row: Row, at: Origin) -> list[str]:
        """Write a row of the first state."""
        if self.outbox is not None:
            return self._routed(table, row, at)
        return [self._line(table, "r", at, new=row)]

    def truncated(self, table: Table, at: Origin) -> list[str]:
        """Write that a table was emptied."""
        return [] if self.outbox is not None else [self._line(table, "t", at)]

    def _line(
        self,
        table: Table,
        op: str,
        at: Origin,
        *,
        new: Row | None = None,
        old: Mapping[str, str] | None = None,
        header: tuple[str, str] | None = None,
    ) -> str:
        after = None if new is None else _cells(table, new)
        unsent = () if new is None else _unsent(table, new)
        event = (
            f'{{"before":{_object(old)},"after":{_object(after)},"source":{self._said(table, at)},'
            f'"op":"{op}","ts_ms":{at.ts_ms}'
        )
        event += f',"unsent":[{",".join(map(quote, unsent))}]}}' if unsent else "}"
        row = after if after is not None else old
        key = "" if row is None else _key(table, row)
        headers = "" if header is None else json.dumps([header], ensure_ascii=False)
        return _record(at, table.label, key, event, headers, op, "1" if unsent else "")

    def _said(self, table: Table, at: Origin) -> str:
        where = f"{table.schema}\0{table.name}"
        if where not in self._source:
            self._source[where] = (
                f'"connector":"postgresql","db":{quote(self.database)},'
                f'"schema":{quote(table.schema)},"table":{quote(table.name)}'
            )
        txn = "null" if at.snapshot else str(at.txn)
        return (
            f'{{{self._source[where]},"snapshot":"{"true" if at.snapshot else "false"}",'
            f'"ts_ms":{at.ts_ms},"txId":{txn},"lsn":{at.lsn}}}'
        )

    def _routed(self, table: Table, row: Row | None, at: Origin) -> list[str]:
        """Write a row of an outbox as the event that it holds."""
        assert self.outbox is not None and row is not None
        cells = _cells(table, row)
        kind = _text(cells.get(self.outbox.type))
        payload = cells.get(self.outbox.payload, "null")
        expanded = _expanded(payload)
        named = _text(cells.get(self.outbox.id))
        headers = json.dumps([("id", named)], ensure_ascii=False)
        key = cells.get(self.outbox.key, "")
        return [_record(at, ROUTED + kind, key, expanded, headers, "c", "")]


def _record(
    at: Origin, topic: str, key: str, event: str, headers: str, op: str, unsent: str
) -> str:
    return f"R\t{at.txn}\t{at.lsn}\t{topic}\t{key}\t{event}\t{headers}\t{op}\t{unsent}\n"


def _known(table: Table, change: Change) -> dict[str, str]:
    """What is known of the row before a change: all of it, or its identity."""
    assert change.old is not None
    cells = _cells(table, change.old)
    if change.whole_old:
        return cells
    return {c.name: cells[c.name] for c in table.columns if c.in_identity}


def _cells(table: Table, row: Row) -> dict[str, str]:
    """The JSON of each column that was sent."""
    return {
        column.name: _json(column, value)
        for column, value in zip(table.columns, row, strict=True)
        if value is not UNSENT
    }


def _json(column: TableColumn, value: Value) -> str:
    assert value is not UNSENT
    return "null" if value is None else column.encode(value.decode())


def _unsent(table: Table, row: Row) -> Sequence[str]:
    return [c.name for c, value in zip(table.columns, row, strict=True) if value is UNSENT]


def _key(table: Table, cells: Mapping[str, str]) -> str:
    if not table.key or any(name not in cells for name in table.key):
        return ""
    return _object({name: cells[name] for name in table.key})


def _object(cells: Mapping[str, str] | None) -> str:
    if cells is None:
        return "null"
    return f"{{{','.join(f'{quote(name)}:{text}' for name, text in cells.items())}}}"


def _text(value: str | None) -> str:
    """The text in a piece of JSON, or the JSON itself where it is no text."""
    if value is None or value == "null":
        return ""
    return str(json.loads(value)) if value.startswith('"') else value


def _expanded(payload: str) -> str:
    """A payload that holds JSON in its text as that JSON, on one line."""
    text = _text(payload)
    try:
        json.loads(text)
    except ValueError:
        return payload
    # Outside of texts, JSON's white space means nothing; inside of them it is escaped.
    return text.translate({0x09: " ", 0x0A: " ", 0x0D: " "})
