"""Postgres's changes in a process of their own: `python -m thermocline.ingest.postgres.capture_worker`.

It keeps no state: what it is to read comes as the first line of its input (passwords are therefore
on no command line), what may be forgotten as the lines after that. It ends with its input, so that
it never outlives the process that started it. `capture` is the other side.

It writes lines of cells with tabs between them. JSON has neither tabs nor line ends in it, so
nothing needs to be escaped, and nothing is parsed here:

    R txn lsn topic key value headers op unsent
                      a record; lsn and txn say where it is in the source's log, unsent is 1 where
                      the row lacks values that Postgres did not send
    E txn lsn         the end of a transaction, and where its commit ends
    S                 the first state of the tables is complete
    X message         it failed; nothing comes after this
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
from thermocline.ingest.postgres.events import Origin, Outbox, Table, Writer
from thermocline.ingest.postgres.pgoutput import Begin, Change, Commit, Relation, Truncate, decode
from thermocline.ingest.postgres.replication import Stream
from thermocline.ingest.postgres.source_catalog import Catalog
from thermocline.ingest.postgres.value_encoders import SETTINGS

HELD_BYTES = 16 << 20
"""How much is held for a reader that takes nothing; Postgres keeps the rest."""

STATUS_SECONDS = 10.0
"""How often Postgres hears from us. It ends a connection that is silent for a minute."""


def main(commands: BinaryIO, output: BinaryIO) -> int:
    """Read as the first command says, until the input ends or Postgres does."""
    wanted = json.loads(commands.readline())
    sender = _Sender(output.fileno())
    landed = _Landed(commands)
    threading.Thread(target=landed.listen, daemon=True).start()
    try:
        _read(wanted, sender, landed)
    except BrokenPipeError:
        return 0
    except Exception as error:  # noqa: BLE001  whatever it was, the other side must hear of it
        text = " ".join(str(error).split()) or type(error).__name__
        sender.put(f"X\t{text}\n")
        sender.flush()
        return 1
    return 0


def _read(wanted: dict[str, Any], sender: _Sender, landed: _Landed) -> None:
    import psycopg2
    from psycopg2.extras import LogicalReplicationConnection

    reach = wanted["connection"]
    settings = " ".join(f"-c {name}={value}" for name, value in SETTINGS.items())
    outbox = Outbox(**wanted["outbox"]) if wanted["outbox"] else None
    writer = Writer(reach["dbname"], outbox)
    stream = psycopg2.connect(
        **reach, options=settings, connection_factory=LogicalReplicationConnection
    )
    with psycopg2.connect(**reach, options=settings) as asking:
        asking.autocommit = True
        if wanted["first"]:
            snapshot = initial_snapshot.make_slot(stream, wanted["slot"])
            initial_snapshot.read_tables(
                asking, snapshot, wanted["tables"], wanted["publication"], sender.write, writer
            )
            sender.put("S\n")
        catalog = Catalog(asking, wanted["publication"])
        log = Stream(stream, wanted["slot"], wanted["publication"])
        _Follower(log, catalog, writer, sender, landed, wanted["tables"]).follow()


class _Follower:
    """Follows the log from where the slot is."""

    def __init__(
        self,
        stream: Stream,
        catalog: Catalog,
        writer: Writer,
        sender: _Sender,
        landed: _Landed,
        tables: list[str],
    ) -> None:
        self._stream = stream
        self._catalog = catalog
        self._writer = writer
        self._sender = sender
        self._landed = landed
        self._tables: dict[int, Table | None] = {}
        self._wanted = frozenset(tables)
        self._begun = Begin(0, 0)
        self._heard = 0.0

    def follow(self) -> None:
        """Write all changes that come, and tell Postgres what has landed, without end."""
        while True:
            received = None if self._sender.full else self._stream.next()
            if received is not None:
                self._take(received.payload, received.lsn)
            if received is None or time.monotonic() - self._heard > STATUS_SECONDS:
                self._report()
            if received is None:
                self._sender.send()
                self._wait()

    def _wait(self) -> None:
        """Until something comes, can be sent, or has landed."""
        reads: list[Any] = (
            [self._landed.notice] if self._sender.full else [self._stream, self._landed.notice]
        )
        writes = [self._sender.handle] if self._sender.waiting else []
        ready = select.select(reads, writes, [], STATUS_SECONDS)[0]
        if self._landed.notice in ready:
            os.read(self._landed.notice, 4096)

    def _report(self) -> None:
        now, lsn = time.monotonic(), self._landed.take()
        if lsn is not None or now - self._heard > STATUS_SECONDS:
            self._stream.report(lsn or 0)
            self._heard = now

    def _take(self, payload: bytes, lsn: int) -> None:
        match decode(payload):
            case Begin() as begun:
                self._begun = begun
            case Commit(end):
                self._sender.put(f"E\t{self._begun.txn}\t{end}\n")
            case Relation() as relation:
                label = f"{relation.schema}.{relation.name}"
                table = self._catalog.of_relation(relation) if label in self._wanted else None
                self._tables[relation.id] = table
            case Change() as change:
                if (table := self._tables[change.relation]) is not None:
                    for line in self._writer.change(table, change, self._at(lsn)):
                        self._sender.put(line)
            case Truncate(relations):
                for table in (self._tables[each] for each in relations):
                    if table is not None:
                        for line in self._writer.truncated(table, self._at(lsn)):
                            self._sender.put(line)

    def _at(self, lsn: int) -> Origin:
        return Origin(self._begun.txn, lsn, self._begun.commit_us // 1000, self._writer.database)


class _Landed:
    """What the other side says has landed, taken from the input by a thread of its own."""

    def __init__(self, commands: BinaryIO) -> None:
        self._commands = commands
        self._lock = threading.Lock()
        self._lsn: int | None = None
        self.notice, self._noticed = os.pipe()

    def listen(self) -> None:
        """Take commands until there are no more, and then end the process."""
        for line in self._commands:
            with self._lock:
                self._lsn = int(line)
            os.write(self._noticed, b"1")
        os._exit(0)  # the other side is gone; Postgres keeps whatever has not landed

    def take(self) -> int | None:
        """Return the place that was reported since the last call."""
        with self._lock:
            lsn, self._lsn = self._lsn, None
            return lsn


class _Sender:
    """Lines on their way out. Sending never waits, unless all is to be sent."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self._held = bytearray()
        os.set_blocking(handle, False)

    @property
    def full(self) -> bool:
        """Whether so much is held that nothing more should be read."""
        return len(self._held) > HELD_BYTES

    @property
    def waiting(self) -> bool:
        """Whether anything is held."""
        return bool(self._held)

    def put(self, line: str) -> None:
        """Hold a line, to be sent when the other side takes it."""
        self._held += line.encode()
        if len(self._held) > 1 << 16:
            self.send()

    def send(self) -> None:
        """Send as much as the other side takes now."""
        try:
            while self._held:
                del self._held[: os.write(self.handle, self._held[: 1 << 16])]
        except BlockingIOError:
            pass

    def write(self, line: str) -> None:
        """Send a line, and wait while the other side takes nothing."""
        self.put(line)
        if self.full:
            self.flush()

    def flush(self) -> None:
        """Send all that is held."""
        while self._held:
            select.select([], [self.handle], [])
            self.send()


if __name__ == "__main__":
    code = main(sys.stdin.buffer, sys.stdout.buffer)
    os._exit(code)  # a thread still waits for input, which Python would wait for in turn
