"""The reader of Postgres's log as a child process: started, listened to, and ended.

`reader` is what runs there, and says how the two speak.
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
    from thermocline.ingest.postgres.source import Postgres

CHUNK = 1 << 20

Cells = list[bytes]


class Reader:
    """A running reader."""

    def __init__(self, wanted: dict[str, Any], log: Path) -> None:
        self._waiting: deque[bytes] = deque()
        self._rest = b""
        self._log = log
        with log.open("ab") as errors:
            self._logged = errors.tell()
            self._process = interrupt.start_child(
                [sys.executable, "-m", "thermocline.ingest.postgres.capture_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
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
                f"Reading the source's log ended: {redact(one_line(said))[:500]}",
                "Is the source up? Then try again.",
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
        return Transient(f"The reader's process ended with {code}{words}", f"See {self._log}.")


def wanted(reach: Postgres, slot: str, publication: str, *, first: bool) -> dict[str, Any]:
    """Return what a reader is asked for. It holds the password."""
    outbox = reach.outbox
    columns = None if outbox is None else {
        "id": outbox.id, "key": outbox.key, "type": outbox.type, "payload": outbox.payload,
    }  # fmt: skip
    return {
        "connection": Database(reach).options(),
        "tables": list(reach.tables),
        "slot": slot,
        "publication": publication,
        "first": first,
        "outbox": columns,
    }
