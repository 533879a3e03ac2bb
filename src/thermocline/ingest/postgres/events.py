"""Format changes as lines: each has a key and an event in Debezium's form.

An event is an envelope: the operation (c created, u updated, d deleted, r read, t truncated), the
row before and after it, and its source. In addition to Debezium's form, `unsent` names the columns
whose large values did not change, so that Postgres did not send them; the row lacks them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from json.encoder import encode_basestring as quote

from thermocline.ingest.postgres.pgoutput import UNSENT, Change, Row, Value
from thermocline.ingest.postgres.value_encoders import Encoder

NEW_KEY, OLD_KEY = "__debezium.newkey", "__debezium.oldkey"
"""Headers of the two events for a changed key: each names the other event's key."""

OUTBOX_TOPIC_PREFIX = "outbox.event."
"""The prefix of the topics that outbox events are routed to."""


@dataclass(frozen=True)
class TableColumn:
    """A column: its name and the encoder of its values to JSON."""

    name: str
    encode: Encoder
    in_identity: bool = False


@dataclass(frozen=True)
class TableRelation:
    """A captured table as of a change. `key` lists names of columns."""

    schema: str
    name: str
    columns: tuple[TableColumn, ...]
    key: tuple[str, ...]

    @property
    def label(self) -> str:
        """The name as in the source's settings: schema.table."""
        return f"{self.schema}.{self.name}"


@dataclass(frozen=True)
class ChangeOrigin:
    """The position of a change in the source's log."""

    txn: int
    lsn: int
    ts_ms: int
    database: str
    snapshot: bool = False


@dataclass(frozen=True)
class OutboxColumns:
    """The columns of an outbox table, by role."""

    id: str
    key: str
    type: str
    payload: str


@dataclass
class ChangeWriter:
    """Writes changes as tab-separated lines, in the format that `capture_worker` documents."""

    database: str
    outbox: OutboxColumns | None = None
    _source_prefixes: dict[str, str] = field(default_factory=dict)

    def write_change(self, table: TableRelation, change: Change, origin: ChangeOrigin) -> list[str]:
        """Write a change: one line, or two if it changed the row's key."""
        if self.outbox is not None:
            return self._outbox_event(table, change.new, origin) if change.op == "c" else []
        if change.op == "c" and change.new is not None:
            return [self._format_event(table, "c", origin, new=change.new)]
        if change.op == "d" and change.old is not None:
            old = _old_cells(table, change)
            return [self._format_event(table, "d", origin, old=old)]
        assert change.new is not None
        if change.old is None:
            return [self._format_event(table, "u", origin, new=change.new)]
        # The old row has complete values for the columns of the replica identity.
        new = tuple(
            o if n is UNSENT and (change.whole_old or c.in_identity) else n
            for c, n, o in zip(table.columns, change.new, change.old, strict=True)
        )
        old = _old_cells(table, change)
        before, after = _key_json(table, old), _key_json(table, _encode_cells(table, new))
        if before == after:
            return [
                self._format_event(
                    table, "u", origin, new=new, old=old if change.whole_old else None
                )
            ]
        return [
            self._format_event(table, "d", origin, old=old, header=(NEW_KEY, after)),
            self._format_event(table, "c", origin, new=new, header=(OLD_KEY, before)),
        ]

    def write_snapshot_row(self, table: TableRelation, row: Row, origin: ChangeOrigin) -> list[str]:
        """Write a row of the initial snapshot."""
        if self.outbox is not None:
            return self._outbox_event(table, row, origin)
        return [self._format_event(table, "r", origin, new=row)]

    def write_truncate(self, table: TableRelation, origin: ChangeOrigin) -> list[str]:
        """Write a truncate of a table."""
        return [] if self.outbox is not None else [self._format_event(table, "t", origin)]

    def _format_event(
        self,
        table: TableRelation,
        op: str,
        origin: ChangeOrigin,
        *,
        new: Row | None = None,
        old: Mapping[str, str] | None = None,
        header: tuple[str, str] | None = None,
    ) -> str:
        after = None if new is None else _encode_cells(table, new)
        unsent = () if new is None else _unsent_columns(table, new)
        source = self._source_json(table, origin)
        event = (
            f'{{"before":{_object_json(old)},"after":{_object_json(after)},"source":{source},'
            f'"op":"{op}","ts_ms":{origin.ts_ms}'
        )
        event += f',"unsent":[{",".join(map(quote, unsent))}]}}' if unsent else "}"
        row = after if after is not None else old
        key = "" if row is None else _key_json(table, row)
        headers = "" if header is None else json.dumps([header], ensure_ascii=False)
        return _format_record(origin, table.label, key, event, headers, op, "1" if unsent else "")

    def _source_json(self, table: TableRelation, origin: ChangeOrigin) -> str:
        where = f"{table.schema}\0{table.name}"
        if where not in self._source_prefixes:
            self._source_prefixes[where] = (
                f'"connector":"postgresql","db":{quote(self.database)},'
                f'"schema":{quote(table.schema)},"table":{quote(table.name)}'
            )
        txn = "null" if origin.snapshot else str(origin.txn)
        snapshot = "true" if origin.snapshot else "false"
        return (
            f'{{{self._source_prefixes[where]},"snapshot":"{snapshot}",'
            f'"ts_ms":{origin.ts_ms},"txId":{txn},"lsn":{origin.lsn}}}'
        )

    def _outbox_event(
        self, table: TableRelation, row: Row | None, origin: ChangeOrigin
    ) -> list[str]:
        """Write a row of an outbox as the event that it contains."""
        assert self.outbox is not None and row is not None
        cells = _encode_cells(table, row)
        kind = _json_text(cells.get(self.outbox.type))
        payload = cells.get(self.outbox.payload, "null")
        expanded = _expand_payload(payload)
        named = _json_text(cells.get(self.outbox.id))
        headers = json.dumps([("id", named)], ensure_ascii=False)
        key = cells.get(self.outbox.key, "")
        return [_format_record(origin, OUTBOX_TOPIC_PREFIX + kind, key, expanded, headers, "c", "")]


def _format_record(
    origin: ChangeOrigin, topic: str, key: str, event: str, headers: str, op: str, unsent: str
) -> str:
    return f"R\t{origin.txn}\t{origin.lsn}\t{topic}\t{key}\t{event}\t{headers}\t{op}\t{unsent}\n"


def _old_cells(table: TableRelation, change: Change) -> dict[str, str]:
    """Return the known cells of the row before a change: all, or only its identity."""
    assert change.old is not None
    cells = _encode_cells(table, change.old)
    if change.whole_old:
        return cells
    return {c.name: cells[c.name] for c in table.columns if c.in_identity}


def _encode_cells(table: TableRelation, row: Row) -> dict[str, str]:
    """Return the JSON of each column that was sent."""
    return {
        column.name: _encode_value(column, value)
        for column, value in zip(table.columns, row, strict=True)
        if value is not UNSENT
    }


def _encode_value(column: TableColumn, value: Value) -> str:
    assert value is not UNSENT
    return "null" if value is None else column.encode(value.decode())


def _unsent_columns(table: TableRelation, row: Row) -> Sequence[str]:
    return [c.name for c, value in zip(table.columns, row, strict=True) if value is UNSENT]


def _key_json(table: TableRelation, cells: Mapping[str, str]) -> str:
    if not table.key or any(name not in cells for name in table.key):
        return ""
    return _object_json({name: cells[name] for name in table.key})


def _object_json(cells: Mapping[str, str] | None) -> str:
    if cells is None:
        return "null"
    return f"{{{','.join(f'{quote(name)}:{text}' for name, text in cells.items())}}}"


def _json_text(value: str | None) -> str:
    """Return the text of a JSON string, or the JSON itself if it is not a string."""
    if value is None or value == "null":
        return ""
    return str(json.loads(value)) if value.startswith('"') else value


def _expand_payload(payload: str) -> str:
    """Return a payload that holds JSON in a string as that JSON, on one line."""
    text = _json_text(payload)
    try:
        json.loads(text)
    except ValueError:
        return payload
    # White space has no meaning between JSON tokens, and is escaped inside strings.
    return text.translate({0x09: " ", 0x0A: " ", 0x0D: " "})
