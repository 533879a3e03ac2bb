"""From a request to an Ask: every field looked at, nothing guessed, nothing unknown let through."""

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
from thermocline.serve.http.replies import NotAcceptable, NotJson
from thermocline.serve.values import Format, QueryRequest
from thermocline.sql.guard import DIALECTS

if TYPE_CHECKING:
    from starlette.types import Receive, Scope

BODY_BYTES = 1_000_000
REPEATED_BYTES = 2_000
"""Dashboards send the same bytes again and again: what short bodies mean is remembered."""
FORMATS = ("json", "arrow", "csv")
TABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}\.[A-Za-z_][A-Za-z0-9_]{0,127}"
SNAPSHOT = r"[0-9]{1,19}"


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object that names no field twice: which of them would count is anybody's guess."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        _wrong(next(name for name in names if names.count(name) > 1)[:40], "stands twice")
    return found


_DECODER = json.JSONDecoder(parse_constant=_no_constant, object_pairs_hook=_each_once)
_TABLE = re.compile(TABLE, re.ASCII)
_SNAPSHOT = re.compile(SNAPSHOT, re.ASCII)
_MEDIA_TYPES = {
    "application/json": "json", "application/vnd.apache.arrow.stream": "arrow", "text/csv": "csv",
    "*/*": "json", "application/*": "json", "text/*": "csv",
}  # fmt: skip


async def read_body(scope: Scope, receive: Receive) -> bytes:
    """The body of a JSON request, given up as soon as it is too large."""
    content_type, length = b"", b""
    for name, value in scope["headers"]:
        if name == b"content-type":
            content_type = value
        elif name == b"content-length":
            length = value
    if content_type.partition(b";")[0].strip().lower() != b"application/json":
        raise NotJson("The body must be JSON.", "Send the header Content-Type: application/json.")
    if length.isdigit() and (len(length) > 9 or int(length) > BODY_BYTES):
        raise _too_large()
    # How long it may take is up to the connection (`patience.py`).
    message = await _next(receive)
    body: bytes = message.get("body", b"")
    if message.get("more_body", False):
        body = await _rest(body, receive)
    if len(body) > BODY_BYTES:
        raise _too_large()
    return body


async def _rest(first: bytes, receive: Receive) -> bytes:
    parts, size, more = [first], len(first), True
    while more and size <= BODY_BYTES:
        message = await _next(receive)
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        more = message.get("more_body", False)
    return b"".join(parts)


async def _next(receive: Receive) -> Mapping[str, Any]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise BadInput("The request was broken off.", "Send it whole.")
    return message


def _too_large() -> TooMuch:
    return TooMuch(
        f"The request is larger than {BODY_BYTES:,} bytes.",
        "Long lists of values belong in a table.",
    )


def ask_of_body(body: bytes, accept: str | None) -> QueryRequest:
    """The Ask that a JSON body holds. Raises BadInput, naming the field."""
    return _known(body, accept) if len(body) <= REPEATED_BYTES else _read(body, accept)


def _read(body: bytes, accept: str | None) -> QueryRequest:
    try:
        fields = _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise BadInput("The body is not valid JSON.", 'Send {"sql": "select …"}.') from None
    if not isinstance(fields, dict):
        raise BadInput("The body is not a JSON object.", 'Send {"sql": "select …"}.')
    return _ask(fields, accept)


_known = lru_cache(1024)(_read)


def ask_of_query(parameters: list[tuple[str, str]]) -> QueryRequest:
    """The Ask that the parameters of an address hold."""
    fields: dict[str, Any] = {}
    for name, value in parameters:
        if name in fields:
            _wrong(name, "stands twice")
        fields[name] = value
    for name in ("max_staleness", "timeout"):
        if name in fields:
            try:
                fields[name] = float(fields[name])
            except ValueError:
                _wrong(name, "must be a number of seconds")
    return _ask(fields, None)


def _ask(fields: dict[str, Any], accept: str | None) -> QueryRequest:
    given = {name: value for name, value in fields.items() if value is not None}
    if unknown := given.keys() - _READERS.keys():
        # A misspelt condition that is passed over would give an answer to another question.
        name = min(unknown)[:40]
        raise BadInput(
            f"There is no field {name!r}.", f"The fields are {', '.join(_READERS)}.", field=name
        )
    if "sql" not in given:
        _wrong("sql", "is missing")
    values = {name: _READERS[name](name, value) for name, value in given.items()}
    if "format" not in values:
        values["format"] = preferred(accept) if accept else "json"
    return QueryRequest(**values)


@lru_cache(256)
def preferred(accept: str) -> Format:
    """The format that an Accept header likes best. Raises NotAcceptable."""
    best, most = "", 0.0
    for part in accept[:1000].split(","):
        kind, *parameters = (word.strip().lower() for word in part.split(";"))
        quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
        try:
            weight = float(quality)
        except ValueError:
            weight = 0.0
        if kind in _MEDIA_TYPES and weight > most:
            best, most = _MEDIA_TYPES[kind], weight
    if not best:
        raise NotAcceptable(
            "None of the types in the Accept header can be given.",
            "Accept application/json, application/vnd.apache.arrow.stream or text/csv.",
        )
    return cast("Format", best)


def _wrong(name: str, problem: str) -> NoReturn:
    raise BadInput(f"`{name}` {problem}.", "Mend the request.", field=name)


def _sql(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        _wrong(name, "must be text and not empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        _wrong(name, "holds half a character (a lone surrogate)")
    return value


def _table_id(name: str, value: Any) -> str:
    if not isinstance(value, str) or not _TABLE.fullmatch(value):
        _wrong(name, "must be layer.table")
    return value


def _choice(*choices: str) -> Callable[[str, Any], str]:
    def read(name: str, value: Any) -> str:
        if value not in choices:
            _wrong(name, f"must be one of {', '.join(choices)}")
        return str(value)

    return read


def _moment(name: str, value: Any) -> datetime:
    try:
        moment = datetime.fromisoformat(value)
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        _wrong(name, "must be a time such as 2026-11-14T18:00:00Z")


def _snapshot(name: str, value: Any) -> int:
    if isinstance(value, str) and _SNAPSHOT.fullmatch(value):
        value = int(value)
    if type(value) is not int or not 0 <= value < 2**63:
        _wrong(name, "must be the id of a snapshot")
    return value


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        _wrong(name, "must be a number of seconds")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds) or seconds < 0 or (seconds == 0 and name == "timeout"):
        _wrong(name, "must be a number of seconds")
    return seconds


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "sql": _sql,
    "dialect": _choice(*DIALECTS),
    "table_id": _table_id,
    "start_time": _moment,
    "snapshot": _snapshot,
    "min_snapshot": _snapshot,
    "max_staleness": _seconds,
    "timeout": _seconds,
    "format": _choice(*FORMATS),
}
