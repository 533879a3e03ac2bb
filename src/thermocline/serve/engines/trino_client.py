"""Trino as an engine: execute a query over its HTTP protocol, and encode its rows in our formats.

It runs in the router, so without Arrow: rows arrive as JSON and leave as JSON or CSV. A query whose
task is cancelled, or that exceeds its time limit, is cancelled in Trino.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from thermocline.errors import BadInput, ConfigError, Transient
from thermocline.serve.failures import DivisionByZero, TooLate, TooMuch
from thermocline.serve.rows.trino_rows import TrinoRowReader
from thermocline.serve.values import EncodedRows, Format

if TYPE_CHECKING:
    import httpx

CONNECT_SECONDS = 5.0
CANCEL_SECONDS = 2.0
PAUSE_SECONDS = 0.1
_RETRY_STATUS = frozenset({429, 502, 503, 504})
_MESSAGES = {
    "INVALID_CAST_ARGUMENT": "A value cannot be converted to the requested type.",
    "NUMERIC_VALUE_OUT_OF_RANGE": "A value is out of the range of its type.",
    "INVALID_FUNCTION_ARGUMENT": "A function does not accept one of its values.",
    "SUBQUERY_MULTIPLE_ROWS": "A subquery returns more than one row.",
}
"""Replacements for errors whose text may contain values of rows."""
_PASSED_THROUGH = frozenset({
    "COLUMN_NOT_FOUND", "TABLE_NOT_FOUND", "SCHEMA_NOT_FOUND", "TYPE_MISMATCH", "SYNTAX_ERROR",
    "FUNCTION_NOT_FOUND", "AMBIGUOUS_NAME", "EXPRESSION_NOT_AGGREGATE", "NOT_SUPPORTED",
    "MISSING_ORDER_BY", "MISMATCHED_COLUMN_ALIASES",
})  # fmt: skip
"""Errors that only name parts of the query: their text is passed on."""


class TrinoFailed(Transient):
    """Trino cannot be reached, or failed for a reason that is not the query's."""

    code = "trino"


class QueryFailed(BadInput):
    """The query itself is invalid or fails."""

    code = "query"


class Unsupported(Transient):
    """Trino's rows cannot be returned in this format; another engine may support it."""

    code = "unsupported"


class TrinoEngine:
    """One Trino server, used as one user. It connects at its first query."""

    def __init__(
        self,
        url: str,
        user: str,
        catalog: str,
        *,
        password: str | None = None,
        source: str = "thermocline",
    ) -> None:
        self._url = url.rstrip("/")
        if password is not None and not self._url.startswith("https://"):
            raise ConfigError("Trino's password would be sent over an unencrypted connection.",
                              "Use https:// in serve.trino.url.")  # fmt: skip
        self._password = password
        self._headers = {
            "X-Trino-User": user,
            "X-Trino-Catalog": catalog,
            "X-Trino-Source": source,
            "X-Trino-Time-Zone": "UTC",
            # Without it Trino truncates timestamps to milliseconds.
            "X-Trino-Client-Capabilities": "PARAMETRIC_DATETIME",
        }
        self._user = user
        self._client: httpx.AsyncClient | None = None

    async def query(
        self, sql: str, *, seconds: float, rows: int, bytes: int, format: Format
    ) -> EncodedRows:
        """Return the rows of a query. Raises QueryFailed, TooMuch, TrinoFailed or TimeoutError."""
        if format == "arrow":
            raise Unsupported("Trino's rows are not available in Arrow.", "Use JSON or CSV.")
        began = time.perf_counter()
        reader = TrinoRowReader(format)
        follow: str | None = "/v1/statement"
        try:
            async with asyncio.timeout(seconds):
                reply = await self._request("POST", "/v1/statement", sql.encode())
                while True:
                    follow = _next_path(reply.get("nextUri"))
                    _raise_error(reply)
                    reader.add_page(reply)
                    if reader.count > rows:
                        raise _too_much(f"{rows:,} rows")
                    if reader.size > bytes:
                        raise _too_much(f"{bytes:,} bytes")
                    if follow is None:
                        break
                    reply = await self._request("GET", follow)
        except BaseException:
            await self._cancel(follow)
            raise
        done = round((time.perf_counter() - began) * 1e3, 3)
        return reader.to_rows({"execute": done})

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _request(self, method: str, path: str, body: bytes | None = None) -> dict[str, Any]:
        """Send a request and return the JSON of its response; retry while the server is busy."""
        import httpx

        while True:
            try:
                answer = await self._get_client().request(method, self._url + path, content=body)
            except httpx.HTTPError as error:
                kind = type(error).__name__
                raise TrinoFailed(f"Trino cannot be reached ({kind}).", "Is it running?") from error
            if answer.status_code in _RETRY_STATUS:
                await asyncio.sleep(PAUSE_SECONDS)
                continue
            if answer.status_code in (401, 403):
                raise TrinoFailed(
                    "Trino rejects the user.", "Check serve.trino.user and its password."
                )
            if answer.status_code != 200:
                raise TrinoFailed(f"Trino answered with status {answer.status_code}.")
            try:
                found = json.loads(answer.content)
            except ValueError as error:
                raise TrinoFailed("Trino's response is not JSON.") from error
            if not isinstance(found, dict):
                raise TrinoFailed("Trino's response is malformed.")
            return found

    async def _cancel(self, follow: str | None) -> None:
        """Cancel the query in Trino, best effort."""
        import httpx

        if follow is None or not follow.startswith("/v1/statement/"):
            return
        client = self._get_client()
        with contextlib.suppress(httpx.HTTPError, TimeoutError):
            # The task may be being cancelled: this request must be sent all the same.
            cancel = client.delete(self._url + follow, timeout=CANCEL_SECONDS)
            await asyncio.shield(asyncio.ensure_future(cancel))

    def _get_client(self) -> httpx.AsyncClient:
        import httpx

        if self._client is None:
            auth = httpx.BasicAuth(self._user, self._password) if self._password else None
            self._client = httpx.AsyncClient(
                headers=self._headers,
                auth=auth,
                timeout=httpx.Timeout(None, connect=CONNECT_SECONDS),
                follow_redirects=False,
                trust_env=False,
            )
        return self._client


def _next_path(uri: object) -> str | None:
    """Return the path of the next page. Only the path: the server stays the configured one."""
    if uri is None:
        return None
    parts = urlsplit(str(uri))
    if not parts.path.startswith("/v1/statement/"):
        raise TrinoFailed("Trino's response is malformed.")
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


def _raise_error(reply: dict[str, Any]) -> None:
    error = reply.get("error")
    if error is None:
        return
    name, kind = str(error.get("errorName")), str(error.get("errorType"))
    if name.startswith("EXCEEDED_") and "MEMORY" in name:
        raise TooMuch("The query needs more memory than it may use.", "Read less data.")
    if name in {"EXCEEDED_TIME_LIMIT", "EXCEEDED_CPU_LIMIT"}:
        raise TooLate("The query ran too long.", "Read less data, or allow more time.")
    if kind != "USER_ERROR":
        raise TrinoFailed(f"Trino failed ({name}).", "See Trino's web interface.")
    if name == "DIVISION_BY_ZERO":
        raise DivisionByZero
    if name in _MESSAGES:
        raise QueryFailed(_MESSAGES[name])
    if name in _PASSED_THROUGH:
        raise QueryFailed(next(_lines(str(error.get("message"))), name)[:300])
    raise QueryFailed(f"The query fails in Trino ({name}).")


def _lines(text: str) -> Iterator[str]:
    return (line.strip() for line in text.splitlines() if line.strip())


def _too_much(what: str) -> TooMuch:
    return TooMuch(f"The result has more than {what}.", "Aggregate, filter, or add a LIMIT.")
