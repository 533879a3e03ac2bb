"""The first state of tables: what they hold at the very moment from which a slot sends changes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from thermocline.ingest.postgres.events import Origin, Table, Writer
from thermocline.ingest.postgres.pgoutput import Row, Value
from thermocline.ingest.postgres.source_catalog import Catalog

_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def make_slot(connection: Any, slot: str) -> str:
    """Make a slot, and return the name of the snapshot of that moment.

    The snapshot lasts until something else is asked of this connection.
    """
    with connection.cursor() as cursor:
        cursor.create_replication_slot(slot, output_plugin="pgoutput")
        return str(cursor.fetchone()[2])


def read_tables(
    connection: Any,
    snapshot: str,
    tables: Sequence[str],
    publication: str,
    write: Callable[[str], None],
    writer: Writer,
) -> None:
    """Write every row of the tables as it is in a snapshot."""
    with connection.cursor() as cursor:
        cursor.execute("begin isolation level repeatable read read only")
        cursor.execute("set transaction snapshot %s", (snapshot,))
        catalog = Catalog(connection, publication)
        for label in tables:
            table, rows = catalog.of_name(*label.split(".", 1))
            at = Origin(0, 0, int(time.time() * 1000), writer.database, snapshot=True)
            copied = _Copied(table, lambda line: write(line), writer, at)
            cursor.copy_expert(_select(table, rows), copied)
        cursor.execute("commit")


def _select(table: Table, rows: str) -> str:
    listed = ", ".join(_quoted(column.name) for column in table.columns)
    only = f" where {rows}" if rows else ""
    inner = f"select {listed} from {_quoted(table.schema)}.{_quoted(table.name)}{only}"
    return f"copy ({inner}) to stdout"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


class _Copied:
    """Takes what COPY writes, and writes each row of it on."""

    def __init__(
        self, table: Table, write: Callable[[str], None], writer: Writer, at: Origin
    ) -> None:
        self._table, self._write, self._writer, self._at = table, write, writer, at
        self._rest = b""

    def write(self, data: bytes) -> None:
        """Take a piece of COPY's output."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            for written in self._writer.read(self._table, _row(line, self._table), self._at):
                self._write(written)


def _row(line: bytes, table: Table) -> Row:
    if not table.columns:
        return ()
    return tuple(_value(cell) for cell in line.split(b"\t"))


def _value(cell: bytes) -> Value:
    if cell == b"\\N":
        return None
    if b"\\" not in cell:
        return cell
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), cell)
