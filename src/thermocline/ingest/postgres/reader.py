"""Debezium in a process of its own: `python -m thermocline.ingest.postgres.reader`.

It has its own JVM, so that its jars never meet Spark's, and it keeps no state: what it is to read
it is told by the first line of its input (passwords are therefore on no command line), what may
be forgotten by the lines after that. It ends with its input, so that it never outlives whoever
started it. `capture` is the other side.

It writes lines of cells with tabs between them. JSON has neither tabs nor line ends in it, so
nothing needs to be escaped, and nothing is parsed here:

    R txn lsn topic key value headers    a record; lsn and txn say where it is in the source's log
    E txn lsn                            the end of a transaction, and where its commit ends
    S                                    the first state of the tables is complete
    X message                            it failed; nothing comes after this
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections import deque
from typing import Any, BinaryIO

TRANSACTIONS, NOTIFICATIONS = ".transaction", ".notifications"
CREATED = "io.debezium.engine.DebeziumEngine"


def main(commands: BinaryIO, output: BinaryIO) -> int:
    """Read as the first command says, until the input ends or Debezium does."""
    import jpype  # type: ignore[import-untyped]

    wanted = json.loads(commands.readline())
    jpype.startJVM(
        f"-Xmx{wanted['memory']}",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Duser.timezone=UTC",
        classpath=wanted["classpath"],
        convertStrings=False,
    )
    reader = _Reader(output, wanted["properties"]["topic.prefix"])
    engine = reader.engine(wanted["properties"])
    working = threading.Thread(target=engine.run, name="debezium", daemon=True)
    working.start()
    listening = threading.Thread(target=_obey, args=(commands, reader), daemon=True)
    listening.start()
    working.join()
    return 1 if reader.failed else 0


def _obey(commands: BinaryIO, reader: _Reader) -> None:
    """Let the source forget what has landed, and end when nobody is there any more."""
    for line in commands:
        reader.landed(int(line))
    # Not by closing the engine: it would wait for who takes its records. Nothing is lost with it.
    os._exit(0)


class _Reader:
    """What Debezium calls, as lines; and the ends of transactions that wait to be confirmed."""

    def __init__(self, output: BinaryIO, prefix: str) -> None:
        self._output = output
        self._transactions = prefix + TRANSACTIONS
        self._notifications = prefix + NOTIFICATIONS
        self._ends: deque[tuple[int, Any]] = deque()
        self._committer: Any = None
        self.failed = False

    def engine(self, properties: dict[str, str]) -> Any:
        """Debezium's engine, not yet running."""
        import jpype

        given = jpype.JClass("java.util.Properties")()
        for key, value in properties.items():
            given.setProperty(key, value)
        given.setProperty("notification.enabled.channels", "sink")
        given.setProperty("notification.sink.topic.name", self._notifications)
        consumer = jpype.JProxy(f"{CREATED}$ChangeConsumer", dict=self._consumer())
        done = jpype.JProxy(f"{CREATED}$CompletionCallback", dict={"handle": self._completed})
        json_ = jpype.JClass("io.debezium.engine.format.Json").class_
        builder = jpype.JClass(CREATED).create(json_).using(given).using(done)
        return builder.notifying(consumer).build()

    def landed(self, lsn: int) -> None:
        """Tell the source that it need not keep transactions whose commit ends by then."""
        newest = None
        while self._ends and self._ends[0][0] <= lsn:
            newest = self._ends.popleft()[1]
        if newest is not None:
            self._committer.markProcessed(newest)
            self._committer.markBatchFinished()

    def _consumer(self) -> dict[str, Any]:
        return {
            "handleBatch": self._take,
            "supportsTombstoneEvents": lambda: True,
        }

    def _take(self, records: Any, committer: Any) -> None:
        self._committer = committer
        for record in records:
            line = self._line(record)
            if line is not None:
                self._output.write(line)
        self._output.flush()

    def _line(self, event: Any) -> bytes | None:
        topic, value = str(event.destination()), event.value()
        if topic == self._notifications:
            return self._notified(str(value))
        record = event.sourceRecord()
        offset = record.sourceOffset()
        if topic == self._transactions:
            return self._ended(offset, event)
        cells = (
            "R",
            str(offset.get("txId")),
            str(offset.get("lsn")),
            topic,
            "" if event.key() is None else str(event.key()),
            "" if value is None else str(value),
            _headers(record.headers()),
        )
        return ("\t".join(cells) + "\n").encode()

    def _notified(self, text: str) -> bytes | None:
        said = json.loads(text)
        if said.get("aggregate_type") == "Initial Snapshot" and said.get("type") == "COMPLETED":
            return b"S\n"
        return None

    def _ended(self, offset: Any, event: Any) -> bytes | None:
        if str(offset.get("messageType")) != "COMMIT":
            return None
        lsn = int(str(offset.get("lsn_commit")))
        self._ends.append((lsn, event))
        return f"E\t{offset.get('txId')}\t{lsn}\n".encode()

    def _completed(self, success: bool, message: Any, error: Any) -> None:
        if success:
            return
        self.failed = True
        said = [str(message)]
        while error is not None:
            said.append(str(error.getMessage()))
            error = error.getCause()
        text = " / ".join(dict.fromkeys(said)).replace("\n", " ").replace("\t", " ")
        self._output.write(f"X\t{text}\n".encode())
        self._output.flush()


def _headers(headers: Any) -> str:
    found = [[str(header.key()), str(header.value())] for header in headers]
    return json.dumps(found) if found else ""


if __name__ == "__main__":
    code = main(sys.stdin.buffer, sys.stdout.buffer)
    sys.stdout.flush()
    os._exit(code)  # a thread still waits for input, which Python would wait for in turn
