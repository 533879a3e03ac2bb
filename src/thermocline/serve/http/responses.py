"""HTTP responses: rows as the engine encoded them, and errors in one shape.

Rows are never parsed here. An engine's JSON lines become a JSON array by replacing line ends with
commas (JSON has no bare line end inside a value); Arrow and CSV pass unchanged.
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

CHUNK_BYTES = 256 * 1024
"""Bytes passed to the network at a time, so that little of an answer is in memory twice."""

PROVENANCE_HEADER = "X-Thermocline-Provenance"
MAX_PROVENANCE_BYTES = 7_000
"""What proxies and clients accept as one header line."""

MEDIA_TYPES = {
    "json": "application/json",
    "arrow": "application/vnd.apache.arrow.stream",
    "csv": "text/csv; charset=utf-8; header=present",
}
_ENCODER = json.JSONEncoder(default=str, separators=(",", ":"))
_HEAD = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]


class NotJson(BadInput):
    """A body that is not sent as JSON; a web page can send other types without a preflight."""

    code = "not-json"


class NotAcceptable(BadInput):
    """No format that the caller accepts is supported."""

    code = "not-acceptable"


class NoSuchMethod(BadInput):
    """The address exists, but does not support the method."""

    code = "method"


STATUS_CODES: dict[type[ThermoclineError], int] = {
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
"""The status of each error. Any other error is a bug: 500 without details."""

INTERNAL_ERROR_BODY = b'{"error": {"code": "internal"}}'


def status_of(error: ThermoclineError) -> int | None:
    """Return the status of an error's class, or of the nearest superclass that has one."""
    return next((STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES), None)


def error_response(error: BaseException) -> Response:
    """Return the response for an error. Log an unexpected one and return no details of it."""
    status = status_of(error) if isinstance(error, ThermoclineError) else None
    if status is None or not isinstance(error, ThermoclineError):
        _log(error)
        return Response(INTERNAL_ERROR_BODY, 500, dict(_headers()), "application/json")
    headers = dict(_headers())
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="thermocline"'
    if status in (429, 503):
        headers["Retry-After"] = str(max(1, round(error.details.get("retry_after", 1))))
    if status == 405:
        headers["Allow"] = ", ".join(error.details.get("allowed", ()))
    if status == 413:
        headers["Connection"] = "close"  # the rest of the body is not read
    text = telemetry.redact(json.dumps(error.as_dict(), default=str))
    return Response(text, status, headers, "application/json")


def json_response(value: Any, status: int = 200) -> Response:
    """Return a value as a JSON response."""
    return raw_json_response(json.dumps(value), status)


def raw_json_response(text: str, status: int = 200) -> Response:
    """Return JSON text as a response."""
    return Response(text, status, dict(_headers()), "application/json")


def _headers() -> Iterable[tuple[str, str]]:
    return ((name.decode(), value.decode()) for name, value in _HEAD)


def _log(error: BaseException) -> None:
    import traceback

    telemetry.log(
        "serve", "internal error", level="ERROR", trace="".join(traceback.format_exception(error))
    )


async def send_answer(answer: Answer, send: Send) -> None:
    """Send an answer in its format, in chunks."""
    headers = [*_HEAD, (b"content-type", MEDIA_TYPES[answer.format].encode())]
    body, before, after = memoryview(answer.rows.body), b"", b""
    if answer.format == "json":
        before = _encode_json_start(answer.rows.columns)
        after = b'], "provenance": ' + _ENCODER.encode(answer.provenance).encode() + b"}"
        body = body[:-1] if answer.rows.body.endswith(b"\n") else body
    else:
        headers.append(
            (PROVENANCE_HEADER.lower().encode(), encode_provenance_header(answer.provenance))
        )
    size = len(before) + len(body) + len(after)
    headers.append((b"content-length", str(size).encode()))
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    if size <= CHUNK_BYTES:
        whole = before + _encode_chunk(body, answer.format) + after
        await send({"type": "http.response.body", "body": whole})
        return
    await send({"type": "http.response.body", "body": before, "more_body": True})
    for start in range(0, len(body), CHUNK_BYTES):
        piece = _encode_chunk(body[start : start + CHUNK_BYTES], answer.format)
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": after})


def _encode_chunk(part: memoryview, kind: str) -> bytes:
    return bytes(part).replace(b"\n", b",") if kind == "json" else bytes(part)


@lru_cache(512)
def _encode_json_start(columns: tuple[ResultColumn, ...]) -> bytes:
    """Return the JSON before the rows. It is cached: repeated queries have the same columns."""
    named = [{"name": column.name, "type": column.type} for column in columns]
    return b'{"columns": ' + json.dumps(named).encode() + b', "rows": ['


def encode_provenance_header(provenance: Mapping[str, Any]) -> bytes:
    """Return the provenance as one line of ASCII JSON. `shortened` marks fields left out."""
    fields = dict(provenance)
    for name in ("", "because", "scanned", "tables"):
        if name in fields:
            fields = {key: value for key, value in fields.items() if key != name} | {
                "shortened": True
            }
        text = _ENCODER.encode(fields).encode("ascii")
        if len(text) <= MAX_PROVENANCE_BYTES:
            return text
    return b'{"shortened":true}'
