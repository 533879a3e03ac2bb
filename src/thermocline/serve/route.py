"""Decide the route of a query from its time ranges and the hot copies of the nodes.

Pure functions, without I/O. A route is a list of access paths in the order of trying.
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
"""A query does not wait for a copy that has been behind for longer: it may be stuck."""


@dataclass(frozen=True)
class AccessPath:
    """One engine that can give the answer, with the snapshots it would read."""

    engine: EngineName
    node: str | None
    snapshots: Mapping[str, int]
    because: tuple[str, ...]


@dataclass(frozen=True)
class Route:
    """The access paths in the order of trying, and what a cold engine would have to read.

    `is_node_catching_up` is whether a node holds all of it at a slightly older snapshot.
    """

    access_paths: tuple[AccessPath, ...]
    files: int
    bytes: int
    is_node_catching_up: bool = False


@dataclass(frozen=True)
class SnapshotRequirements:
    """Which snapshots are acceptable.

    `exactly` names the snapshot of a table, `at_least` one that must be in its history. A copy that
    was the newest until `tolerance` seconds ago is fresh enough; `superseded_at` is when a snapshot
    stopped being the newest.
    """

    exactly: Mapping[str, int]
    at_least: Mapping[str, int]
    tolerance: float
    superseded_at: Mapping[tuple[str, int], datetime]


@dataclass(frozen=True)
class Engines:
    """The available engines: nodes with their number of running queries, and the cold engines.

    `direct_bytes` is how much a direct worker may read; larger scans go to a cold engine.
    """

    nodes: Mapping[str, int]
    direct: bool
    cold: tuple[EngineName, ...]
    direct_bytes: int


def decide_route(
    tables: Mapping[str, TimeRange],
    lake_state: LakeState,
    requirements: SnapshotRequirements,
    engines: Engines,
    *,
    now: datetime,
    distrusted: frozenset[str] = frozenset(),
) -> Route:
    """Return the route of a query with these time ranges. All tables have a head."""
    files, size = _estimate_scan(tables, lake_state.table_heads, requirements)
    newest = {t: requirements.exactly.get(t, lake_state.table_heads[t].snapshot) for t in tables}
    hot, why_not, is_node_catching_up = _find_hot_paths(
        tables, lake_state, requirements, engines, now, distrusted
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
    """Why a copy cannot serve a query, and whether that is temporary."""

    why: str
    is_temporary: bool = False


def _find_hot_paths(
    tables: Mapping[str, TimeRange],
    lake_state: LakeState,
    requirements: SnapshotRequirements,
    engines: Engines,
    now: datetime,
    distrusted: frozenset[str],
) -> tuple[tuple[AccessPath, ...], tuple[str, ...], bool]:
    """Return the nodes that can answer, least busy first; or why none can, and if one soon will."""
    distrusted_tables = sorted(distrusted & set(tables))
    if distrusted_tables:
        return (), (f"{distrusted_tables[0]} is being rebuilt",), False
    why: dict[str, None] = {}
    is_node_catching_up = False
    access_paths: list[tuple[int, AccessPath]] = []
    for node, busy in engines.nodes.items():
        copies = lake_state.hot_copies.get(node, {})
        found = [
            _check_copy(
                table,
                time_range,
                copies.get(table),
                lake_state.table_heads[table],
                requirements,
                now,
            )
            for table, time_range in tables.items()
        ]
        if unsuitable := [each for each in found if each is not None]:
            why.update(dict.fromkeys(each.why for each in unsuitable))
            is_node_catching_up = is_node_catching_up or all(
                each.is_temporary for each in unsuitable
            )
            continue
        snapshots = {table: copies[table].snapshot for table in tables}
        ranges = [
            _describe_range(table, time_range, lake_state.table_heads[table])
            for table, time_range in tables.items()
        ]
        because = (*dict.fromkeys(each for each in ranges if each), f"{node} holds all of it")
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
    requirements: SnapshotRequirements,
    now: datetime,
) -> _Unsuitable | None:
    """Return why a copy of a table cannot serve, or None when it can."""
    if copy is None:
        none = head.hot is None
        return _Unsuitable(f"no node holds {table}" if none else f"{table} is not loaded there")
    if copy.since is not None:
        since = _to_naive_utc(copy.since)
        if time_range.start is None:
            return _Unsuitable(f"reads all of {table}, hot since {since:%Y-%m-%d}")
        if time_range.start < since:
            start = f"{time_range.start:%Y-%m-%d %H:%M}"
            return _Unsuitable(f"reads {table} from {start}, hot since {since:%Y-%m-%d}")
    if table in requirements.exactly:
        fits = copy.snapshot == requirements.exactly[table]
        return None if fits else _Unsuitable(f"no node holds the requested snapshot of {table}")
    if copy.snapshot == head.snapshot:
        return None
    behind = seconds_behind(table, copy.snapshot, requirements.superseded_at, now)
    if table in requirements.at_least and not _includes(
        head, copy.snapshot, requirements.at_least[table]
    ):
        why = f"the copy of {table} is older than the requested snapshot"
        return _Unsuitable(why, behind < CATCH_UP_SECONDS)
    if behind > requirements.tolerance:
        return _Unsuitable(f"the copy of {table} is behind", behind < CATCH_UP_SECONDS)
    return None


def seconds_behind(
    table: str, snapshot: int, superseded_at: Mapping[tuple[str, int], datetime], now: datetime
) -> float:
    """Return how long ago a snapshot stopped being its table's newest; infinite if unknown."""
    ended = superseded_at.get((table, snapshot))
    return (now - ended).total_seconds() if ended is not None else inf


def _includes(head: TableHead, snapshot: int, min_snapshot: int) -> bool:
    """Return whether a snapshot is `min_snapshot` or a later one."""
    known = head.snapshots
    return snapshot in known and known.index(snapshot) <= known.index(min_snapshot)


def _describe_range(table: str, time_range: TimeRange, head: TableHead) -> str | None:
    if head.time is None or time_range == UNBOUNDED:
        return None
    start = f"{time_range.start:%Y-%m-%d %H:%M}" if time_range.start else "the beginning"
    end = f"{time_range.end:%Y-%m-%d %H:%M}" if time_range.end else "now"
    return f"reads {table} from {start} to {end}"


def _estimate_scan(
    tables: Mapping[str, TimeRange],
    heads: Mapping[str, TableHead],
    requirements: SnapshotRequirements,
) -> tuple[int, int]:
    """Return how many files and bytes a cold engine would read at most: all of the range's days."""
    found = [
        heads[table].files.total
        if table in requirements.exactly
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
