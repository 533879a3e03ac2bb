"""Where a question goes, and why: decided from what it can see and from what is held where.

Nothing here talks to anybody. A route is a list of ways in the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from thermocline.serve.analysis.time_range import UNBOUNDED, TimeRange
from thermocline.serve.file_sums import day_of
from thermocline.serve.values import EngineName, HotCopy, LakeState, TableHead

CATCH_UP_SECONDS = 10.0
"""A copy that has been behind for longer is not waited for: something keeps it from following."""


@dataclass(frozen=True)
class AccessPath:
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

    access_paths: tuple[AccessPath, ...]
    files: int
    bytes: int
    is_node_catching_up: bool = False


@dataclass(frozen=True)
class SnapshotRequirements:
    """Which snapshots will do.

    `exactly` names the snapshot of a table, `at_least` one that must be in its history. A copy
    that was the newest until `tolerance` seconds ago is new enough; `left` says when a snapshot
    stopped being the newest.
    """

    exactly: Mapping[str, int]
    at_least: Mapping[str, int]
    tolerance: float
    superseded_at: Mapping[tuple[str, int], datetime]


@dataclass(frozen=True)
class Engines:
    """What there is to ask: nodes by how busy they are, and the cold engines.

    `direct_bytes` is how much a direct worker is given to read; more goes to a cold engine.
    """

    nodes: Mapping[str, int]
    direct: bool
    cold: tuple[EngineName, ...]
    direct_bytes: int


def decide_route(
    tables: Mapping[str, TimeRange],
    lake_state: LakeState,
    wanted: SnapshotRequirements,
    engines: Engines,
    *,
    now: datetime,
    distrusted: frozenset[str] = frozenset(),
) -> Route:
    """The route of a question that sees these spans of these tables. All tables have a head."""
    files, size = _estimate_scan(tables, lake_state.table_heads, wanted)
    newest = {t: wanted.exactly.get(t, lake_state.table_heads[t].snapshot) for t in tables}
    hot, why_not, is_node_catching_up = _find_hot_paths(
        tables, lake_state, wanted, engines, now, distrusted
    )
    direct = AccessPath(
        "direct", None, newest, (*why_not, f"reads {_format_size(size)} in {files} files")
    )
    colds = tuple(
        AccessPath(name, None, newest, (*why_not, f"reads {_format_size(size)}, left to {name}"))
        for name in engines.cold
    )
    small = size <= engines.direct_bytes
    first = (direct,) if engines.direct and small else ()
    last = (direct,) if engines.direct and not small else ()
    return Route((*hot, *first, *colds, *last), files, size, is_node_catching_up)


@dataclass(frozen=True)
class _Unsuitable:
    """Why a copy cannot serve, and whether that will have passed in a moment."""

    why: str
    is_temporary: bool = False


def _find_hot_paths(
    tables: Mapping[str, TimeRange],
    lake_state: LakeState,
    wanted: SnapshotRequirements,
    engines: Engines,
    now: datetime,
    distrusted: frozenset[str],
) -> tuple[tuple[AccessPath, ...], tuple[str, ...], bool]:
    """The nodes that can answer, least busy first; or why none can, and whether one soon will."""
    doubted = sorted(distrusted & set(tables))
    if doubted:
        return (), (f"{doubted[0]} is being copied anew",), False
    why: dict[str, None] = {}
    is_node_catching_up = False
    access_paths: list[tuple[int, AccessPath]] = []
    for node, busy in engines.nodes.items():
        copies = lake_state.hot_copies.get(node, {})
        found = [
            _check_copy(
                table, time_range, copies.get(table), lake_state.table_heads[table], wanted, now
            )
            for table, time_range in tables.items()
        ]
        if unfit := [each for each in found if each is not None]:
            why.update(dict.fromkeys(each.why for each in unfit))
            is_node_catching_up = is_node_catching_up or all(each.is_temporary for each in unfit)
            continue
        snapshots = {table: copies[table].snapshot for table in tables}
        asked = [
            _describe_range(table, time_range, lake_state.table_heads[table])
            for table, time_range in tables.items()
        ]
        because = (*dict.fromkeys(each for each in asked if each), f"{node} holds all of it")
        access_paths.append((busy, AccessPath("hot", node, snapshots, because)))
    access_paths.sort(key=lambda each: each[0])
    return (
        tuple(access_path for _, access_path in access_paths),
        tuple(why)[:4] or ("no node is up",),
        is_node_catching_up,
    )


def _check_copy(
    table: str,
    time_range: TimeRange,
    copy: HotCopy | None,
    head: TableHead,
    wanted: SnapshotRequirements,
    now: datetime,
) -> _Unsuitable | None:
    """Why a copy of a table cannot serve, if so."""
    if copy is None:
        none = head.hot is None
        return _Unsuitable(f"no node holds {table}" if none else f"{table} is not loaded there")
    if copy.since is not None:
        since = _to_naive_utc(copy.since)
        if time_range.start is None:
            return _Unsuitable(f"asks for all of {table}, held since {since:%Y-%m-%d}")
        if time_range.start < since:
            start = f"{time_range.start:%Y-%m-%d %H:%M}"
            return _Unsuitable(f"asks {table} from {start}, held since {since:%Y-%m-%d}")
    if table in wanted.exactly:
        fits = copy.snapshot == wanted.exactly[table]
        return None if fits else _Unsuitable(f"{table} is asked at a snapshot that no node holds")
    if copy.snapshot == head.snapshot:
        return None
    behind = seconds_behind(table, copy.snapshot, wanted.superseded_at, now)
    if table in wanted.at_least and not _includes(head, copy.snapshot, wanted.at_least[table]):
        why = f"the copy of {table} is older than the snapshot asked for"
        return _Unsuitable(why, behind < CATCH_UP_SECONDS)
    if behind > wanted.tolerance:
        return _Unsuitable(f"the copy of {table} is behind", behind < CATCH_UP_SECONDS)
    return None


def seconds_behind(
    table: str, snapshot: int, left: Mapping[tuple[str, int], datetime], now: datetime
) -> float:
    """How long ago a snapshot stopped being its table's newest; infinite when that is not known."""
    ended = left.get((table, snapshot))
    return (now - ended).total_seconds() if ended is not None else inf


def _includes(head: TableHead, snapshot: int, least: int) -> bool:
    """Whether one snapshot is another or comes after it."""
    known = head.snapshots
    return snapshot in known and known.index(snapshot) <= known.index(least)


def _describe_range(table: str, time_range: TimeRange, head: TableHead) -> str | None:
    if head.time is None or time_range == UNBOUNDED:
        return None
    start = f"{time_range.start:%Y-%m-%d %H:%M}" if time_range.start else "the beginning"
    end = f"{time_range.end:%Y-%m-%d %H:%M}" if time_range.end else "now"
    return f"asks {table} from {start} to {end}"


def _estimate_scan(
    tables: Mapping[str, TimeRange], heads: Mapping[str, TableHead], wanted: SnapshotRequirements
) -> tuple[int, int]:
    """Files and bytes that a cold engine would read at most: all of the days that are asked."""
    found = [
        heads[table].files.total
        if table in wanted.exactly
        else heads[table].files.within(
            None if time_range.start is None else day_of(time_range.start),
            None if time_range.end is None else day_of(time_range.end),
        )
        for table, time_range in tables.items()
    ]
    return sum(each.files for each in found), sum(each.bytes for each in found)


def _to_naive_utc(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(tzinfo=None) if at.tzinfo else at


def _format_size(count: int) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count = count // 1000
    return f"{count:.0f} GB"
