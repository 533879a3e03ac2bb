"""The HTTP session of API pulls: connections to allowed addresses, responses of bounded size.

dlt sends every request through this session. Addresses are checked where the socket is opened, so
the check covers redirects, links to next pages, token requests, and names that change their address
between two lookups.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import dataclass
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

from thermocline.errors import BadInput, Permanent, Transient
from thermocline.ingest.egress_policy import AddressRefused, EgressPolicy, UrlOrigin, parse_origin
from thermocline.telemetry import one_line

if TYPE_CHECKING:
    from requests import PreparedRequest, Response, Session
    from requests.adapters import HTTPAdapter

CONNECT_SECONDS = 10.0
CHUNK_BYTES = 64 * 1024
ATTEMPTS = 6
BACKOFF_SECONDS = 1.0
MAX_WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class ResponseLimits:
    """The limits of one response: seconds from the request to the last byte, and bytes."""

    seconds: float = 60.0
    bytes: int = 64 << 20


def open_session(
    policy: EgressPolicy, origins: tuple[UrlOrigin, ...], response_limits: ResponseLimits
) -> Session:
    """Return a session that connects only to these origins, at addresses the policy allows.

    Transient failures (no connection, 429, 5xx) are retried with growing pauses, or after the time
    the server asks for. The environment's proxies and .netrc are not used: a proxy would resolve
    names itself, and .netrc would add credentials.
    """
    from dlt.sources.helpers.requests.retry import DEFAULT_RETRY_EXCEPTIONS, Client

    client = Client(
        request_timeout=(CONNECT_SECONDS, response_limits.seconds),
        raise_for_status=False,
        exceptions=(*DEFAULT_RETRY_EXCEPTIONS, Transient),
        request_max_attempts=ATTEMPTS,
        request_backoff_factor=BACKOFF_SECONDS,
        request_max_retry_delay=MAX_WAIT_SECONDS,
    )
    session: Session = client.session
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
    session.headers["User-Agent"] = "thermocline"
    session.max_redirects = 10
    adapter = _make_adapter(policy, origins, response_limits)
    session.adapters.clear()
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _make_adapter(
    policy: EgressPolicy, origins: tuple[UrlOrigin, ...], response_limits: ResponseLimits
) -> HTTPAdapter:
    from requests.adapters import HTTPAdapter

    class LimitedAdapter(HTTPAdapter):
        """Checks the origin before sending, and limits the response."""

        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = _make_pools(policy, response_limits)

        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            _check_origin(origins, request)
            began = time.monotonic()
            options["stream"] = True
            response = super().send(request, *args, **options)
            _read_body(response, began, response_limits)
            return response

    return LimitedAdapter()


def _check_origin(origins: tuple[UrlOrigin, ...], request: PreparedRequest) -> None:
    """Refuse a request to an origin that the source does not name: it may carry secrets."""
    target = parse_origin(request.url or "")
    if not any(origin.covers(target) for origin in origins):
        raise AddressRefused(
            f"{origins[0]} leads to {target}, which the source does not name.",
            "If that is meant, add it to hosts in the source.",
        )


def _make_pools(policy: EgressPolicy, response_limits: ResponseLimits) -> dict[str, Any]:
    """Return urllib3 connection pools whose connections resolve names by the policy."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.util.connection import create_connection

    class CheckedConnection(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            failure: OSError | None = None
            for address in policy.resolve(self.host, self.port):
                try:
                    return create_connection(
                        (address, self.port), self.timeout, socket_options=self.socket_options
                    )
                except OSError as error:
                    failure = error
            raise Transient(
                f"{self.host}:{self.port} cannot be reached: {failure}.",
                "Check the URL and the network, then run again.",
            ) from failure

        def getresponse(self) -> Any:
            # A socket's timeout applies to each read, so a server that sends its headers byte by
            # byte would never time out. Shutting the socket down ends the headers.
            timed_out = threading.Event()
            timer = threading.Timer(
                response_limits.seconds, partial(_shut_down, self.sock, timed_out)
            )
            timer.daemon = True
            timer.start()
            try:
                response = super().getresponse()
            finally:
                timer.cancel()
            if timed_out.is_set():
                raise TimeoutError(f"no headers in {response_limits.seconds:g} s")
            return response

    # CheckedConnection comes first, so that it supplies the socket that TLS wraps.
    class CheckedTLSConnection(CheckedConnection, HTTPSConnection):
        pass

    class ConnectionPool(HTTPConnectionPool):
        ConnectionCls = CheckedConnection

    class TLSConnectionPool(HTTPSConnectionPool):
        ConnectionCls = CheckedTLSConnection

    return {"http": ConnectionPool, "https": TLSConnectionPool}


def _shut_down(connection: socket.socket | None, timed_out: threading.Event) -> None:
    timed_out.set()
    if connection is not None:
        try:
            connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # already closed


def _read_body(response: Response, began: float, response_limits: ResponseLimits) -> None:
    """Read the whole response within the limits; its JSON then keeps numbers exact."""
    from urllib3.exceptions import HTTPError

    origin = parse_origin(response.url)
    parts: list[bytes] = []
    size = 0
    try:
        while chunk := response.raw.read1(CHUNK_BYTES, decode_content=True):
            size += len(chunk)
            parts.append(chunk)
            if size > response_limits.bytes:
                raise BadInput(
                    f"A response of {origin} exceeds {response_limits.bytes:,} bytes.",
                    "Ask for smaller pages, or raise maxResponseBytes in the source.",
                )
            if time.monotonic() - began > response_limits.seconds:
                raise Transient(
                    f"A response of {origin} took over {response_limits.seconds:g} s.",
                    "Ask for smaller pages, or raise timeout in the source.",
                )
        response.raw.release_conn()
    except HTTPError as error:
        raise Transient(
            f"A response of {origin} broke off: {one_line(str(error))[:200]}.",
            "Run again.",
        ) from error
    finally:
        response.raw.close()
    vars(response).update(_content=b"".join(parts), _content_consumed=True)
    vars(response)["json"] = partial(_parse_exact_json, response)


def _parse_exact_json(response: Response, **_: Any) -> Any:
    """Parse the response's JSON with exact numbers, not through a double."""
    try:
        return json.loads(response.content, parse_float=Decimal, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Permanent(
            f"A response of {parse_origin(response.url)} is not JSON: "
            f"{error or 'too deeply nested'}.",
            "Check the path and the parameters of the endpoint.",
        ) from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
