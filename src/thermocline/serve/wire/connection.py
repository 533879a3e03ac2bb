"""Connections of a worker: one reading thread each, and replies that never block another
connection.

A reply is sent at once as far as the peer takes it. The rest is queued and sent by a thread of the
connection. A peer that takes nothing for `SEND_SECONDS`, or queues more than `MAX_PENDING_BYTES`,
is disconnected.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from thermocline import telemetry
from thermocline.errors import ThermoclineError
from thermocline.serve.wire import protocol
from thermocline.serve.wire.frame import pack_frame

MAX_CONNECTIONS = 64
"""How many connections may be open at a time: a router, a replicator, and some for inspection."""
SEND_SECONDS = 10.0
MAX_PENDING_BYTES = 256 << 20
"""How many bytes may be queued for a peer that reads slowly."""
MAX_ERROR_CHARACTERS = 600

OnFrame = Callable[["Connection", protocol.Frame], None]
OnClose = Callable[["Connection"], None]


class Connection:
    """A connection to one peer."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self.connected_at = time.monotonic()
        self.is_authenticated = False
        self._sock = sock
        self._changed = threading.Condition()
        self._pending: deque[memoryview] = deque()
        self._pending_bytes = 0
        self._is_closed = False
        self._sender: threading.Thread | None = None

    def serve(self, token: str, on_frame: OnFrame) -> None:
        """Authenticate the peer, then handle its frames until it leaves or one is malformed."""
        if not protocol.authenticate(self._sock, token):
            return
        self.is_authenticated = True
        seconds = struct.pack("ll", int(SEND_SECONDS), 0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        protocol.disable_nagle(self._sock)
        with contextlib.suppress(OSError, protocol.ConnectionLost, protocol.MalformedFrame):
            while (frame := protocol.receive(self._sock)) is not None:
                on_frame(self, frame)

    def reply(
        self, request: dict[str, Any], fields: dict[str, Any], body: protocol.Body = b""
    ) -> None:
        """Reply to a request that has an id; one without an id gets no reply."""
        request_id = request.get("id")
        if request_id is None:
            return
        try:
            pieces = pack_frame({**fields, "id": request_id, "ok": True}, body)
        except (protocol.MalformedFrame, TypeError, ValueError) as error:
            telemetry.log("serve", "reply not encoded", level="ERROR", error=repr(error))
            self._refuse(request_id, "internal", "The reply cannot be encoded.")
            return
        self._send(pieces)

    def fail(self, request: dict[str, Any], error: ThermoclineError) -> None:
        """Reply with an error to a request that has an id."""
        if request.get("id") is not None:
            self._refuse(request["id"], error.code, error.cause, error.next_step, error.details)

    def _refuse(
        self, request_id: Any, code: str, cause: str, next_step: str = "", details: Any = None
    ) -> None:
        cause, next_step = (
            telemetry.redact(telemetry.one_line(text))[:MAX_ERROR_CHARACTERS]
            for text in (cause, next_step)
        )
        error = {"code": code, "cause": cause, "next_step": next_step}
        header = {"id": request_id, "ok": False, "error": error}
        try:
            pieces = pack_frame({**header, "error": {**error, "details": details or {}}})
        except (protocol.MalformedFrame, TypeError, ValueError):
            pieces = pack_frame({**header, "error": {**error, "details": {}}})
        self._send(pieces)

    def _send(self, pieces: list[protocol.Body]) -> None:
        with self._changed:
            if self._is_closed:
                return
            rest = [memoryview(piece) for piece in pieces]
            if not self._pending:
                rest = self._send_without_blocking(rest)
            if not rest:
                return
            self._pending.extend(rest)
            self._pending_bytes += sum(len(piece) for piece in rest)
            if self._pending_bytes > MAX_PENDING_BYTES:
                self._shut_down()
                return
            if self._sender is None:
                self._sender = threading.Thread(target=self._send_pending, name="send", daemon=True)
                self._sender.start()
            self._changed.notify_all()

    def _send_without_blocking(self, pieces: list[memoryview]) -> list[memoryview]:
        """Send what the peer takes without waiting; return the rest."""
        while pieces:
            try:
                sent = self._sock.sendmsg(pieces, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return pieces
            except OSError:
                self._shut_down()
                return []
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][sent:]
        return pieces

    def _send_pending(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                piece = self._pending[0]
            try:
                sent = self._sock.send(piece)  # gives up after SEND_SECONDS
            except OSError:
                sent = -1
            with self._changed:
                if sent < 0:
                    self._shut_down()
                    return
                self._pending_bytes -= sent
                if sent < len(piece):
                    self._pending[0] = piece[sent:]
                else:
                    self._pending.popleft()

    def _shut_down(self) -> None:
        """Send nothing more and end the reading thread. The caller holds the lock."""
        self._is_closed = True
        self._pending.clear()
        self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def abort(self) -> None:
        """End the connection."""
        with self._changed:
            self._shut_down()

    def close(self) -> None:
        """Release the socket. Called by the thread that reads it."""
        self.abort()
        if self._sender is not None:
            self._sender.join()
        self._sock.close()


class Connections:
    """Open connections of a listener.

    Calls `on_frame` for each frame, `on_close` for each that ends.
    """

    def __init__(
        self, listener: socket.socket, token: str, on_frame: OnFrame, on_close: OnClose
    ) -> None:
        self._listener = listener
        self._token = token
        self._on_frame = on_frame
        self._on_close = on_close
        self._open: set[Connection] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to accept connections."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def drop_unauthenticated(self) -> None:
        """Disconnect peers that have not sent the token within `HANDSHAKE_SECONDS`."""
        late = time.monotonic() - protocol.HANDSHAKE_SECONDS
        with self._lock:
            unauthenticated = [
                each
                for each in self._open
                if not each.is_authenticated and each.connected_at < late
            ]
        for connection in unauthenticated:
            connection.abort()

    def _accept(self) -> None:
        for number in itertools.count(1):
            try:
                sock, _ = self._listener.accept()
            except OSError as error:  # mostly out of file descriptors: transient
                telemetry.log("serve", "not accepted", level="ERROR", error=str(error))
                time.sleep(0.1)
                continue
            connection = Connection(sock, number)
            with self._lock:
                full = len(self._open) >= MAX_CONNECTIONS
                if not full:
                    self._open.add(connection)
            if full:
                sock.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no memory for a thread
                telemetry.log("serve", "not accepted", level="ERROR", error=str(error))
                self._end(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve(self._token, self._on_frame)
        finally:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()
        self._on_close(connection)
