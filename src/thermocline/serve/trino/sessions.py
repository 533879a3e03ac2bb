"""What a client sends along with a statement. The client keeps it; nothing of it is kept here."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import unquote_plus

from thermocline.serve.failures import TooMuch
from thermocline.serve.trino.faults import Faulty
from thermocline.sql.guard import CATALOG_NAME, sanitize

if TYPE_CHECKING:
    from starlette.datastructures import Headers

MOST_HEADERS = 256 * 1024
"""How many bytes of X-Trino headers are looked at. Prepared statements travel in them."""


@dataclass(frozen=True)
class Property:
    """A setting that a client may make for its session."""

    kind: str
    default: str
    description: str


_IGNORED = "Taken from clients that set it, without effect here"
PROPERTIES = {
    "query_max_run_time": Property("varchar", "", "Longest time until a query's last row"),
    "query_max_execution_time": Property("varchar", "", "Longest time that a query may run"),
    "time_zone_id": Property("varchar", "UTC", "Time zone of the session; UTC only"),
    "lake.max_staleness": Property("varchar", "", "How old an answer may be, such as 5s"),
    "lake.min_snapshot": Property("varchar", "", "Oldest snapshot of the table that will do"),
    "join_distribution_type": Property("varchar", "AUTOMATIC", _IGNORED),
    "join_reordering_strategy": Property("varchar", "AUTOMATIC", _IGNORED),
    "query_max_memory": Property("varchar", "", _IGNORED),
    "query_max_memory_per_node": Property("varchar", "", _IGNORED),
    "query_priority": Property("integer", "1", _IGNORED),
    "resource_overcommit": Property("boolean", "false", _IGNORED),
    "task_concurrency": Property("integer", "1", _IGNORED),
}

_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*(ns|us|ms|s|m|h|d)\s*")
_UTC = {"utc", "etc/utc", "gmt", "etc/gmt", "z", "zulu", "etc/zulu", "universal", "etc/universal",
        "uct", "etc/uct", "greenwich", "+00:00", "-00:00"}  # fmt: skip


@dataclass(frozen=True)
class Session:
    """A client's session, as it told it with one statement."""

    user: str
    catalog: str = CATALOG_NAME
    schema: str | None = None
    zone: str = "UTC"
    source: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)
    prepared: Mapping[str, str] = field(default_factory=dict)

    @property
    def in_utc(self) -> bool:
        """Whether the client counts time as it is counted here."""
        return is_utc(self.zone)

    @property
    def timeout(self) -> float | None:
        """The shorter of the times that the client gives its queries, in seconds."""
        names = ("query_max_run_time", "query_max_execution_time")
        found = [seconds(self.properties[name]) for name in names if self.properties.get(name)]
        return min(found, default=None)

    @property
    def max_staleness(self) -> float | None:
        """How old, in seconds, an answer may be."""
        text = self.properties.get("lake.max_staleness")
        return seconds(text) if text else None

    @property
    def min_snapshot(self) -> int | None:
        """The snapshot that an answer must have seen."""
        text = self.properties.get("lake.min_snapshot")
        return int(text) if text else None


def read(headers: Headers, user: str) -> Session:
    """The session that a request's headers tell. `user` is who it was found to be."""
    size = sum(len(value) for name, value in headers.items() if name.startswith("x-trino-"))
    if size > MOST_HEADERS:
        raise TooMuch(
            f"The headers have {size:,} bytes, more than {MOST_HEADERS:,}.",
            "Deallocate prepared statements that are no longer needed.",
        )
    pairs = dict(_pairs(headers.getlist("x-trino-session")))
    for name, value in pairs.items():
        checked(name, value)
    schema = headers.get("x-trino-schema", "").strip().lower()
    return Session(
        user=user,
        catalog=headers.get("x-trino-catalog", "").strip().lower() or CATALOG_NAME,
        schema=schema or None,
        zone=headers.get("x-trino-time-zone", "UTC").strip(),
        source=headers.get("x-trino-source", ""),
        properties=pairs,
        prepared=dict(_pairs(headers.getlist("x-trino-prepared-statement"))),
    )


def checked(name: str, value: str) -> None:
    """Raise if there is no such property, or if it cannot have such a value."""
    if name not in PROPERTIES:
        raise Faulty(
            "INVALID_SESSION_PROPERTY",
            f"Session property '{sanitize(name)}' does not exist.",
            "SHOW SESSION lists those that do.",
        )
    kind = PROPERTIES[name].kind
    fits = {"integer": r"\d{1,9}", "boolean": "(?i:true|false)"}.get(kind, r"[^\x00-\x1f]{0,1000}")
    if name == "lake.min_snapshot" and value:
        fits = r"\d{1,19}"
    if not re.fullmatch(fits, value):
        raise _unfit(name, value)
    if name in {"query_max_run_time", "query_max_execution_time", "lake.max_staleness"} and value:
        seconds(value, name)
    if name == "time_zone_id" and not is_utc(value):
        raise Faulty(
            "NOT_SUPPORTED",
            f"Time is counted in UTC here, not in {sanitize(value)}.",
            "Use AT TIME ZONE in the query.",
        )


def seconds(text: str, name: str = "duration") -> float:
    """A duration such as 5m or 1.5h."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise _unfit(name, text)
    return float(found.group(1)) * _SECONDS[found.group(2)]


def is_utc(zone: str) -> bool:
    """Whether a zone is UTC under one of its names."""
    return zone.lower() in _UTC


def _unfit(name: str, value: str) -> Faulty:
    return Faulty(
        "INVALID_SESSION_PROPERTY",
        f"Session property '{name}' cannot be '{sanitize(value)}'.",
        "SHOW SESSION says what it takes.",
    )


def _pairs(values: Iterable[str]) -> Iterable[tuple[str, str]]:
    """`a=b,c=d`, both sides URL-encoded, over any number of headers."""
    for value in values:
        for part in value.split(","):
            if not part.strip():
                continue
            name, equals, text = part.partition("=")
            if not equals:
                raise Faulty(
                    "GENERIC_USER_ERROR", "A header is not a list of name=value.", "Mend it."
                )
            yield unquote_plus(name.strip()).lower(), unquote_plus(text.strip())
