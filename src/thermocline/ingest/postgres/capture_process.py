"""Start, read from and stop the child process that captures Postgres's log.

`capture_worker` runs in the child and documents the protocol between the two.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thermocline import interrupt
from thermocline.errors import Transient
from thermocline.ingest.postgres.database import Database
from thermocline.telemetry import one_line, redact

if TYPE_CHECKING:
    from thermocline.ingest.postgres.source import PostgresSource

CHUNK_BYTES = 1 << 20

Cells = list[bytes]


class CaptureProcess:
    """A running capture worker."""

    def __init__(self, request: dict[str, Any], log: Path) -> None:
        self._lines: deque[bytes] = deque()
        self._partial_line = b""
        self._log = log
        with log.open("ab") as errors:
            self._log_offset = errors.tell()
            self._process = interrupt.start_child(
                [sys.executable, "-m", "thermocline.ingest.postgres.capture_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                bufsize=0,
                start_new_session=True,  # Ctrl-C finishes the current batch before this process
            )
        self._send(json.dumps(request))

    def next_record(self, wait: float) -> Cells | None:
        """Return the cells of the next line; None if none arrives within `wait` seconds."""
        if not self._lines and not self._read(wait):
            return None
        cells = self._lines.popleft().split(b"\t")
        if cells[0] == b"X":
            message = cells[1].decode(errors="replace")
            self.close()
            raise Transient(
                f"Reading the source's log ended: {redact(one_line(message))[:500]}",
                "Is the source up? Then try again.",
            )
        return cells

    @property
    def is_idle(self) -> bool:
        """Whether no line that was read is still pending."""
        return not self._lines

    def acknowledge(self, lsn: int) -> None:
        """Acknowledge transactions whose commit ends at or before `lsn`."""
        self._send(str(lsn))

    def close(self) -> None:
        """Stop the process. Earlier acknowledgements remain in effect."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def _read(self, wait: float) -> bool:
        """Read available output, waiting if needed; return whether a whole line is available."""
        assert self._process.stdout is not None
        handle = self._process.stdout.fileno()
        deadline = time.monotonic() + wait
        while not self._lines:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([handle], [], [], left)[0]:
                return False
            chunk = os.read(handle, CHUNK_BYTES)
            if not chunk:
                raise self._exit_error()
            *lines, self._partial_line = (self._partial_line + chunk).split(b"\n")
            self._lines.extend(lines)
        return True

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
        except BrokenPipeError:
            raise self._exit_error() from None

    def _exit_error(self) -> Transient:
        code = self._process.wait()
        with self._log.open("rb") as log:
            log.seek(self._log_offset)  # skip what earlier processes logged
            message = log.read().decode(errors="replace").strip().splitlines()[-1:]
        detail = "".join(f": {redact(one_line(line))[:300]}" for line in message)
        return Transient(f"The capture process ended with {code}{detail}", f"See {self._log}.")


def build_request(
    source: PostgresSource, slot: str, publication: str, *, first: bool
) -> dict[str, Any]:
    """Return the request that the worker reads first. It contains the password."""
    outbox = source.outbox
    columns = None if outbox is None else {
        "id": outbox.id, "key": outbox.key, "type": outbox.type, "payload": outbox.payload,
    }  # fmt: skip
    return {
        "connection": Database(source).connection_options(),
        "tables": list(source.tables),
        "slot": slot,
        "publication": publication,
        "first": first,
        "outbox": columns,
    }
