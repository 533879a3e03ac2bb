"""How long a connection may take: for its headers, between requests, and to read its answer.

uvicorn limits none of these for a client that sends or reads a byte now and then, and httptools
takes headers of any length. One such client costs little; two thousand would leave no place for
others. So connections here have a clock, and when all places are taken the one that has been idle
longest makes room.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEADER_BYTES = 64 * 1024
HEADERS = 100
REQUEST_SECONDS = 15.0
"""For a request to come in whole, from its first byte or from when the connection was made."""

STALL_SECONDS = 20.0
"""For a reader to take what is waiting for it: at 256 kB a piece, about 12 kB a second."""

CONNECTIONS = 2_500

_SHAPE = b'{"error": {"code": "%s"}}'


class Patient(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection, which does not wait for ever."""

    places = CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._clock: asyncio.TimerHandle | None = None
        self._stall: asyncio.TimerHandle | None = None
        self._head = 0
        self._in_head = True
        self._refused = False
        self.idle_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.places:
            self._make_room()
        self.idle_since = self.loop.time()
        self._wait_for_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_clock()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began_in_head = self._in_head
        super().data_received(data)
        if self._in_head and began_in_head:
            self._head += len(data)
            if self._head > HEADER_BYTES:
                self._refuse(431, b"header-too-large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head, self._in_head = 0, True
        self._wait_for_request()

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > HEADER_BYTES or len(self.headers) > HEADERS:
            self._refuse(431, b"header-too-large")
            return
        self.idle_since = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_clock()
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._cut_later()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._cut_later()  # closing waits for a reader that may never come

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(400, b"not-http")

    def _wait_for_request(self) -> None:
        if self._clock is None:
            self._clock = self.loop.call_later(REQUEST_SECONDS, self._waited)

    def _waited(self) -> None:
        self._clock = None
        if self.flow.read_paused:
            self._wait_for_request()  # it is us who do not read on yet
        else:
            self.transport.abort()

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _cut_later(self) -> None:
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def _make_room(self) -> None:
        """Cut the connection that has been idle longest; this one, when none is."""
        waiting = [
            other
            for other in self.connections
            if isinstance(other, Patient) and other.idle_since is not None
        ]
        longest = min(waiting, key=lambda other: other.idle_since or 0.0, default=self)
        longest.transport.abort()

    def _refuse(self, status: int, code: bytes) -> None:
        """Answer without the application, and hang up."""
        self._refused = True
        body = _SHAPE % code
        reason = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}[status]
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, reason, len(body), body)
        )
        self.transport.close()
        self._cut_later()


def quiet() -> None:
    """Keep uvicorn's own log out of the way: it would repeat addresses and headers as they came."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
