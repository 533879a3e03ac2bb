"""The position of a pull, and which records of the next pull are new.

The position is the cursor's highest value plus the *edge*: the records with exactly that value that
have landed. The next pull starts at that value, so a record written there later is not missed;
records in the edge are dropped as duplicates. Without a cursor every pull returns everything, and
the edge is the whole last pull: only new and changed records land.
"""

from __future__ import annotations

import hashlib
import json
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from thermocline.errors import BadInput, Permanent
from thermocline.ingest.api.source import ApiSource
from thermocline.telemetry import one_line

MAX_EDGE_RECORDS = 50_000
"""Limits the bookmark's size: every reader of the table's metadata loads the edge with it."""

CURSOR, EDGE, WITHOUT_CURSOR, LANDED = "cursor", "edge", "loose", "landed"
Value = str | int | Decimal


@dataclass(frozen=True)
class ApiPosition:
    """The highest cursor value that landed, the records at it, and records without a cursor.

    `landed` counts all records so far: the next record's number is one more.
    """

    cursor: Value | None = None
    edge: tuple[str, ...] = ()
    without_cursor: tuple[str, ...] = ()
    landed: int = 0

    @classmethod
    def from_bookmark(cls, bookmark: Mapping[str, Any]) -> ApiPosition:
        """Return the position in a bookmark, or the beginning if there is none."""
        text = bookmark.get(CURSOR)
        cursor = None if text is None else json.loads(text, parse_float=Decimal)
        edge, without_cursor = (
            tuple(bookmark.get(EDGE, ())),
            tuple(bookmark.get(WITHOUT_CURSOR, ())),
        )
        return cls(cursor, edge, without_cursor, bookmark.get(LANDED, 0))

    def to_bookmark(self) -> dict[str, Any]:
        """Return the position as a bookmark stores it."""
        cursor = None if self.cursor is None else to_json(self.cursor)
        edge, without_cursor = list(self.edge), list(self.without_cursor)
        return {CURSOR: cursor, EDGE: edge, WITHOUT_CURSOR: without_cursor, LANDED: self.landed}


@dataclass(frozen=True)
class ApiRecord:
    """A record as received: its JSON text, and its flaw, if any.

    `key` is the values of its key as JSON. `event_time` is its cursor, if that is a time.
    """

    text: str
    flaw: str | None = None
    key: str | None = None
    event_time: datetime | None = None


@dataclass
class NewRecordFilter:
    """Filters out the records of one pull that have landed, and computes the next position."""

    api: ApiSource
    start: ApiPosition
    _newest: Value | None = None
    _edge: list[str] = field(default_factory=list)
    _without_cursor: list[str] = field(default_factory=list)
    _known: Counter[str] = field(default_factory=Counter)
    _current: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._newest = self.start.cursor
        self._edge = list(self.start.edge) if self.api.cursor else []
        self._known = Counter((*self.start.edge, *self.start.without_cursor))

    def accept(self, item: Any) -> ApiRecord | None:
        """Return the record if it is new, else None."""
        key = [_find_value(item, path) for path in self.api.key]
        record = ApiRecord(to_json(item), key=to_json(key) if key else None)
        if self.api.cursor is None:
            fingerprint = _fingerprint(item)
            self._edge.append(fingerprint)
            return None if self._has_landed(fingerprint) else record
        value = _find_value(item, self.api.cursor.path)
        if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
            fingerprint = _fingerprint(item)
            self._without_cursor.append(fingerprint)
            flaw = f"no cursor value at {self.api.cursor.path}"
            return None if self._has_landed(fingerprint) else replace(record, flaw=flaw)
        return self._accept_by_cursor(_fingerprint([value, *key] if key else item), record, value)

    def _accept_by_cursor(
        self, fingerprint: str, record: ApiRecord, value: Value
    ) -> ApiRecord | None:
        compared = 1 if self._newest is None else _compare(value, self._newest, self.api)
        if self._has_landed(fingerprint):
            return None
        if compared > 0:
            self._newest, self._edge = value, []
        if compared >= 0:
            self._edge.append(fingerprint)
        return replace(record, event_time=_parse_time(value))

    def _has_landed(self, fingerprint: str) -> bool:
        """Whether a record already landed. Without a key, two equal records are two records."""
        if self.api.key and self.api.cursor is not None:
            known = fingerprint in self._known or fingerprint in self._current
            self._current.add(fingerprint)
            return known
        if self._known[fingerprint] > 0:
            self._known[fingerprint] -= 1
            return True
        return False

    def position(self, records: int) -> ApiPosition:
        """Return the position of the next pull once the new records have landed."""
        if len(self._edge) + len(self._without_cursor) > MAX_EDGE_RECORDS:
            raise _too_many_records(self.api, len(self._edge) + len(self._without_cursor))
        landed = self.start.landed + records
        return ApiPosition(self._newest, tuple(self._edge), tuple(self._without_cursor), landed)


def to_json(value: Any) -> str:
    """Format a value as JSON on one line, with every number exactly as received."""
    import simplejson

    text: str = simplejson.dumps(value, use_decimal=True, ensure_ascii=False)
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    # An unpaired surrogate, which JSON can escape and UTF-8 cannot encode, stays escaped.
    return str(simplejson.dumps(value, use_decimal=True, ensure_ascii=True))


def _fingerprint(value: Any) -> str:
    """Return a short hash of the content that does not depend on the order of its fields."""
    import simplejson

    text = simplejson.dumps(value, use_decimal=True, sort_keys=True, separators=(",", ":"))
    return b64encode(hashlib.sha256(text.encode()).digest()[:15]).decode()


def _find_value(item: Any, path: str) -> Any:
    """Return the value at a path of a record, or None."""
    from dlt.common.jsonpath import find_values

    found = find_values(path, item)
    return found[0] if found else None


def _parse_time(value: Value) -> datetime | None:
    """Return a cursor as a time, or None if it is not one. Without a zone, UTC is assumed."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found and found.tzinfo is None else found


def _compare(value: Value, other: Value, api: ApiSource) -> int:
    if isinstance(value, str) != isinstance(other, str):
        raise Permanent(
            f"The cursor of {one_line(api.resource)} is a text in some records, else a number.",
            "Choose another cursor_path, or fix initial_value.",
        )
    return (value > other) - (value < other)  # type: ignore[operator]


def _too_many_records(api: ApiSource, count: int) -> BadInput:
    if api.cursor is None:
        return BadInput(
            f"{one_line(api.resource)} has {count:,} records and no cursor to tell new ones by.",
            f"Give it endpoint.incremental; without, {MAX_EDGE_RECORDS:,} records are the most.",
        )
    return BadInput(
        f"{count:,} records of {one_line(api.resource)} share the cursor's highest value.",
        f"Choose a finer cursor_path; {MAX_EDGE_RECORDS:,} records of one value are the most.",
    )
