"""Debezium as a child process: started, listened to, told what has landed, and ended.

`reader` is what runs there, and says how the two speak.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from thermocline.engine import jars, java
from thermocline.errors import EngineUnavailable, Transient
from thermocline.ingest.postgres.database import MESSAGES
from thermocline.ingest.postgres.pins import PACKAGES, SHA256
from thermocline.ingest.secret import reveal
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from thermocline.ingest.postgres.source import Outbox, Postgres

MEMORY = "384m"
CHUNK = 1 << 20
QUEUED_BYTES = 64 << 20
"""What Debezium may hold in memory when nobody takes it."""

CLIENT = "kafka."
"""How options begin that are for the Kafka client and not for Debezium."""

ROUTED = "outbox.event."
"""How the topics begin that events of an outbox are routed to."""

Cells = list[bytes]


class Reader:
    """A running Debezium."""

    def __init__(self, properties: dict[str, str], log: Path) -> None:
        if importlib.util.find_spec("jpype") is None:
            raise EngineUnavailable(
                "Reading Postgres here needs JPype, which is not installed.",
                "Install it: pip install thermocline[postgres].",
            )
        self._waiting: deque[bytes] = deque()
        self._rest = b""
        environ = {**os.environ, "JAVA_HOME": str(java.find().home)}
        wanted = {
            "classpath": [str(jar) for jar in jars.resolve(PACKAGES, hashes=SHA256)],
            "memory": MEMORY,
            "properties": properties,
        }
        self._log = log
        with log.open("ab") as errors:
            self._logged = errors.tell()
            self._process = subprocess.Popen(
                [sys.executable, "-m", "thermocline.ingest.postgres.reader"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=environ,
                bufsize=0,
                start_new_session=True,  # a ^C ends the batch in hand first, and then this
            )
        self._send(json.dumps(wanted))

    def next(self, wait: float) -> Cells | None:
        """The cells of the next line; None when none comes for so many seconds."""
        if not self._waiting and not self._read(wait):
            return None
        cells = self._waiting.popleft().split(b"\t")
        if cells[0] == b"X":
            said = cells[1].decode(errors="replace")
            self.close()
            raise Transient(
                f"Debezium stopped: {redact(one_line(said))[:500]}", f"See {self._log.name}."
            )
        return cells

    @property
    def idle(self) -> bool:
        """Whether nothing waits that has been read already."""
        return not self._waiting

    def landed(self, lsn: int) -> None:
        """Let the source forget transactions whose commit ends by `lsn`."""
        self._send(str(lsn))

    def close(self) -> None:
        """End it. What it had told the source stays told."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _read(self, wait: float) -> bool:
        """Read what is there, or wait for it; says whether a whole line is there now."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        deadline = time.monotonic() + wait
        while not self._waiting:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                return False
            chunk = os.read(handle, CHUNK)
            if not chunk:
                raise self._gone()
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            self._waiting.extend(lines)
        return True

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise self._gone() from None

    def _gone(self) -> Transient:
        code = self._process.wait()
        with self._log.open("rb") as log:
            log.seek(self._logged)  # what others said before is of no use here
            said = log.read().decode(errors="replace").strip().splitlines()[-1:]
        words = "".join(f": {redact(one_line(line))[:300]}" for line in said)
        return Transient(f"Debezium's process ended with {code}{words}", f"See {self._log}.")


def properties(
    reach: Postgres, name: str, slot: str, publication: str, *, first: bool
) -> dict[str, str]:
    """What Debezium is told. No offsets: the slot is where our bookmark says it should be, and
    what was landed of an unfinished transaction is left out by us."""
    told = {
        "name": name,
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "offset.flush.interval.ms": "0",
        "snapshot.mode": "initial" if first else "no_data",
        "slot.max.retries": "2",
        "slot.retry.delay.ms": "1000",
        "errors.max.retries": "0",
        "poll.interval.ms": "20",
        "max.queue.size.in.bytes": str(QUEUED_BYTES),
        "tombstones.on.delete": "false",
        "provide.transaction.metadata": "true",
        "converter.schemas.enable": "false",
        "message.prefix.include.list": MESSAGES,
        **connector(reach, name, slot, publication),
    }
    given = reveal(reach.options).items()
    return told | {key: str(value) for key, value in given if not key.startswith(CLIENT)}


def connector(reach: Postgres, prefix: str, slot: str, publication: str) -> dict[str, str]:
    """The part of Debezium's settings that is the same here and in Kafka Connect."""
    tls = reach.tls
    told = {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "database.hostname": reach.host,
        "database.port": str(reach.port),
        "database.dbname": reach.database,
        "database.user": reach.user,
        "database.password": reveal(reach.password) if reach.password else "",
        "database.sslmode": tls.mode,
        "database.sslrootcert": tls.root_cert,
        "database.sslcert": tls.cert,
        "database.sslkey": tls.key,
        "topic.prefix": prefix,
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": publication,
        "publication.autocreate.mode": "disabled",
        "table.include.list": ",".join(_pattern(table) for table in reach.tables),
        "skipped.operations": "none",
        "decimal.handling.mode": "string",
        "time.precision.mode": "isostring",
        "binary.handling.mode": "base64",
        "hstore.handling.mode": "json",
        "interval.handling.mode": "string",
    }
    if reach.outbox is not None:
        told |= _routed(reach.outbox)
    return {key: value for key, value in told.items() if value != ""}


def _routed(outbox: Outbox) -> dict[str, str]:
    """The outbox pattern: each row of the table is an event of the topic that it names."""
    router = {
        "type": "io.debezium.transforms.outbox.EventRouter",
        "table.field.event.id": outbox.id,
        "table.field.event.key": outbox.key,
        "table.field.event.payload": outbox.payload,
        "table.field.event.timestamp": outbox.timestamp,
        "route.by.field": outbox.type,
        "route.topic.replacement": ROUTED + "${routedByValue}",
        "table.expand.json.payload": "true",
    }
    return {
        "transforms": "outbox",
        **{f"transforms.outbox.{key}": value for key, value in router.items()},
    }


def topic_of(prefix: str, table: str) -> str:
    """The topic of a table's changes: Debezium replaces what a topic's name may not hold."""
    return re.sub(r"[^a-zA-Z0-9._-]", "_", f"{prefix}.{table}")


def _pattern(table: str) -> str:
    """A table's name as the regular expression that Debezium takes it for."""
    return re.escape(table).replace("\\_", "_")
