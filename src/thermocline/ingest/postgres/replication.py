"""The stream of a replication connection, and the status reported back to the source.

psycopg2 opens the connection, but its own stream reader acknowledges messages automatically, which
would move the slot ahead of the bookmark. So the stream is read with the functions of libpq, the
client library that psycopg2 bundles.
"""

from __future__ import annotations

import ctypes
import struct
import time
from dataclasses import dataclass
from typing import Any

from thermocline.ingest.postgres.source_catalog import quote_name

_EPOCH_SECONDS = 946_684_800
_FINISHED, _FAILED = -1, -2


@dataclass(frozen=True)
class ReplicationMessage:
    """One message of the output plugin, and its position in the log."""

    lsn: int
    payload: bytes


class ReplicationStream:
    """Reads a slot's changes. Acknowledges only the positions passed to `send_status`."""

    def __init__(self, connection: Any, slot: str, publication: str) -> None:
        from psycopg2 import _psycopg

        # Symbols are resolved through the libraries that this module links, including its libpq.
        self._libpq = ctypes.CDLL(_psycopg.__file__)
        self._libpq.PQerrorMessage.restype = ctypes.c_char_p
        self._connection = connection
        self._handle = ctypes.c_void_p(connection.pgconn_ptr)
        self._flushed = 0
        options = {"proto_version": "1", "publication_names": quote_name(publication)}
        if connection.server_version >= 140_000:
            options["messages"] = "true"  # else transactions with only messages are left out
        connection.cursor().start_replication(slot_name=slot, decode=False, options=options)

    def fileno(self) -> int:
        """Return the socket, to wait for more data."""
        return int(self._connection.fileno())

    def next(self) -> ReplicationMessage | None:
        """Return the next message, or None if none has arrived. Raise OSError at the end."""
        while (data := self._read_message()) is not None:
            if data[:1] == b"w":
                return ReplicationMessage(int.from_bytes(data[1:9], "big"), data[25:])
            if data[:1] == b"k" and data[17]:
                self.send_status()
        return None

    def send_status(self, lsn: int = 0) -> None:
        """Report that the reader is alive and that changes before `lsn` are no longer needed."""
        self._flushed = max(self._flushed, lsn)
        now = int((time.time() - _EPOCH_SECONDS) * 1_000_000)
        status = b"r" + struct.pack(">qqqqB", self._flushed, self._flushed, self._flushed, now, 0)
        if self._libpq.PQputCopyData(self._handle, status, len(status)) < 0:
            raise self._stream_error()
        self._libpq.PQflush(self._handle)

    def _read_message(self) -> bytes | None:
        found = self._get_copy_data()
        if found is None:
            if not self._libpq.PQconsumeInput(self._handle):
                raise self._stream_error()
            found = self._get_copy_data()
        return found

    def _get_copy_data(self) -> bytes | None:
        buffer = ctypes.c_void_p()
        length = self._libpq.PQgetCopyData(self._handle, ctypes.byref(buffer), 1)
        if length in {_FINISHED, _FAILED}:
            raise self._stream_error()
        if length == 0:
            return None
        try:
            return ctypes.string_at(buffer, length)
        finally:
            self._libpq.PQfreemem(buffer)

    def _stream_error(self) -> OSError:
        message = (self._libpq.PQerrorMessage(self._handle) or b"").decode(errors="replace")
        return OSError(message.strip() or "the source ended the stream of changes")
