"""The session of a Trino client. The client keeps it and sends it with each statement."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from thermocline.serve.failures import TooMuch
from thermocline.serve.trino.error_codes import TrinoError
from thermocline.sql.guard import CATALOG_NAME, sanitize

if TYPE_CHECKING:
    from starlette.datastructures import Headers

MAX_HEADER_BYTES = 256 * 1024
"""The maximum of all X-Trino headers, which include prepared statements."""


@dataclass(frozen=True)
class SessionProperty:
    """A property that a client may set for its session."""

    kind: str
    default: str
    description: str


_IGNORED = "Accepted for compatibility, without effect"
PROPERTIES = {
    "query_max_run_time": SessionProperty("varchar", "", "Maximum time until a query's last row"),
    "query_max_execution_time": SessionProperty("varchar", "", "Maximum time that a query may run"),
    "time_zone_id": SessionProperty("varchar", "UTC", "Time zone of the session; UTC only"),
    "lake.max_staleness": SessionProperty("varchar", "", "How old an answer may be, such as 5s"),
    "lake.min_snapshot": SessionProperty("varchar", "", "Oldest acceptable snapshot of the table"),
    "join_distribution_type": SessionProperty("varchar", "AUTOMATIC", _IGNORED),
    "join_reordering_strategy": SessionProperty("varchar", "AUTOMATIC", _IGNORED),
    "query_max_memory": SessionProperty("varchar", "", _IGNORED),
    "query_max_memory_per_node": SessionProperty("varchar", "", _IGNORED),
    "query_priority": SessionProperty("integer", "1", _IGNORED),
    "resource_overcommit": SessionProperty("boolean", "false", _IGNORED),
    "task_concurrency": SessionProperty("integer", "1", _IGNORED),
}

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(ns|us|ms|s|m|h|d)\s*")
_UTC = {"utc", "etc/utc", "gmt", "etc/gmt", "z", "zulu", "etc/zulu", "universal", "etc/universal",
        "uct", "etc/uct", "greenwich", "+00:00", "-00:00"}  # fmt: skip


@dataclass(frozen=True)
class ClientSession:
    """A client's session, as sent with one statement."""

    user: str
    catalog: str = CATALOG_NAME
    schema: str | None = None
    zone: str = "UTC"
    source: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    prepared: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_utc(self) -> bool:
        """Whether the client's time zone is UTC, the only one supported."""
        return is_utc(self.zone)

    @property
    def timeout(self) -> float | None:
        """The shorter of the client's two time limits, in seconds."""
        names = ("query_max_run_time", "query_max_execution_time")
        found = [
            parse_duration(self.properties[name]) for name in names if self.properties.get(name)
        ]
        return min(found, default=None)

    @property
    def max_staleness(self) -> float | None:
        """How old, in seconds, an answer may be."""
        text = self.properties.get("lake.max_staleness")
        return parse_duration(text) if text else None

    @property
    def min_snapshot(self) -> int | None:
        """The snapshot that an answer must include."""
        text = self.properties.get("lake.min_snapshot")
        return int(text) if text else None


def read_session(headers: Headers, user: str) -> ClientSession:
    """Read the session from a request's headers. `user` is the checked user."""
    size = sum(len(value) for name, value in headers.items() if name.startswith("x-trino-"))
    if size > MAX_HEADER_BYTES:
        raise TooMuch(
            f"The headers have {size:,} bytes, more than {MAX_HEADER_BYTES:,}.",
            "Deallocate prepared statements that are no longer needed.",
        )
    pairs = dict(_pairs(headers.getlist("x-trino-session")))
    for name, value in pairs.items():
        check_property(name, value)
    schema = headers.get("x-trino-schema", "").strip().lower()
    return ClientSession(
        user=user,
        catalog=headers.get("x-trino-catalog", "").strip().lower() or CATALOG_NAME,
        schema=schema or None,
        zone=headers.get("x-trino-time-zone", "UTC").strip(),
        source=headers.get("x-trino-source", ""),
        properties=pairs,
        prepared=dict(_pairs(headers.getlist("x-trino-prepared-statement"))),
    )


def check_property(name: str, value: str) -> None:
    """Raise if the property does not exist or cannot have this value."""
    if name not in PROPERTIES:
        raise TrinoError(
            "INVALID_SESSION_PROPERTY",
            f"Session property '{sanitize(name)}' does not exist.",
            "SHOW SESSION lists those that do.",
        )
    kind = PROPERTIES[name].kind
    pattern = {"integer": r"\d{1,9}", "boolean": "(?i:true|false)"}.get(
        kind, r"[^\x00-\x1f]{0,1000}"
    )
    if name == "lake.min_snapshot" and value:
        pattern = r"\d{1,19}"
    if not re.fullmatch(pattern, value):
        raise _invalid_value(name, value)
    if name in {"query_max_run_time", "query_max_execution_time", "lake.max_staleness"} and value:
        parse_duration(value, name)
    if name == "time_zone_id" and not is_utc(value):
        raise TrinoError(
            "NOT_SUPPORTED",
            f"The only supported time zone is UTC, not {sanitize(value)}.",
            "Use AT TIME ZONE in the query.",
        )


def parse_duration(text: str, name: str = "duration") -> float:
    """Return the seconds of a duration such as 5m or 1.5h."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _invalid_value(name, text)
    return float(found.group(1)) * _SECONDS[found.group(2)]


def is_utc(zone: str) -> bool:
    """Return whether a zone is UTC under one of its names."""
    return zone.lower() in _UTC


def _invalid_value(name: str, value: str) -> TrinoError:
    return TrinoError(
        "INVALID_SESSION_PROPERTY",
        f"Session property '{name}' cannot be '{sanitize(value)}'.",
        "SHOW SESSION lists the properties.",
    )


def _pairs(values: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Parse `a=b,c=d`, both sides URL-encoded, from any number of headers."""
    for value in values:
        for part in value.split(","):
            if not part.strip():
                continue
            name, equals, text = part.partition("=")
            if not equals:
                raise TrinoError(
                    "GENERIC_USER_ERROR", "A header is not a list of name=value.", "Fix the header."
                )
            yield unquote_plus(name.strip()).lower(), unquote_plus(text.strip())
