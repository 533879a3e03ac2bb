"""Where a pull has come to, and which records of the next one are new.

The position is the cursor's highest value and the *edge*: which records of that very value have
landed. A pull begins at the edge, so that a record written there later is not missed; those that
come again are known by the edge and dropped. Without a cursor everything comes again each time,
and the edge is the whole last pull: only what is new or changed lands.
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

MOST_AT_THE_EDGE = 50_000
"""The edge lies in the commit's bookmark, which every reader of the table's metadata loads."""

CURSOR, EDGE, LOOSE, LANDED = "cursor", "edge", "loose", "landed"
Value = str | int | Decimal


@dataclass(frozen=True)
class Position:
    """The highest cursor value that landed, what landed at it, and records without one.

    `landed` counts all records so far: the next one's number is one more.
    """

    cursor: Value | None = None
    edge: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    landed: int = 0

    @classmethod
    def read(cls, bookmark: Mapping[str, Any]) -> Position:
        """The position in a bookmark; the beginning, where there is none."""
        text = bookmark.get(CURSOR)
        cursor = None if text is None else json.loads(text, parse_float=Decimal)
        edge, loose = tuple(bookmark.get(EDGE, ())), tuple(bookmark.get(LOOSE, ()))
        return cls(cursor, edge, loose, bookmark.get(LANDED, 0))

    def written(self) -> dict[str, Any]:
        """The position as a bookmark keeps it."""
        cursor = None if self.cursor is None else written(self.cursor)
        edge, loose = list(self.edge), list(self.loose)
        return {CURSOR: cursor, EDGE: edge, LOOSE: loose, LANDED: self.landed}


@dataclass(frozen=True)
class Record:
    """A record as it came: its JSON text, and what is wrong with it as a record, if anything.

    `key` are the values of its key as JSON; `event_time` is its cursor, if that is a time.
    """

    text: str
    flaw: str | None = None
    key: str | None = None
    event_time: datetime | None = None


@dataclass
class Sieve:
    """Lets through the records of one pull that have not landed, and knows the position then."""

    api: ApiSource
    start: Position
    _newest: Value | None = None
    _edge: list[str] = field(default_factory=list)
    _loose: list[str] = field(default_factory=list)
    _known: Counter[str] = field(default_factory=Counter)
    _met: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._newest = self.start.cursor
        self._edge = list(self.start.edge) if self.api.cursor else []
        self._known = Counter((*self.start.edge, *self.start.loose))

    def take(self, item: Any) -> Record | None:
        """The record if it is new, else nothing."""
        key = [_at(item, path) for path in self.api.key]
        record = Record(written(item), key=written(key) if key else None)
        if self.api.cursor is None:
            name = _name(item)
            self._edge.append(name)
            return None if self._came_before(name) else record
        value = _at(item, self.api.cursor.path)
        if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
            name = _name(item)
            self._loose.append(name)
            flaw = f"no cursor value at {self.api.cursor.path}"
            return None if self._came_before(name) else replace(record, flaw=flaw)
        return self._by_cursor(_name([value, *key] if key else item), record, value)

    def _by_cursor(self, name: str, record: Record, value: Value) -> Record | None:
        compared = 1 if self._newest is None else _compare(value, self._newest, self.api)
        if self._came_before(name):
            return None
        if compared > 0:
            self._newest, self._edge = value, []
        if compared >= 0:
            self._edge.append(name)
        return replace(record, event_time=_time(value))

    def _came_before(self, name: str) -> bool:
        """Whether a record landed already. Without a key, two alike are two records."""
        if self.api.key and self.api.cursor is not None:
            known = name in self._known or name in self._met
            self._met.add(name)
            return known
        if self._known[name] > 0:
            self._known[name] -= 1
            return True
        return False

    def position(self, records: int) -> Position:
        """Where the next pull begins once the records that were let through have landed."""
        if len(self._edge) + len(self._loose) > MOST_AT_THE_EDGE:
            raise _too_coarse(self.api, len(self._edge) + len(self._loose))
        landed = self.start.landed + records
        return Position(self._newest, tuple(self._edge), tuple(self._loose), landed)


def written(value: Any) -> str:
    """A value as JSON on one line, with every number as it came."""
    import simplejson

    text: str = simplejson.dumps(value, use_decimal=True, ensure_ascii=False)
    if text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text):
        return text
    # Half a character, which JSON can spell and UTF-8 cannot: it stays spelled out.
    return str(simplejson.dumps(value, use_decimal=True, ensure_ascii=True))


def _name(value: Any) -> str:
    """A short name that only this content has, in whatever order its fields were sent."""
    import simplejson

    text = simplejson.dumps(value, use_decimal=True, sort_keys=True, separators=(",", ":"))
    return b64encode(hashlib.sha256(text.encode()).digest()[:15]).decode()


def _at(item: Any, path: str) -> Any:
    """The value at a path of a record; nothing where the path leads nowhere."""
    from dlt.common.jsonpath import find_values

    found = find_values(path, item)
    return found[0] if found else None


def _time(value: Value) -> datetime | None:
    """The time that a cursor names, if it is written as one; without a zone it is meant as UTC."""
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
    return found.replace(tzinfo=UTC) if found and found.tzinfo is None else found


def _compare(value: Value, other: Value, api: ApiSource) -> int:
    if isinstance(value, str) != isinstance(other, str):
        raise Permanent(
            f"The cursor of {one_line(api.resource)} is a text in some records, else a number.",
            "Choose another cursor_path, or mend initial_value.",
        )
    return (value > other) - (value < other)  # type: ignore[operator]


def _too_coarse(api: ApiSource, count: int) -> BadInput:
    if api.cursor is None:
        return BadInput(
            f"{one_line(api.resource)} has {count:,} records and no cursor to tell new ones by.",
            f"Give it endpoint.incremental; without, {MOST_AT_THE_EDGE:,} records are the most.",
        )
    return BadInput(
        f"{count:,} records of {one_line(api.resource)} share the cursor's highest value.",
        f"Choose a finer cursor_path; {MOST_AT_THE_EDGE:,} records of one value are the most.",
    )
