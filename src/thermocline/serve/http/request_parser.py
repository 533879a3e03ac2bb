"""Parse HTTP requests into `QueryRequest`s: check every field, reject unknown ones."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn, cast

from thermocline.errors import BadInput
from thermocline.serve.failures import TooMuch
from thermocline.serve.http.responses import NotAcceptable, NotJson
from thermocline.serve.values import Format, QueryRequest
from thermocline.sql.guard import DIALECTS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

MAX_BODY_BYTES = 1_000_000
CACHED_BODY_BYTES = 2_000
"""Dashboards repeat the same bytes: parsed bodies up to this size are cached."""
FORMATS = ("json", "arrow", "csv")
TABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}\.[A-Za-z_][A-Za-z0-9_]{0,127}"
SNAPSHOT = r"[0-9]{1,19}"


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _reject_repeated_fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object as a dict. Reject one that names a field twice: it is ambiguous."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        _reject_field(next(name for name in names if names.count(name) > 1)[:40], "is given twice")
    return found


_DECODER = json.JSONDecoder(
    parse_constant=_reject_constant, object_pairs_hook=_reject_repeated_fields
)
_TABLE = re.compile(TABLE, re.ASCII)
_SNAPSHOT = re.compile(SNAPSHOT, re.ASCII)
_MEDIA_TYPES = {
    "application/json": "json", "application/vnd.apache.arrow.stream": "arrow", "text/csv": "csv",
    "*/*": "json", "application/*": "json", "text/*": "csv",
}  # fmt: skip


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """Read the body of a JSON request. Stop as soon as it is too large."""
    content_type, length = b"", b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            length = value
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise NotJson("The body must be JSON.", "Send the header Content-Type: application/json.")
    if length.isdigit() and (len(length) > 9 or int(length) > MAX_BODY_BYTES):
        raise _body_too_large()
    # The connection limits how long this may take (`timeouts.py`).
    message = await _receive_message(receive)
    body: bytes = message.get("body", b"")
    if message.get("more_body", False):
        body = await _receive_rest(body, receive)
    if len(body) > MAX_BODY_BYTES:
        raise _body_too_large()
    return body


async def _receive_rest(first: bytes, receive: Receive) -> bytes:
    parts, size, more = [first], len(first), True
    while more and size <= MAX_BODY_BYTES:
        message = await _receive_message(receive)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    return b"".join(parts)


async def _receive_message(receive: Receive) -> Mapping[str, Any]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise BadInput("The request is incomplete.", "Send it again.")
    return message


def _body_too_large() -> TooMuch:
    return TooMuch(
        f"The request is larger than {MAX_BODY_BYTES:,} bytes.",
        "Long lists of values belong in a table.",
    )


def parse_body(body: bytes, accept: str | None) -> QueryRequest:
    """Parse a JSON body. Raises BadInput, which names the field."""
    return _cached_request(body, accept) if len(body) <= CACHED_BODY_BYTES else _read(body, accept)


def _read(body: bytes, accept: str | None) -> QueryRequest:
    try:
        fields = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise BadInput("The body is not valid JSON.", 'Send {"sql": "select …"}.') from None
    if not isinstance(fields, dict):
        raise BadInput("The body is not a JSON object.", 'Send {"sql": "select …"}.')
    return _build_request(fields, accept)


_cached_request = lru_cache(1024)(_read)


def parse_query_string(parameters: list[tuple[str, str]]) -> QueryRequest:
    """Parse the parameters of a URL. Raises BadInput, which names the field."""
    fields: dict[str, Any] = {}
    for name, value in parameters:
        if name in fields:
            _reject_field(name, "is given twice")
        fields[name] = value
    for name in ("max_staleness", "timeout"):
        if name in fields:
            try:
                fields[name] = float(fields[name])
            except ValueError:
                _reject_field(name, "must be a number of seconds")
    return _build_request(fields, None)


def _build_request(fields: dict[str, Any], accept: str | None) -> QueryRequest:
    present = {name: value for name, value in fields.items() if value is not None}
    if unknown := present.keys() - _FIELD_PARSERS.keys():
        # Ignoring a misspelled condition would answer a different query.
        name = min(unknown)[:40]
        raise BadInput(
            f"There is no field {name!r}.",
            f"The fields are {', '.join(_FIELD_PARSERS)}.",
            field=name,
        )
    if "sql" not in present:
        _reject_field("sql", "is missing")
    values = {name: _FIELD_PARSERS[name](name, value) for name, value in present.items()}
    if "format" not in values:
        values["format"] = negotiate_format(accept) if accept else "json"
    return QueryRequest(**values)


@lru_cache(256)
def negotiate_format(accept: str) -> Format:
    """Return the preferred format of an Accept header. Raises NotAcceptable."""
    best, best_weight = "", 0.0
    for part in accept[:1000].split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 0.0
        if kind in _MEDIA_TYPES and weight > best_weight:
            best, best_weight = _MEDIA_TYPES[kind], weight
    if not best:
        raise NotAcceptable(
            "No type in the Accept header is supported.",
            "Accept application/json, application/vnd.apache.arrow.stream or text/csv.",
        )
    return cast("Format", best)


def _reject_field(name: str, problem: str) -> NoReturn:
    raise BadInput(f"`{name}` {problem}.", "Fix the request.", field=name)


def _parse_sql(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        _reject_field(name, "must be text and not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        _reject_field(name, "contains a lone surrogate")
    return value


def _parse_table_id(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _TABLE.fullmatch(value):
        _reject_field(name, "must be layer.table")
    return value


def _choice_parser(*choices: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if value not in choices:
            _reject_field(name, f"must be one of {', '.join(choices)}")
        return str(value)

    return read


def _parse_time(name: str, value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        _reject_field(name, "must be a time such as 2026-11-14T18:00:00Z")


def _parse_snapshot(name: str, value: Any) -> int:
    if isinstance(value, str) and _SNAPSHOT.fullmatch(value):
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        _reject_field(name, "must be the id of a snapshot")
    return value


def _parse_seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _reject_field(name, "must be a number of seconds")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and name == "timeout"):
        _reject_field(name, "must be a number of seconds")
    return seconds


_FIELD_PARSERS: dict[str, Callable[[str, Any], Any]] = {
    "sql": _parse_sql,
    "dialect": _choice_parser(*DIALECTS),
    "table_id": _parse_table_id,
    "start_time": _parse_time,
    "snapshot": _parse_snapshot,
    "min_snapshot": _parse_snapshot,
    "max_staleness": _parse_seconds,
    "timeout": _parse_seconds,
    "format": _choice_parser(*FORMATS),
}
