"""How the processes of serving talk: frames of a JSON header and bytes, over a stream socket.

`frame` says what a frame is. An address is `unix:/path`, in a folder that only its owner can
enter, or `tcp:host:port`, which carries the token and the rows as they are: for a private network.

Who connects says hello first, with the token that the listener was given, and is told
`{"ok": true}`; whoever says anything else is cut off. Then each request `{"do": verb, "id": …}`
has one reply with the same id, in any order: `{"ok": true, …}`, or `{"ok": false, "error":
{"code", "cause", "next_step", "details"}}`. A request without an id has no reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import socket
from typing import Any

from thermocline.serve.wire.address import endpoint, listen, no_delay
from thermocline.serve.wire.frame import (
    BODY_SIZE,
    HEADER_SIZE,
    LARGEST_BODY,
    LARGEST_HEADER,
    Body,
    Frame,
    Lost,
    Malformed,
    head,
    header_of,
    size_of,
)

__all__ = ["Body", "Channel", "Frame", "Line", "Lost", "Malformed", "connect", "endpoint",
           "greeted", "listen", "no_delay", "receive", "send"]  # fmt: skip

STRANGERS_HEADER = 4096
"""Who has not shown the token yet cannot make us hold more than this."""
HELLO_SECONDS = 5.0

_PIECE = 1 << 20


# Blocking ----------------------------------------------------------------------------------------


def send(sock: socket.socket, header: dict[str, Any], body: Body = b"") -> None:
    """Say one frame. Raises Lost when the other side does not take it."""
    try:
        sock.sendall(head(header, body))
        if body:
            sock.sendall(body)
    except OSError as error:
        raise Lost("The connection was lost while sending.") from error


def receive(
    sock: socket.socket,
    largest_header: int = LARGEST_HEADER,
    largest_body: int = LARGEST_BODY,
) -> Frame | None:
    """The next frame, or None when the other side ended the connection between two frames."""
    first = _read(sock, HEADER_SIZE.size, at_start=True)
    if first is None:
        return None
    size = size_of(HEADER_SIZE, first, largest_header)
    rest = _read(sock, size + BODY_SIZE.size) or b""
    header = header_of(rest[:size])
    body = _read(sock, size_of(BODY_SIZE, rest[size:], largest_body))
    return Frame(header, body or b"")


def connect(address: str, token: str, timeout: float | None = None) -> socket.socket:
    """A socket to a listener that took us in. `timeout` goes on to hold for it."""
    family, place = endpoint(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(HELLO_SECONDS if timeout is None else timeout)
    try:
        sock.connect(place)
        no_delay(sock)
        send(sock, {"do": "hello", "token": token})
        if receive(sock) is None:
            raise _not_taken_in(address)
    except OSError as error:
        sock.close()
        raise Lost(f"Nobody answers at {address}.", "Is the process running?") from error
    except (Lost, Malformed):
        sock.close()
        raise
    sock.settimeout(timeout)
    return sock


def greeted(sock: socket.socket, token: str) -> bool:
    """Whether who connected knows the token. Says so to them; False: close, without a word."""
    sock.settimeout(HELLO_SECONDS)
    try:
        frame = receive(sock, STRANGERS_HEADER, largest_body=0)
        if frame is None or frame.header.get("do") != "hello":
            return False
        shown = frame.header.get("token")
        if not isinstance(shown, str) or not hmac.compare_digest(shown.encode(), token.encode()):
            return False
        send(sock, {"ok": True})
    except (OSError, Lost, Malformed, UnicodeEncodeError):
        return False
    sock.settimeout(None)
    return True


class Line:
    """A blocking connection with one request at a time, for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ids = itertools.count(1)

    @classmethod
    def open(cls, address: str, token: str, timeout: float | None = None) -> Line:
        """Connect and be taken in; raises Lost. Without an answer in `timeout`, the line breaks."""
        return cls(connect(address, token, timeout))

    def ask(self, header: dict[str, Any], body: Body = b"") -> Frame:
        """Send a request and wait for its reply, which may be an error; see `Frame.error`.

        Raises Lost when the other side is gone or takes longer than the line's timeout. The line
        is then of no more use: a late reply could be taken for that of the next request.
        """
        asked = next(self._ids)
        try:
            send(self._sock, {**header, "id": asked}, body)
            while True:
                frame = receive(self._sock)
                if frame is None:
                    raise Lost("The other side ended the connection.")
                if frame.header.get("id") == asked:
                    return frame
        except OSError as error:
            self.close()
            raise Lost("The connection was lost while waiting for a reply.") from error
        except (Lost, Malformed):
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._sock.close()


# Asyncio -----------------------------------------------------------------------------------------


class Channel:
    """A connection with many requests in flight, matched to their replies by an id."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._lost: Lost | None = None
        self._loop = asyncio.get_running_loop()
        self._listening = self._loop.create_task(self._listen())

    @classmethod
    async def open(cls, address: str, token: str) -> Channel:
        """Connect and be taken in; raises Lost."""
        family, place = endpoint(address)
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                if family == socket.AF_UNIX:
                    reader, writer = await asyncio.open_unix_connection(place, limit=_PIECE)
                else:
                    reader, writer = await asyncio.open_connection(*place[:2], limit=_PIECE)
                    no_delay(writer.get_extra_info("socket"))
                writer.write(head({"do": "hello", "token": token}, b""))
                if await _next(reader) is None:
                    raise _not_taken_in(address)
        except (OSError, Lost, Malformed) as error:  # a TimeoutError is an OSError
            if writer is not None:
                writer.close()
            if isinstance(error, Lost):
                raise
            raise Lost(f"Nobody answers at {address}.", "Is the process running?") from error
        return cls(reader, writer)

    @property
    def alive(self) -> bool:
        """Whether the connection is not known to be lost or closed."""
        return self._lost is None

    async def ask(
        self, header: dict[str, Any], body: Body = b"", timeout: float | None = None
    ) -> Frame:
        """Send a request and wait for its reply, which may be an error; see `Frame.error`.

        Raises Lost when the connection is, TimeoutError after `timeout` seconds. A query that is
        given up, by timeout or by cancelling the task that waits, is cancelled over there.
        """
        if self._lost is not None:
            raise self._lost
        asked = next(self._ids)
        first = head({**header, "id": asked}, body)  # nothing waits for what cannot be written
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[asked] = future
        timer = self._loop.call_later(timeout, _expire, future) if timeout is not None else None
        try:
            self._write(first, body)
            if len(body) > _PIECE:
                with contextlib.suppress(OSError):  # `_listen` hears of it, and tells us
                    await self._writer.drain()
            return await future
        except (TimeoutError, asyncio.CancelledError):
            if header.get("do") == "query":
                self.tell({"do": "cancel", "query": asked})
            raise
        finally:
            del self._waiting[asked]
            if timer is not None:
                timer.cancel()

    def tell(self, header: dict[str, Any], body: Body = b"") -> None:
        """Send a request without a reply. To one who is gone, nothing is said."""
        if self._lost is None:
            self._write(head(header, body), body)

    async def close(self) -> None:
        """End the connection; requests in flight fail with Lost."""
        self._fail(Lost("The connection was closed."))
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening

    def _write(self, first: bytes, body: Body) -> None:
        self._writer.write(first)
        if body:
            self._writer.write(body)

    async def _listen(self) -> None:
        try:
            while (frame := await _next(self._reader)) is not None:
                asked = frame.header.get("id")
                future = self._waiting.get(asked) if isinstance(asked, int) else None
                if future is not None and not future.done():
                    future.set_result(frame)
            self._fail(Lost("The other side ended the connection."))
        except (OSError, Lost, Malformed) as error:
            lost = Lost("The connection was lost.")
            lost.__cause__ = error
            self._fail(lost)

    def _fail(self, error: Lost) -> None:
        self._lost = self._lost or error
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(Lost(error.cause))


def _expire(future: asyncio.Future[Frame]) -> None:
    if not future.done():
        future.set_exception(TimeoutError("No reply in time."))


async def _next(reader: asyncio.StreamReader) -> Frame | None:
    try:
        first = await reader.readexactly(HEADER_SIZE.size)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise Lost("The connection was lost within a frame.") from error
    try:
        size = size_of(HEADER_SIZE, first, LARGEST_HEADER)
        rest = await reader.readexactly(size + BODY_SIZE.size)
        length = size_of(BODY_SIZE, rest[size:], LARGEST_BODY)
        body = await reader.readexactly(length) if length else b""
    except asyncio.IncompleteReadError as error:
        raise Lost("The connection was lost within a frame.") from error
    return Frame(header_of(rest[:size]), body)


# Both --------------------------------------------------------------------------------------------


def _read(sock: socket.socket, size: int, at_start: bool = False) -> Body | None:
    """So many bytes. Memory is taken as they come, not as they are announced."""
    try:
        found = sock.recv(min(size, _PIECE)) if size else b""
        if len(found) == size:
            return found
        if at_start and not found:
            return None
        held = bytearray(found)
        while found and len(held) < size:
            found = sock.recv(min(size - len(held), _PIECE))
            held += found
    except ConnectionError as error:
        raise Lost("The connection was lost.") from error
    if len(held) < size:
        raise Lost("The connection was lost within a frame.")
    return held


def _not_taken_in(address: str) -> Lost:
    return Lost(f"The worker at {address} does not take us in.", "Is it the token it was given?")
