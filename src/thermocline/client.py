"""Ask a running `thermo serve` from Python: the same results and the same errors as on the spot.

import thermocline as tc

with tc.connect("http://127.0.0.1:8080") as lake:
    lake.query("select count(*) from silver.orders").to_pandas()
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from thermocline.errors import BadInput, ThermoclineError, Transient

if TYPE_CHECKING:
    from thermocline.api.query import Result

ARROW = "application/vnd.apache.arrow.stream"
PROVENANCE = "X-Thermocline-Provenance"
WAIT_SECONDS = 90.0
"""How long the network may be silent; a server that works sends errors long before."""


class ServerUnreachable(Transient):
    """No server answers at the address."""

    code = "unreachable"


def connect(url: str, token: str | None = None, *, wait: float = WAIT_SECONDS) -> Client:
    """A client of the server at `url`. Nothing is sent until something is asked."""
    return Client(url, token, wait=wait)


class Client:
    """A server's tables and answers. One may be shared by threads; each keeps its connection."""

    def __init__(self, url: str, token: str | None = None, *, wait: float = WAIT_SECONDS) -> None:
        self._secure, self._host, self._port = _parse_url(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise BadInput("The token holds characters that no token has.", "Copy it anew.")
        self._token = token
        self._wait = wait
        self._local = threading.local()

    def __repr__(self) -> str:
        return f"Client({'https' if self._secure else 'http'}://{self._host}:{self._port})"

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of this thread's connection."""
        connection: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            del self._local.connection

    def query(
        self,
        sql: str,
        *,
        dialect: str | None = None,
        table_id: str | None = None,
        start_time: datetime | str | None = None,
        snapshot: int | str | None = None,
        min_snapshot: int | str | None = None,
        max_staleness: float | None = None,
        timeout: float | None = None,
    ) -> Result:
        """Answer one SELECT. Raises the errors that the server names, as their own classes."""
        import pyarrow as pa

        from thermocline.api.query import Result

        when = start_time.isoformat() if isinstance(start_time, datetime) else start_time
        headers, body = self._request("POST", "/query", {
            "sql": sql, "dialect": dialect, "table_id": table_id, "start_time": when,
            "snapshot": _text(snapshot), "min_snapshot": _text(min_snapshot),
            "max_staleness": max_staleness, "timeout": timeout, "format": "arrow",
        })  # fmt: skip
        try:
            table = pa.ipc.open_stream(body).read_all()
            provenance = json.loads(headers.get(PROVENANCE, ""))
        except (pa.ArrowInvalid, ValueError) as error:
            raise _not_a_server() from error
        return Result(table, provenance)

    def explain(self, sql: str, **more: Any) -> dict[str, Any]:
        """Where a query would go and why; takes what `query` takes."""
        found: dict[str, Any] = self._request_json("POST", "/explain", {"sql": sql, **more})
        return found

    def tables(self) -> list[dict[str, Any]]:
        """The tables of the lake, and what is hot of them."""
        found: list[dict[str, Any]] = self._request_json("GET", "/tables")["tables"]
        return found

    def healthy(self) -> bool:
        """Whether a server of ours is there."""
        try:
            return bool(self._request_json("GET", "/health").get("status") == "ok")
        except ThermoclineError:
            return False

    def _request_json(self, method: str, path: str, fields: Mapping[str, Any] | None = None) -> Any:
        _, body = self._request(method, path, fields)
        try:
            return json.loads(body)
        except ValueError as error:
            raise _not_a_server() from error

    def _request(
        self, method: str, path: str, fields: Mapping[str, Any] | None = None
    ) -> tuple[http.client.HTTPMessage, bytes]:
        headers = {"Accept": f"{ARROW}, application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        body = None
        if fields is not None:
            headers["Content-Type"] = "application/json"
            given = {name: value for name, value in fields.items() if value is not None}
            body = json.dumps(given).encode()
        response, content = self._send(method, path, body, headers)
        if response.status != 200:
            raise _to_error(response.status, content)
        return response.headers, content

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request; once more when a kept connection turns out to be closed.

        That is safe: nothing that can be asked changes anything.
        """
        kept = hasattr(self._local, "connection")
        try:
            connection = self._connection()
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if kept and not isinstance(error, TimeoutError):
                return self._send(method, path, body, headers)
            raise ServerUnreachable(
                f"No answer from {self._host}:{self._port} ({type(error).__name__}).",
                "Look whether `thermo serve` runs there.",
            ) from error
        if response.will_close:
            self.close()
        return response, content

    def _connection(self) -> http.client.HTTPConnection:
        if not hasattr(self._local, "connection"):
            kind = http.client.HTTPSConnection if self._secure else http.client.HTTPConnection
            self._local.connection = kind(self._host, self._port, timeout=self._wait)
        connection: http.client.HTTPConnection = self._local.connection
        return connection


def _parse_url(url: str) -> tuple[bool, str, int]:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
        parts = urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.path not in ("", "/"):
        raise BadInput("The address of a server is http(s)://host:port.", "Mend the address.")
    if parts.username or parts.password or parts.query:
        raise BadInput("An address must not hold a password or token.", "Give it as `token`.")
    secure = parts.scheme == "https"
    return secure, host, port or (443 if secure else 80)


def _text(snapshot: int | str | None) -> str | None:
    return None if snapshot is None else str(snapshot)


def _to_error(status: int, content: bytes) -> ThermoclineError:
    """The server's error as its own class."""
    try:
        given = json.loads(content)["error"]
        code = str(given["code"])
        cause, step = str(given.get("cause", "")), str(given.get("next_step", ""))
        details = dict(given.get("details", {}))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _not_a_server(status)
    kind = _error_classes().get(code)
    if kind is None:
        kind = Transient if given.get("transient") or status >= 500 else BadInput
        cause = cause or f"The server answered {status} ({code})."
        details["code"] = code
    details.pop("cause", None)
    details.pop("next_step", None)
    return kind(cause, step, **details)


def _error_classes() -> dict[str, type[ThermoclineError]]:
    from thermocline import errors
    from thermocline.serve import failures
    from thermocline.sql import guard

    return {
        kind.code: kind
        for module in (errors, failures, guard)
        for kind in vars(module).values()
        if isinstance(kind, type)
        and issubclass(kind, ThermoclineError)
        and kind is not errors.ContractError
    }


def _not_a_server(status: int = 200) -> ServerUnreachable:
    return ServerUnreachable(
        f"What answers there is no Thermocline server (status {status}).", "Check the address."
    )
