"""Connections of a worker: a thread that reads each, and replies that hold nobody up.

A reply goes out at once where the other side takes it. What it does not take waits, and a thread
of the connection sends it. A side that takes nothing for a while, or lets too much wait, is cut
off.
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
from thermocline.serve.wire import wire
from thermocline.serve.wire.frame import packed

MOST = 64
"""How many may be connected at a time: a router, a keeper, and some who look."""
SEND_SECONDS = 10.0
MOST_WAITING = 256 << 20
"""How many bytes may wait for one that reads slowly."""
CAUSE = 600

Heard = Callable[["Connection", wire.Frame], None]
Left = Callable[["Connection"], None]


class Connection:
    """One who knows the token."""

    def __init__(self, sock: socket.socket, number: int) -> None:
        self.number = number
        self.since = time.monotonic()
        self.stranger = True
        self._sock = sock
        self._changed = threading.Condition()
        self._waiting: deque[memoryview] = deque()
        self._held = 0
        self._closed = False
        self._sender: threading.Thread | None = None

    def serve(self, token: str, heard: Heard) -> None:
        """Greet, then hear requests until the other side leaves or talks nonsense."""
        if not wire.greeted(self._sock, token):
            return
        self.stranger = False
        seconds = struct.pack("ll", int(SEND_SECONDS), 0)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, seconds)
        wire.no_delay(self._sock)
        with contextlib.suppress(OSError, wire.Lost, wire.Malformed):
            while (frame := wire.receive(self._sock)) is not None:
                heard(self, frame)

    def reply(self, request: dict[str, Any], said: dict[str, Any], body: wire.Body = b"") -> None:
        """Answer a request that has an id."""
        asked = request.get("id")
        if asked is None:
            return
        try:
            pieces = packed({**said, "id": asked, "ok": True}, body)
        except (wire.Malformed, TypeError, ValueError) as error:
            telemetry.log("serve", "no reply", level="ERROR", error=repr(error))
            self._refuse(asked, "internal", "The reply cannot be written.")
            return
        self._send(pieces)

    def fail(self, request: dict[str, Any], error: ThermoclineError) -> None:
        """Say what went wrong with a request that has an id."""
        if request.get("id") is not None:
            self._refuse(request["id"], error.code, error.cause, error.next_step, error.details)

    def _refuse(
        self, asked: Any, code: str, cause: str, next_step: str = "", details: Any = None
    ) -> None:
        cause, next_step = (
            telemetry.redact(telemetry.one_line(text))[:CAUSE] for text in (cause, next_step)
        )
        error = {"code": code, "cause": cause, "next_step": next_step}
        header = {"id": asked, "ok": False, "error": error}
        try:
            pieces = packed({**header, "error": {**error, "details": details or {}}})
        except (wire.Malformed, TypeError, ValueError):
            pieces = packed({**header, "error": {**error, "details": {}}})
        self._send(pieces)

    def _send(self, pieces: list[wire.Body]) -> None:
        with self._changed:
            if self._closed:
                return
            rest = [memoryview(piece) for piece in pieces]
            if not self._waiting:
                rest = self._taken_at_once(rest)
            if not rest:
                return
            self._waiting.extend(rest)
            self._held += sum(len(piece) for piece in rest)
            if self._held > MOST_WAITING:
                self._shut()
                return
            if self._sender is None:
                self._sender = threading.Thread(target=self._drain, name="send", daemon=True)
                self._sender.start()
            self._changed.notify_all()

    def _taken_at_once(self, pieces: list[memoryview]) -> list[memoryview]:
        """Send what the other side takes without waiting, and give the rest."""
        while pieces:
            try:
                sent = self._sock.sendmsg(pieces, (), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return pieces
            except OSError:
                self._shut()
                return []
            while pieces and sent >= len(pieces[0]):
                sent -= len(pieces.pop(0))
            if pieces:
                pieces[0] = pieces[0][sent:]
        return pieces

    def _drain(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                piece = self._waiting[0]
            try:
                sent = self._sock.send(piece)  # gives up after SEND_SECONDS
            except OSError:
                sent = -1
            with self._changed:
                if sent < 0:
                    self._shut()
                    return
                self._held -= sent
                if sent < len(piece):
                    self._waiting[0] = piece[sent:]
                else:
                    self._waiting.popleft()

    def _shut(self) -> None:
        """Under the lock: send nothing more, and let the reading thread see the end."""
        self._closed = True
        self._waiting.clear()
        self._changed.notify_all()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """End the connection."""
        with self._changed:
            self._shut()

    def close(self) -> None:
        """Give the socket back, by the thread that reads it."""
        self.cut()
        if self._sender is not None:
            self._sender.join()
        self._sock.close()


class Connections:
    """Who is connected to a listener. Calls `heard` for each frame, `left` for each that ends."""

    def __init__(self, listener: socket.socket, token: str, heard: Heard, left: Left) -> None:
        self._listener = listener
        self._token = token
        self._heard = heard
        self._left = left
        self._open: set[Connection] = set()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Begin to take connections in."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def drop_strangers(self) -> None:
        """Cut off who has been connected for a while without showing the token."""
        late = time.monotonic() - wire.HELLO_SECONDS
        with self._lock:
            strangers = [each for each in self._open if each.stranger and each.since < late]
        for connection in strangers:
            connection.cut()

    def _accept(self) -> None:
        for number in itertools.count(1):
            try:
                sock, _ = self._listener.accept()
            except OSError as error:  # out of file descriptors, most likely: it passes
                telemetry.log("serve", "not accepted", level="ERROR", error=str(error))
                time.sleep(0.1)
                continue
            connection = Connection(sock, number)
            with self._lock:
                full = len(self._open) >= MOST
                if not full:
                    self._open.add(connection)
            if full:
                sock.close()
                continue
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # no memory for a thread: it passes, or the process ends
                telemetry.log("serve", "not accepted", level="ERROR", error=str(error))
                self._end(connection)

    def _serve(self, connection: Connection) -> None:
        try:
            connection.serve(self._token, self._heard)
        finally:
            self._end(connection)

    def _end(self, connection: Connection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()
        self._left(connection)
