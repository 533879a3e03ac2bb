"""Handshake, requests and replies: frames over a stream socket, blocking and with asyncio.

`frame` defines a frame. An address is `unix:/path`, in a folder that only its owner can enter, or
`tcp:host:port`, which carries the token and the rows in clear text: for a private network.

The client sends a hello with the token that the listener was given, and receives `{"ok": true}`;
after anything else the listener closes the connection. From then on, each request `{"do": verb,
"id": …}` has one reply with the same id, in any order: `{"ok": true, …}`, or `{"ok": false,
"error": {"code", "cause", "next_step", "details"}}`. A request without an id has no reply.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import socket
from typing import Any

from thermocline.serve.wire.address import disable_nagle, listen, parse_address
from thermocline.serve.wire.frame import (
    BODY_SIZE,
    HEADER_SIZE,
    MAX_BODY_BYTES,
    MAX_HEADER_BYTES,
    Body,
    ConnectionLost,
    Frame,
    MalformedFrame,
    pack_prefix,
    parse_header,
    parse_size,
)

__all__ = ["BlockingChannel", "Body", "Channel", "ConnectionLost", "Frame", "MalformedFrame",
           "authenticate", "connect", "disable_nagle", "listen", "parse_address", "receive",
           "send"]  # fmt: skip

MAX_UNAUTHENTICATED_HEADER_BYTES = 4096
"""A peer that has not sent the token cannot make the listener hold more than this."""
HANDSHAKE_SECONDS = 5.0

_CHUNK_BYTES = 1 << 20


# Blocking ----------------------------------------------------------------------------------------


def send(sock: socket.socket, header: dict[str, Any], body: Body = b"") -> None:
    """Send one frame. Raises ConnectionLost when the peer does not take it."""
    try:
        sock.sendall(pack_prefix(header, body))
        if body:
            sock.sendall(body)
    except OSError as error:
        raise ConnectionLost("The connection was lost while sending.") from error


def receive(
    sock: socket.socket,
    max_header_bytes: int = MAX_HEADER_BYTES,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Frame | None:
    """Return the next frame, or None when the peer ended the connection between two frames."""
    first = _read_bytes(sock, HEADER_SIZE.size, at_start=True)
    if first is None:
        return None
    size = parse_size(HEADER_SIZE, first, max_header_bytes)
    rest = _read_bytes(sock, size + BODY_SIZE.size) or b""
    header = parse_header(rest[:size])
    body = _read_bytes(sock, parse_size(BODY_SIZE, rest[size:], max_body_bytes))
    return Frame(header, body or b"")


def connect(address: str, token: str, timeout: float | None = None) -> socket.socket:
    """Return an authenticated socket to a listener. `timeout` stays set on it."""
    family, target = parse_address(address)
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.settimeout(HANDSHAKE_SECONDS if timeout is None else timeout)
    try:
        sock.connect(target)
        disable_nagle(sock)
        send(sock, {"do": "hello", "token": token})
        if receive(sock) is None:
            raise _authentication_refused(address)
    except OSError as error:
        sock.close()
        raise ConnectionLost(f"Nobody answers at {address}.", "Is the process running?") from error
    except (ConnectionLost, MalformedFrame):
        sock.close()
        raise
    sock.settimeout(timeout)
    return sock


def authenticate(sock: socket.socket, token: str) -> bool:
    """Check the token of a new connection and acknowledge it. On False, close without replying."""
    sock.settimeout(HANDSHAKE_SECONDS)
    try:
        frame = receive(sock, MAX_UNAUTHENTICATED_HEADER_BYTES, max_body_bytes=0)
        if frame is None or frame.header.get("do") != "hello":
            return False
        presented = frame.header.get("token")
        if not isinstance(presented, str) or not hmac.compare_digest(
            presented.encode(), token.encode()
        ):
            return False
        send(sock, {"ok": True})
    except (OSError, ConnectionLost, MalformedFrame, UnicodeEncodeError):
        return False
    sock.settimeout(None)
    return True


class BlockingChannel:
    """A blocking connection with one request at a time, for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._ids = itertools.count(1)

    @classmethod
    def open(cls, address: str, token: str, timeout: float | None = None) -> BlockingChannel:
        """Connect and authenticate. Raises ConnectionLost.

        After `timeout` without a reply it is closed.
        """
        return cls(connect(address, token, timeout))

    def ask(self, header: dict[str, Any], body: Body = b"") -> Frame:
        """Send a request and wait for its reply, which may be an error; see `Frame.error`.

        Raises ConnectionLost when the peer is gone or takes longer than the timeout. The channel is
        then closed: a late reply could be taken for that of the next request.
        """
        request_id = next(self._ids)
        try:
            send(self._sock, {**header, "id": request_id}, body)
            while True:
                frame = receive(self._sock)
                if frame is None:
                    raise ConnectionLost("The other side ended the connection.")
                if frame.header.get("id") == request_id:
                    return frame
        except OSError as error:
            self.close()
            raise ConnectionLost("The connection was lost while waiting for a reply.") from error
        except (ConnectionLost, MalformedFrame):
            self.close()
            raise

    def close(self) -> None:
        """End the connection."""
        self._sock.close()


# Asyncio -----------------------------------------------------------------------------------------


class Channel:
    """An asyncio connection with many requests in flight; replies are matched by id."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._lost: ConnectionLost | None = None
        self._loop = asyncio.get_running_loop()
        self._listening = self._loop.create_task(self._listen())

    @classmethod
    async def open(cls, address: str, token: str) -> Channel:
        """Connect and authenticate. Raises ConnectionLost."""
        family, target = parse_address(address)
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(HANDSHAKE_SECONDS):
                if family == socket.AF_UNIX:
                    reader, writer = await asyncio.open_unix_connection(target, limit=_CHUNK_BYTES)
                else:
                    reader, writer = await asyncio.open_connection(*target[:2], limit=_CHUNK_BYTES)
                    disable_nagle(writer.get_extra_info("socket"))
                writer.write(pack_prefix({"do": "hello", "token": token}, b""))
                if await _read_frame(reader) is None:
                    raise _authentication_refused(address)
        except (OSError, ConnectionLost, MalformedFrame) as error:  # a TimeoutError is an OSError
            if writer is not None:
                writer.close()
            if isinstance(error, ConnectionLost):
                raise
            raise ConnectionLost(
                f"Nobody answers at {address}.", "Is the process running?"
            ) from error
        return cls(reader, writer)

    @property
    def alive(self) -> bool:
        """Whether the connection is not known to be lost or closed."""
        return self._lost is None

    async def ask(
        self, header: dict[str, Any], body: Body = b"", timeout: float | None = None
    ) -> Frame:
        """Send a request and wait for its reply, which may be an error; see `Frame.error`.

        Raises ConnectionLost when the connection is lost, TimeoutError after `timeout` seconds. A
        query that is abandoned, by timeout or by cancelling the waiting task, is cancelled in the
        worker.
        """
        if self._lost is not None:
            raise self._lost
        request_id = next(self._ids)
        first = pack_prefix(
            {**header, "id": request_id}, body
        )  # may raise: before a reply is awaited
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[request_id] = future
        timer = self._loop.call_later(timeout, _expire, future) if timeout is not None else None
        try:
            self._write(first, body)
            if len(body) > _CHUNK_BYTES:
                with contextlib.suppress(OSError):  # `_listen` sees it and fails the future
                    await self._writer.drain()
            return await future
        except (TimeoutError, asyncio.CancelledError):
            if header.get("do") == "query":
                self.notify({"do": "cancel", "query": request_id})
            raise
        finally:
            del self._waiting[request_id]
            if timer is not None:
                timer.cancel()

    def notify(self, header: dict[str, Any], body: Body = b"") -> None:
        """Send a request without a reply; nothing happens when the connection is lost."""
        if self._lost is None:
            self._write(pack_prefix(header, body), body)

    async def close(self) -> None:
        """End the connection; requests in flight fail with ConnectionLost."""
        self._fail(ConnectionLost("The connection was closed."))
        self._listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._listening

    def _write(self, first: bytes, body: Body) -> None:
        self._writer.write(first)
        if body:
            self._writer.write(body)

    async def _listen(self) -> None:
        try:
            while (frame := await _read_frame(self._reader)) is not None:
                request_id = frame.header.get("id")
                future = self._waiting.get(request_id) if isinstance(request_id, int) else None
                if future is not None and not future.done():
                    future.set_result(frame)
            self._fail(ConnectionLost("The other side ended the connection."))
        except (OSError, ConnectionLost, MalformedFrame) as error:
            lost = ConnectionLost("The connection was lost.")
            lost.__cause__ = error
            self._fail(lost)

    def _fail(self, error: ConnectionLost) -> None:
        self._lost = self._lost or error
        self._writer.close()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionLost(error.cause))


def _expire(future: asyncio.Future[Frame]) -> None:
    if not future.done():
        future.set_exception(TimeoutError("No reply in time."))


async def _read_frame(reader: asyncio.StreamReader) -> Frame | None:
    try:
        first = await reader.readexactly(HEADER_SIZE.size)
    except asyncio.IncompleteReadError as error:
        if not error.partial:
            return None
        raise ConnectionLost("The connection was lost within a frame.") from error
    try:
        size = parse_size(HEADER_SIZE, first, MAX_HEADER_BYTES)
        rest = await reader.readexactly(size + BODY_SIZE.size)
        length = parse_size(BODY_SIZE, rest[size:], MAX_BODY_BYTES)
        body = await reader.readexactly(length) if length else b""
    except asyncio.IncompleteReadError as error:
        raise ConnectionLost("The connection was lost within a frame.") from error
    return Frame(parse_header(rest[:size]), body)


# Both --------------------------------------------------------------------------------------------


def _read_bytes(sock: socket.socket, size: int, at_start: bool = False) -> Body | None:
    """Return `size` bytes. Memory is allocated as they arrive, not as they are announced."""
    try:
        found = sock.recv(min(size, _CHUNK_BYTES)) if size else b""
        if len(found) == size:
            return found
        if at_start and not found:
            return None
        buffer = bytearray(found)
        while found and len(buffer) < size:
            found = sock.recv(min(size - len(buffer), _CHUNK_BYTES))
            buffer += found
    except ConnectionError as error:
        raise ConnectionLost("The connection was lost.") from error
    if len(buffer) < size:
        raise ConnectionLost("The connection was lost within a frame.")
    return buffer


def _authentication_refused(address: str) -> ConnectionLost:
    return ConnectionLost(
        f"The worker at {address} refuses the connection.",
        "Check that it was started with this token.",
    )
