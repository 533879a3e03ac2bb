"""The one way out to the network: connections to checked addresses, answers of bounded size.

dlt sends whatever it sends through the session made here. The check stands at the socket, so
that redirects, links to next pages, token requests and names that change their address between
two look-ups all pass it.
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
CHUNK = 64 * 1024
ATTEMPTS = 6
BACKOFF_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 120.0


@dataclass(frozen=True)
class Bounds:
    """How much one answer may take: seconds from the request to its last byte, and bytes."""

    seconds: float = 60.0
    bytes: int = 64 << 20


def open_session(reach: EgressPolicy, origins: tuple[UrlOrigin, ...], bounds: Bounds) -> Session:
    """A session that only speaks to these origins, at addresses within reach.

    Requests that fail for a reason that may pass (no connection, 429, 5xx) are sent again with
    growing pauses, or after the time the server asks for. The environment's proxies and .netrc
    are not used: a proxy would resolve names for us, and .netrc would add passwords of its own.
    """
    from dlt.sources.helpers.requests.retry import DEFAULT_RETRY_EXCEPTIONS, Client

    client = Client(
        request_timeout=(CONNECT_SECONDS, bounds.seconds),
        raise_for_status=False,
        exceptions=(*DEFAULT_RETRY_EXCEPTIONS, Transient),
        request_max_attempts=ATTEMPTS,
        request_backoff_factor=BACKOFF_SECONDS,
        request_max_retry_delay=LONGEST_WAIT_SECONDS,
    )
    session: Session = client.session
    session.trust_env = False
    session.verify = os.environ.get("REQUESTS_CA_BUNDLE") or os.environ.get("SSL_CERT_FILE") or True
    session.headers["User-Agent"] = "thermocline"
    session.max_redirects = 10
    adapter = _adapter(reach, origins, bounds)
    session.adapters.clear()
    session.mount("http://", adapter)
    session.mount("https://", adapter)
    return session


def _adapter(reach: EgressPolicy, origins: tuple[UrlOrigin, ...], bounds: Bounds) -> HTTPAdapter:
    from requests.adapters import HTTPAdapter

    class Guarded(HTTPAdapter):
        """Sends nothing before the origin is known, and reads no more than is allowed."""

        def init_poolmanager(self, *args: Any, **options: Any) -> None:
            super().init_poolmanager(*args, **options)
            self.poolmanager.pool_classes_by_scheme = _pools(reach, bounds)

        def send(self, request: PreparedRequest, *args: Any, **options: Any) -> Response:
            _expect(origins, request)
            began = time.monotonic()
            options["stream"] = True
            response = super().send(request, *args, **options)
            _read(response, began, bounds)
            return response

    return Guarded()


def _expect(origins: tuple[UrlOrigin, ...], request: PreparedRequest) -> None:
    """Stop a request to anybody that the source does not name: it may carry its secrets."""
    wanted = parse_origin(request.url or "")
    if not any(origin.covers(wanted) for origin in origins):
        raise AddressRefused(
            f"{origins[0]} leads to {wanted}, which the source does not name.",
            "If that is meant, add it to hosts in the source.",
        )


def _pools(reach: EgressPolicy, bounds: Bounds) -> dict[str, Any]:
    """urllib3's connection pools, with connections that resolve names within reach."""
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
    from urllib3.util.connection import create_connection

    class Checked(HTTPConnection):
        def _new_conn(self) -> socket.socket:
            failure: OSError | None = None
            for address in reach.resolve(self.host, self.port):
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
            # A socket's timeout is for each read; a server that sends its headers byte by byte
            # would outlive it for ever. Hung up on, it looks as if the headers had ended.
            late = threading.Event()
            timer = threading.Timer(bounds.seconds, partial(_hang_up, self.sock, late))
            timer.daemon = True
            timer.start()
            try:
                response = super().getresponse()
            finally:
                timer.cancel()
            if late.is_set():
                raise TimeoutError(f"no headers in {bounds.seconds:g} s")
            return response

    # HTTPSConnection is an HTTPConnection: put first, ours supplies the socket that TLS wraps.
    class CheckedTLS(Checked, HTTPSConnection):
        pass

    class Pool(HTTPConnectionPool):
        ConnectionCls = Checked

    class TLSPool(HTTPSConnectionPool):
        ConnectionCls = CheckedTLS

    return {"http": Pool, "https": TLSPool}


def _hang_up(connected: socket.socket | None, late: threading.Event) -> None:
    late.set()
    if connected is not None:
        try:
            connected.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it was closed already


def _read(response: Response, began: float, bounds: Bounds) -> None:
    """Read the whole answer now, within bounds, and make its numbers exact."""
    from urllib3.exceptions import HTTPError

    parts: list[bytes] = []
    size = 0
    try:
        while chunk := response.raw.read1(CHUNK, decode_content=True):
            size += len(chunk)
            parts.append(chunk)
            if size > bounds.bytes:
                raise BadInput(
                    f"A response of {parse_origin(response.url)} exceeds {bounds.bytes:,} bytes.",
                    "Ask for smaller pages, or raise maxResponseBytes in the source.",
                )
            if time.monotonic() - began > bounds.seconds:
                raise Transient(
                    f"A response of {parse_origin(response.url)} took over {bounds.seconds:g} s.",
                    "Ask for smaller pages, or raise timeout in the source.",
                )
        response.raw.release_conn()
    except HTTPError as error:
        raise Transient(
            f"A response of {parse_origin(response.url)} broke off: {one_line(str(error))[:200]}.",
            "Run again.",
        ) from error
    finally:
        response.raw.close()
    vars(response).update(_content=b"".join(parts), _content_consumed=True)
    vars(response)["json"] = partial(_exact_json, response)


def _exact_json(response: Response, **_: Any) -> Any:
    """The answer's JSON with every number as it was written, not through a double."""
    try:
        return json.loads(response.content, parse_float=Decimal, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Permanent(
            f"A response of {parse_origin(response.url)} is not JSON: "
            f"{error or 'too deeply nested'}.",
            "Check the path and the parameters of the endpoint.",
        ) from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON number")
