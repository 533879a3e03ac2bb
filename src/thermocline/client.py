"""Python client of a running `thermo serve`: the same results and errors as the local API.

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
"""Network timeout. A healthy server reports its own timeouts long before."""


class ServerUnreachable(Transient):
    """No server answers at the address."""

    code = "unreachable"


def connect(url: str, token: str | None = None, *, wait: float = WAIT_SECONDS) -> Client:
    """Return a client of the server at `url`. The first request opens the connection."""
    return Client(url, token, wait=wait)


class Client:
    """A client of one server. Threads may share it; each thread has its own connection."""

    def __init__(self, url: str, token: str | None = None, *, wait: float = WAIT_SECONDS) -> None:
        self._secure, self._host, self._port = _parse_url(url)
        if token is not None and not (token.isascii() and token.isprintable()):
            raise BadInput(
                "The token has invalid characters.", "Copy the token again, without line breaks."
            )
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
        """Close this thread's connection."""
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
        """Run one SELECT. Errors of the server are raised as their own classes."""
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
        """Return the route of a query and the reason; accepts the arguments of `query`."""
        found: dict[str, Any] = self._request_json("POST", "/explain", {"sql": sql, **more})
        return found

    def tables(self) -> list[dict[str, Any]]:
        """Return the tables of the lake, and which of them are hot."""
        found: list[dict[str, Any]] = self._request_json("GET", "/tables")["tables"]
        return found

    def healthy(self) -> bool:
        """Return whether a healthy Thermocline server answers."""
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
            present = {name: value for name, value in fields.items() if value is not None}
            body = json.dumps(present).encode()
        response, content = self._send(method, path, body, headers)
        if response.status != 200:
            raise _to_error(response.status, content)
        return response.headers, content

    def _send(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[http.client.HTTPResponse, bytes]:
        """Send a request; retry once if a reused connection turns out to be closed.

        The retry is safe because requests are read-only.
        """
        reused = hasattr(self._local, "connection")
        try:
            connection = self._connection()
            connection.request(method, path, body, dict(headers))
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if reused and not isinstance(error, TimeoutError):
                return self._send(method, path, body, headers)
            raise ServerUnreachable(
                f"No answer from {self._host}:{self._port} ({type(error).__name__}).",
                "Check that `thermo serve` is running there.",
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
        raise BadInput("The server address is invalid.", "Write it as http(s)://host:port.")
    if parts.username or parts.password or parts.query:
        raise BadInput(
            "The server address must not contain a password or token.", "Pass the token as `token`."
        )
    secure = parts.scheme == "https"
    return secure, host, port or (443 if secure else 80)


def _text(snapshot: int | str | None) -> str | None:
    return None if snapshot is None else str(snapshot)


def _to_error(status: int, content: bytes) -> ThermoclineError:
    """Convert the server's error to its own class."""
    try:
        error = json.loads(content)["error"]
        code = str(error["code"])
        cause, step = str(error.get("cause", "")), str(error.get("next_step", ""))
        details = dict(error.get("details", {}))
    except (ValueError, KeyError, TypeError, AttributeError):
        return _not_a_server(status)
    kind = _error_classes().get(code)
    if kind is None:
        kind = Transient if error.get("transient") or status >= 500 else BadInput
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
        f"The address does not belong to a Thermocline server (status {status}).",
        "Check the address.",
    )
