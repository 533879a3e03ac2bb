"""Where a question goes, and why: decided from what it can see and from what is held where.

Nothing here talks to anybody. A route is a list of ways in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from thermocline.serve.filesums import day_of
from thermocline.serve.question.span import EVERYTHING, Span
from thermocline.serve.terms import EngineName, Head, Held, Lookout

SOON_SECONDS = 10.0
"""A copy that has been behind for longer is not waited for: something keeps it from following."""


@dataclass(frozen=True)
class Way:
    """One engine that can give the answer, with the snapshots it would read."""

    engine: EngineName
    node: str | None
    snapshots: Mapping[str, int]
    because: tuple[str, ...]


@dataclass(frozen=True)
class Route:
    """The ways in the order of trying, and what a cold one would have to read.

    `soon` says that a node holds all that is asked, of a moment ago: it is about to catch up.
    """

    ways: tuple[Way, ...]
    files: int
    bytes: int
    soon: bool = False


@dataclass(frozen=True)
class Wanted:
    """Which snapshots will do.

    `exactly` names the snapshot of a table, `at_least` one that must be in its history. A copy
    that was the newest until `tolerance` seconds ago is new enough; `left` says when a snapshot
    stopped being the newest.
    """

    exactly: Mapping[str, int]
    at_least: Mapping[str, int]
    tolerance: float
    left: Mapping[tuple[str, int], datetime]


@dataclass(frozen=True)
class Engines:
    """What there is to ask: nodes by how busy they are, and the cold engines.

    `direct_bytes` is how much a direct worker is given to read; more goes to a cold engine.
    """

    nodes: Mapping[str, int]
    direct: bool
    cold: tuple[EngineName, ...]
    direct_bytes: int


def decide(
    tables: Mapping[str, Span],
    lookout: Lookout,
    wanted: Wanted,
    engines: Engines,
    *,
    now: datetime,
    distrusted: frozenset[str] = frozenset(),
) -> Route:
    """The route of a question that sees these spans of these tables. All tables have a head."""
    files, size = _scan(tables, lookout.heads, wanted)
    newest = {t: wanted.exactly.get(t, lookout.heads[t].snapshot) for t in tables}
    hot, why_not, soon = _hot(tables, lookout, wanted, engines, now, distrusted)
    direct = Way("direct", None, newest, (*why_not, f"reads {_size(size)} in {files} files"))
    colds = tuple(
        Way(name, None, newest, (*why_not, f"reads {_size(size)}, left to {name}"))
        for name in engines.cold
    )
    small = size <= engines.direct_bytes
    first = (direct,) if engines.direct and small else ()
    last = (direct,) if engines.direct and not small else ()
    return Route((*hot, *first, *colds, *last), files, size, soon)


@dataclass(frozen=True)
class _Unfit:
    """Why a copy cannot serve, and whether that will have passed in a moment."""

    why: str
    passes: bool = False


def _hot(
    tables: Mapping[str, Span],
    lookout: Lookout,
    wanted: Wanted,
    engines: Engines,
    now: datetime,
    distrusted: frozenset[str],
) -> tuple[tuple[Way, ...], tuple[str, ...], bool]:
    """The nodes that can answer, least busy first; or why none can, and whether one soon will."""
    doubted = sorted(distrusted & set(tables))
    if doubted:
        return (), (f"{doubted[0]} is being copied anew",), False
    why: dict[str, None] = {}
    soon = False
    ways: list[tuple[int, Way]] = []
    for node, busy in engines.nodes.items():
        copies = lookout.held.get(node, {})
        found = [
            _unfit(table, span, copies.get(table), lookout.heads[table], wanted, now)
            for table, span in tables.items()
        ]
        if unfit := [each for each in found if each is not None]:
            why.update(dict.fromkeys(each.why for each in unfit))
            soon = soon or all(each.passes for each in unfit)
            continue
        snapshots = {table: copies[table].snapshot for table in tables}
        asked = [_asked(table, span, lookout.heads[table]) for table, span in tables.items()]
        because = (*dict.fromkeys(each for each in asked if each), f"{node} holds all of it")
        ways.append((busy, Way("hot", node, snapshots, because)))
    ways.sort(key=lambda each: each[0])
    return tuple(way for _, way in ways), tuple(why)[:4] or ("no node is up",), soon


def _unfit(
    table: str, span: Span, copy: Held | None, head: Head, wanted: Wanted, now: datetime
) -> _Unfit | None:
    """Why a copy of a table cannot serve, if so."""
    if copy is None:
        none = head.hot is None
        return _Unfit(f"no node holds {table}" if none else f"{table} is not loaded there")
    if copy.since is not None:
        since = _naive(copy.since)
        if span.start is None:
            return _Unfit(f"asks for all of {table}, held since {since:%Y-%m-%d}")
        if span.start < since:
            start = f"{span.start:%Y-%m-%d %H:%M}"
            return _Unfit(f"asks {table} from {start}, held since {since:%Y-%m-%d}")
    if table in wanted.exactly:
        fits = copy.snapshot == wanted.exactly[table]
        return None if fits else _Unfit(f"{table} is asked at a snapshot that no node holds")
    if copy.snapshot == head.snapshot:
        return None
    behind = seconds_behind(table, copy.snapshot, wanted.left, now)
    if table in wanted.at_least and not _reaches(head, copy.snapshot, wanted.at_least[table]):
        why = f"the copy of {table} is older than the snapshot asked for"
        return _Unfit(why, behind < SOON_SECONDS)
    if behind > wanted.tolerance:
        return _Unfit(f"the copy of {table} is behind", behind < SOON_SECONDS)
    return None


def seconds_behind(
    table: str, snapshot: int, left: Mapping[tuple[str, int], datetime], now: datetime
) -> float:
    """How long ago a snapshot stopped being its table's newest; infinite when that is not known."""
    ended = left.get((table, snapshot))
    return (now - ended).total_seconds() if ended is not None else inf


def _reaches(head: Head, snapshot: int, least: int) -> bool:
    """Whether one snapshot is another or comes after it."""
    known = head.snapshots
    return snapshot in known and known.index(snapshot) <= known.index(least)


def _asked(table: str, span: Span, head: Head) -> str | None:
    if head.time is None or span == EVERYTHING:
        return None
    start = f"{span.start:%Y-%m-%d %H:%M}" if span.start else "the beginning"
    end = f"{span.end:%Y-%m-%d %H:%M}" if span.end else "now"
    return f"asks {table} from {start} to {end}"


def _scan(tables: Mapping[str, Span], heads: Mapping[str, Head], wanted: Wanted) -> tuple[int, int]:
    """Files and bytes that a cold engine would read at most: all of the days that are asked."""
    found = [
        heads[table].files.total
        if table in wanted.exactly
        else heads[table].files.within(
            None if span.start is None else day_of(span.start),
            None if span.end is None else day_of(span.end),
        )
        for table, span in tables.items()
    ]
    return sum(each.files for each in found), sum(each.bytes for each in found)


def _naive(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at


def _size(count: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count = count // 1000
    return f"{count:.0f} GB"
