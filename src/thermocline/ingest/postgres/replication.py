"""The stream of a replication connection, and what the source is told of it.

psycopg2 connects, but its own reading of the stream acknowledges by itself what it believes to be
done, which would move the slot ahead of the bookmark. So the stream is read with the functions of
libpq, the client library that psycopg2 carries.
"""

from __future__ import annotations

import ctypes
import struct
import time
from dataclasses import dataclass
from typing import Any

_EPOCH_SECONDS = 946_684_800
_FINISHED, _FAILED = -1, -2


@dataclass(frozen=True)
class Received:
    """One message of the plugin, and where in the log it belongs."""

    lsn: int
    payload: bytes


class Stream:
    """Reads a slot's changes. Only what `report` is given is acknowledged."""

    def __init__(self, connection: Any, slot: str, publication: str) -> None:
        from psycopg2 import _psycopg

        # A symbol is looked up in all that this module is linked with, wherever its libpq is.
        self._libpq = ctypes.CDLL(_psycopg.__file__)
        self._libpq.PQerrorMessage.restype = ctypes.c_char_p
        self._connection = connection
        self._handle = ctypes.c_void_p(connection.pgconn_ptr)
        self._flushed = 0
        quoted = publication.replace('"', '""')
        options = {"proto_version": "1", "publication_names": f'"{quoted}"'}
        if connection.server_version >= 140_000:
            options["messages"] = "true"  # without it, transactions of messages alone are left out
        connection.cursor().start_replication(slot_name=slot, decode=False, options=options)

    def fileno(self) -> int:
        """Return the socket, to wait for more."""
        return int(self._connection.fileno())

    def next(self) -> Received | None:
        """Return the next message; None when none has arrived yet. Raises OSError at the end."""
        while (data := self._copied()) is not None:
            if data[:1] == b"w":
                return Received(int.from_bytes(data[1:9], "big"), data[25:])
            if data[:1] == b"k" and data[17]:
                self.report()
        return None

    def report(self, lsn: int = 0) -> None:
        """Tell the source that we are there, and that changes before `lsn` are not needed again."""
        self._flushed = max(self._flushed, lsn)
        now = int((time.time() - _EPOCH_SECONDS) * 1_000_000)
        told = b"r" + struct.pack(">qqqqB", self._flushed, self._flushed, self._flushed, now, 0)
        if self._libpq.PQputCopyData(self._handle, told, len(told)) < 0:
            raise self._ended()
        self._libpq.PQflush(self._handle)

    def _copied(self) -> bytes | None:
        found = self._get()
        if found is None:
            if not self._libpq.PQconsumeInput(self._handle):
                raise self._ended()
            found = self._get()
        return found

    def _get(self) -> bytes | None:
        buffer = ctypes.c_void_p()
        length = self._libpq.PQgetCopyData(self._handle, ctypes.byref(buffer), 1)
        if length in {_FINISHED, _FAILED}:
            raise self._ended()
        if length == 0:
            return None
        try:
            return ctypes.string_at(buffer, length)
        finally:
            self._libpq.PQfreemem(buffer)

    def _ended(self) -> OSError:
        said = (self._libpq.PQerrorMessage(self._handle) or b"").decode(errors="replace")
        return OSError(said.strip() or "the source ended the stream of changes")
