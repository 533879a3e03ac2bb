"""Timeouts and size limits of connections: headers, time between requests, time to read an answer.

uvicorn limits none of these for a client that sends or reads a byte now and then, and httptools
accepts headers of any length. One such client costs little; two thousand would exhaust the
connections. So connections here have timers, and at the maximum the one that has been idle longest
is closed.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
MAX_HEADERS = 100
REQUEST_SECONDS = 15.0
"""For a request to arrive completely, from its first byte or from the connection's start."""

STALL_SECONDS = 20.0
"""For a reader to take the buffered bytes: at 256 kB a chunk, about 12 kB a second."""

MAX_CONNECTIONS = 2_500

_ERROR_BODY = b'{"error": {"code": "%s"}}'


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 connection with timeouts and size limits."""

    max_connections = MAX_CONNECTIONS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._request_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._header_bytes = 0
        self._is_reading_headers = True
        self._refused = False
        self.idle_since: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.max_connections:
            self._evict_idle()
        self.idle_since = self.loop.time()
        self._start_request_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_request_timer()
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        was_reading_headers = self._is_reading_headers
        super().data_received(data)
        if self._is_reading_headers and was_reading_headers:
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(431, b"header-too-large")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._header_bytes, self._is_reading_headers = 0, True
        self._start_request_timer()

    def on_headers_complete(self) -> None:
        self._is_reading_headers = False
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEADER_BYTES or len(self.headers) > MAX_HEADERS:
            self._refuse(431, b"header-too-large")
            return
        self.idle_since = None
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_request_timer()
        if not self._refused:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self.idle_since = self.loop.time()
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._abort_if_stalled()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def timeout_keep_alive_handler(self) -> None:
        super().timeout_keep_alive_handler()
        self._abort_if_stalled()  # closing waits for a reader that may never read

    def send_400_response(self, msg: str) -> None:
        if not self._refused:
            self._refuse(400, b"not-http")

    def _start_request_timer(self) -> None:
        if self._request_timer is None:
            self._request_timer = self.loop.call_later(REQUEST_SECONDS, self._expire_request)

    def _expire_request(self) -> None:
        self._request_timer = None
        if self.flow.read_paused:
            self._start_request_timer()  # the server itself has paused reading
        else:
            self.transport.abort()

    def _stop_request_timer(self) -> None:
        if self._request_timer is not None:
            self._request_timer.cancel()
            self._request_timer = None

    def _abort_if_stalled(self) -> None:
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(STALL_SECONDS, self.transport.abort)

    def _evict_idle(self) -> None:
        """Abort the connection that has been idle longest; this one when none is idle."""
        waiting = [
            other
            for other in self.connections
            if isinstance(other, BoundedHttpProtocol) and other.idle_since is not None
        ]
        longest = min(waiting, key=lambda other: other.idle_since or 0.0, default=self)
        longest.transport.abort()

    def _refuse(self, status: int, code: bytes) -> None:
        """Respond without the application, and close the connection."""
        self._refused = True
        body = _ERROR_BODY % code
        reason = {400: b"Bad Request", 431: b"Request Header Fields Too Large"}[status]
        self.transport.write(
            b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
            b"connection: close\r\n\r\n%s" % (status, reason, len(body), body)
        )
        self.transport.close()
        self._abort_if_stalled()


def silence_uvicorn_logs() -> None:
    """Silence uvicorn's own log: it would contain URLs and headers as they came."""
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
