"""Capture Postgres's changes in a child process (`python -m` with this module's name).

The worker keeps no state. The first line of its input is the request (so no password is on a
command line); each later line is an acknowledged log position. It exits when its input ends, so it
never outlives its parent. `capture_process` is the parent's side.

It writes lines of tab-separated cells. The JSON in them contains neither tabs nor line ends, so
nothing needs escaping or parsing:

    R txn lsn topic key value headers op unsent
                      a record; txn and lsn are its position in the log, unsent is 1 if the row
                      lacks values that Postgres did not send
    E txn lsn         the end of a transaction, and of its commit
    S                 the initial snapshot is complete
    X message         the worker failed; no line follows
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
from typing import Any, BinaryIO

from thermocline.ingest.postgres import initial_snapshot
from thermocline.ingest.postgres.events import (
    ChangeOrigin,
    ChangeWriter,
    OutboxColumns,
    TableRelation,
)
from thermocline.ingest.postgres.pgoutput import Begin, Change, Commit, Relation, Truncate, decode
from thermocline.ingest.postgres.replication import ReplicationStream
from thermocline.ingest.postgres.source_catalog import SourceCatalog
from thermocline.ingest.postgres.value_encoders import SETTINGS

MAX_BUFFER_BYTES = 16 << 20
"""How much output is buffered while the parent does not read; Postgres keeps the rest."""

STATUS_SECONDS = 10.0
"""How often a status is sent. Postgres ends a connection that is silent for a minute."""


def main(commands: BinaryIO, stdout: BinaryIO) -> int:
    """Capture what the request names, until the input or the connection ends."""
    request = json.loads(commands.readline())
    output = _OutputBuffer(stdout.fileno())
    acknowledgements = _Acknowledgements(commands)
    threading.Thread(target=acknowledgements.listen, daemon=True).start()
    try:
        _capture(request, output, acknowledgements)
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001  the parent must receive any error
        message = " ".join(str(error).split()) or type(error).__name__
        output.append(f"X\t{message}\n")
        output.flush()
        return 1
    return 0


def _capture(
    request: dict[str, Any], output: _OutputBuffer, acknowledgements: _Acknowledgements
) -> None:
    import psycopg2
    from psycopg2.extras import LogicalReplicationConnection

    connection = request["connection"]
    settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    outbox = OutboxColumns(**request["outbox"]) if request["outbox"] else None
    writer = ChangeWriter(connection["dbname"], outbox)
    stream = psycopg2.connect(
        **connection, options=settings, connection_factory=LogicalReplicationConnection
    )
    with psycopg2.connect(**connection, options=settings) as queries:
        queries.autocommit = True
        if request["first"]:
            snapshot = initial_snapshot.create_slot(stream, request["slot"])
            initial_snapshot.read_tables(
                queries, snapshot, request["tables"], request["publication"], output.write, writer
            )
            output.append("S\n")
        catalog = SourceCatalog(queries, request["publication"])
        log = ReplicationStream(stream, request["slot"], request["publication"])
        _LogFollower(log, catalog, writer, output, acknowledgements, request["tables"]).follow()


class _LogFollower:
    """Follows the log from the slot's position on."""

    def __init__(
        self,
        stream: ReplicationStream,
        catalog: SourceCatalog,
        writer: ChangeWriter,
        output: _OutputBuffer,
        acknowledgements: _Acknowledgements,
        tables: list[str],
    ) -> None:
        self._stream = stream
        self._catalog = catalog
        self._writer = writer
        self._output = output
        self._acknowledgements = acknowledgements
        self._tables: dict[int, TableRelation | None] = {}
        self._captured = frozenset(tables)
        self._transaction = Begin(0, 0)
        self._last_report = 0.0

    def follow(self) -> None:
        """Write all changes and report acknowledged positions to Postgres, forever."""
        while True:
            received = None if self._output.is_full else self._stream.next()
            if received is not None:
                self._handle_message(received.payload, received.lsn)
            if received is None or time.monotonic() - self._last_report > STATUS_SECONDS:
                self._report()
            if received is None:
                self._output.send_available()
                self._wait()

    def _wait(self) -> None:
        """Wait until input arrives, output can be sent, or a position is acknowledged."""
        reads: list[Any] = (
            [self._acknowledgements.wakeup]
            if self._output.is_full
            else [self._stream, self._acknowledgements.wakeup]
        )
        writes = [self._output.handle] if self._output.has_data else []
        ready = select.select(reads, writes, [], STATUS_SECONDS)[0]
        if self._acknowledgements.wakeup in ready:
            os.read(self._acknowledgements.wakeup, 4096)

    def _report(self) -> None:
        now, lsn = time.monotonic(), self._acknowledgements.poll()
        if lsn is not None or now - self._last_report > STATUS_SECONDS:
            self._stream.send_status(lsn or 0)
            self._last_report = now

    def _handle_message(self, payload: bytes, lsn: int) -> None:
        match decode(payload):
            case Begin() as begun:
                self._transaction = begun
            case Commit(end):
                self._output.append(f"E\t{self._transaction.txn}\t{end}\n")
            case Relation() as relation:
                label = f"{relation.schema}.{relation.name}"
                table = (
                    self._catalog.describe_relation(relation) if label in self._captured else None
                )
                self._tables[relation.id] = table
            case Change() as change:
                if (table := self._tables[change.relation]) is not None:
                    for line in self._writer.write_change(table, change, self._make_origin(lsn)):
                        self._output.append(line)
            case Truncate(relations):
                for table in (self._tables[each] for each in relations):
                    if table is not None:
                        for line in self._writer.write_truncate(table, self._make_origin(lsn)):
                            self._output.append(line)

    def _make_origin(self, lsn: int) -> ChangeOrigin:
        return ChangeOrigin(
            self._transaction.txn, lsn, self._transaction.commit_us // 1000, self._writer.database
        )


class _Acknowledgements:
    """The positions that the parent acknowledges, read from the input by a thread."""

    def __init__(self, commands: BinaryIO) -> None:
        self._commands = commands
        self._lock = threading.Lock()
        self._lsn: int | None = None
        self.wakeup, self._notify = os.pipe()

    def listen(self) -> None:
        """Read positions until the input ends, then exit the process."""
        for line in self._commands:
            with self._lock:
                self._lsn = int(line)
            os.write(self._notify, b"1")
        os._exit(0)  # the parent is gone; Postgres keeps whatever has not landed

    def poll(self) -> int | None:
        """Return the position acknowledged since the last call, if any."""
        with self._lock:
            lsn, self._lsn = self._lsn, None
            return lsn


class _OutputBuffer:
    """Output lines. Sending never blocks, except in `flush`."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._buffer = bytearray()
        os.set_blocking(handle, False)

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full, so that nothing more should be read."""
        return len(self._buffer) > MAX_BUFFER_BYTES

    @property
    def has_data(self) -> bool:
        """Whether the buffer has data."""
        return bool(self._buffer)

    def append(self, line: str) -> None:
        """Buffer a line, to be sent when the parent reads."""
        self._buffer += line.encode()
        if len(self._buffer) > 1 << 16:
            self.send_available()

    def send_available(self) -> None:
        """Send as much as the parent reads now."""
        try:
            while self._buffer:
                del self._buffer[: os.write(self.handle, self._buffer[: 1 << 16])]
        except BlockingIOError:
            pass

    def write(self, line: str) -> None:
        """Send a line; block while the buffer is full."""
        self.append(line)
        if self.is_full:
            self.flush()

    def flush(self) -> None:
        """Send the whole buffer."""
        while self._buffer:
            select.select([], [self.handle], [])
            self.send_available()


if __name__ == "__main__":
    code = main(sys.stdin.buffer, sys.stdout.buffer)
    os._exit(code)  # the input thread would keep the interpreter alive
