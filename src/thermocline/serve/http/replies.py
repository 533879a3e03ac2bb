"""What goes back over HTTP: rows as they came from the engine, and errors in one shape.

Rows are never parsed here. An engine's JSON lines become a JSON array by putting commas where the
line ends are (JSON has no bare line end inside a value), Arrow and CSV pass as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from thermocline import telemetry
from thermocline.errors import (
    BadInput,
    EngineUnavailable,
    NotFound,
    ThermoclineError,
    Transient,
)
from thermocline.serve.failures import (
    BothFailed,
    Busy,
    Forbidden,
    TooLate,
    TooMuch,
    Unauthenticated,
    Unavailable,
)

if TYPE_CHECKING:
    from starlette.types import Send

    from thermocline.serve.values import Answer, ResultColumn

PIECE = 256 * 1024
"""Bytes handed to the network at a time, so that a slow reader holds little of an answer twice."""

PROVENANCE = "X-Thermocline-Provenance"
PROVENANCE_BYTES = 7_000
"""What proxies and clients take as one header line."""

MEDIA = {
    "json": "application/json",
    "arrow": "application/vnd.apache.arrow.stream",
    "csv": "text/csv; charset=utf-8; header=present",
}
_ENCODER = json.JSONEncoder(default=str, separators=(",", ":"))
_HEAD = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class NotJson(BadInput):
    """A body that is not sent as JSON; other types are what a web page can send unasked."""

    code = "not-json"


class NotAcceptable(BadInput):
    """Nothing that the caller accepts can be given."""

    code = "not-acceptable"


class NoSuchMethod(BadInput):
    """The address is right, the method is not."""

    code = "method"


STATUS: dict[type[ThermoclineError], int] = {
    Unauthenticated: 401,
    Forbidden: 403,
    NotFound: 404,
    NoSuchMethod: 405,
    NotAcceptable: 406,
    TooMuch: 413,
    NotJson: 415,
    Busy: 429,
    Unavailable: 503,
    BothFailed: 502,
    TooLate: 504,
    BadInput: 400,
    EngineUnavailable: 503,
    Transient: 503,
}
"""What a client sees of an error. Whatever is not here is our own fault: 500, without a word."""

INTERNAL = b'{"error": {"code": "internal"}}'


def status_of(error: ThermoclineError) -> int | None:
    """The status of an error's class, or of the nearest class above it that has one."""
    return next((STATUS[kind] for kind in type(error).__mro__ if kind in STATUS), None)


def failure(error: BaseException) -> Response:
    """The reply to a request that failed. What was not foreseen is logged, and tells nothing."""
    status = status_of(error) if isinstance(error, ThermoclineError) else None
    if status is None or not isinstance(error, ThermoclineError):
        _log(error)
        return Response(INTERNAL, 500, dict(_headers()), "application/json")
    headers = dict(_headers())
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="thermocline"'
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, round(error.details.get("retry_after", 1))))
    if status == 405:
        headers["Allow"] = ", ".join(error.details.get("allowed", ()))
    if status == 413:
        headers["Connection"] = "close"  # what is left of the body is not read
    text = telemetry.redact(json.dumps(error.as_dict(), default=str))
    return Response(text, status, headers, "application/json")


def document(value: Any, status: int = 200) -> Response:
    """A JSON reply."""
    return written(json.dumps(value), status)


def written(text: str, status: int = 200) -> Response:
    """A reply of JSON that is written already."""
    return Response(text, status, dict(_headers()), "application/json")


def _headers() -> Iterable[tuple[str, str]]:
    return ((name.decode(), value.decode()) for name, value in _HEAD)


def _log(error: BaseException) -> None:
    import traceback

    telemetry.log(
        "serve", "internal error", level="ERROR", trace="".join(traceback.format_exception(error))
    )


async def send_answer(answer: Answer, send: Send) -> None:
    """Send an answer in its format, in pieces."""
    headers = [*_HEAD, (b"content-type", MEDIA[answer.format].encode())]
    body, before, after = memoryview(answer.rows.body), b"", b""
    if answer.format == "json":
        before = _beginning(answer.rows.columns)
        after = b'], "provenance": ' + _ENCODER.encode(answer.provenance).encode() + b"}"
        body = body[:-1] if answer.rows.body.endswith(b"\n") else body
    else:
        headers.append((PROVENANCE.lower().encode(), provenance_header(answer.provenance)))
    size = len(before) + len(body) + len(after)
    headers.append((b"content-length", str(size).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if size <= PIECE:
        whole = before + _piece(body, answer.format) + after
        await send({"type": "http.response.body", "body": whole})
        return
    await send({"type": "http.response.body", "body": before, "more_body": True})
    for start in range(0, len(body), PIECE):
        piece = _piece(body[start : start + PIECE], answer.format)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": after})


def _piece(part: memoryview, kind: str) -> bytes:
    return bytes(part).replace(b"\n", b",") if kind == "json" else bytes(part)


@lru_cache(512)
def _beginning(columns: tuple[ResultColumn, ...]) -> bytes:
    """What stands before the rows; the same for every answer of a dashboard's tile."""
    named = [{"name": column.name, "type": column.type} for column in columns]
    return b'{"columns": ' + json.dumps(named).encode() + b', "rows": ['


def provenance_header(provenance: Mapping[str, Any]) -> bytes:
    """The provenance as one line of ASCII JSON; what does not fit is left out, and that is said."""
    kept = dict(provenance)
    for name in ("", "because", "scanned", "tables"):
        if name in kept:
            kept = {key: value for key, value in kept.items() if key != name} | {"shortened": True}
        text = _ENCODER.encode(kept).encode("ascii")
        if len(text) <= PROVENANCE_BYTES:
            return text
    return b'{"shortened":true}'
