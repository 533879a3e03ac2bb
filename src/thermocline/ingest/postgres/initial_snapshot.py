"""The initial snapshot of tables: their rows at the moment from which a slot sends changes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any

from thermocline.ingest.postgres.events import ChangeOrigin, ChangeWriter, TableRelation
from thermocline.ingest.postgres.pgoutput import Row, Value
from thermocline.ingest.postgres.source_catalog import SourceCatalog, quote_name

_ESCAPES = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_ESCAPED = re.compile(rb"\\(.)", re.DOTALL)


def create_slot(connection: Any, slot: str) -> str:
    """Create a slot and return the name of the snapshot taken at that moment.

    The snapshot lasts until the next command on this connection.
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
    writer: ChangeWriter,
) -> None:
    """Write every row that the tables have in the snapshot."""
    with connection.cursor() as cursor:
        cursor.execute("begin isolation level repeatable read read only")
        cursor.execute("set transaction snapshot %s", (snapshot,))
        catalog = SourceCatalog(connection, publication)
        for label in tables:
            table, rows = catalog.describe_table(*label.split(".", 1))
            origin = ChangeOrigin(0, 0, int(time.time() * 1000), writer.database, snapshot=True)
            copied = _CopySink(table, lambda line: write(line), writer, origin)
            cursor.copy_expert(_copy_statement(table, rows), copied)
        cursor.execute("commit")


def _copy_statement(table: TableRelation, rows: str) -> str:
    listed = ", ".join(quote_name(column.name) for column in table.columns)
    only = f" where {rows}" if rows else ""
    inner = f"select {listed} from {quote_name(table.schema)}.{quote_name(table.name)}{only}"
    return f"copy ({inner}) to stdout"


class _CopySink:
    """Parses the output of COPY and writes each row as an event."""

    def __init__(
        self,
        table: TableRelation,
        write: Callable[[str], None],
        writer: ChangeWriter,
        origin: ChangeOrigin,
    ) -> None:
        self._table, self._write, self._writer, self._origin = table, write, writer, origin
        self._partial_line = b""

    def write(self, data: bytes) -> None:
        """Parse a chunk of COPY's output."""
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            for written in self._writer.write_snapshot_row(
                self._table, _parse_row(line, self._table), self._origin
            ):
                self._write(written)


def _parse_row(line: bytes, table: TableRelation) -> Row:
    if not table.columns:
        return ()
    return tuple(_parse_value(cell) for cell in line.split(b"\t"))


def _parse_value(cell: bytes) -> Value:
    if cell == b"\\N":
        return None
    if b"\\" not in cell:
        return cell
    return _ESCAPED.sub(lambda found: _ESCAPES.get(found[1], found[1]), cell)
