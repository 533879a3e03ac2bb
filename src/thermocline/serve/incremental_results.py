"""Incremental results of repeated queries: the older half is cached, today's is recomputed.

A dashboard repeats its queries on a table that grows at its end. Split at midnight, the older part
of a query has the same result as long as the files with its rows are the same, and only the newer
part, which is hot, is recomputed. See `analysis.split` for the queries that can be split.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from thermocline.errors import ThermoclineError
from thermocline.serve.analysis.split import QuerySplit, split_query
from thermocline.serve.failures import TooMuch
from thermocline.serve.file_sums import day_after, day_of
from thermocline.serve.fleet.messages import CopyMoved, EngineQuery, QueryBudget
from thermocline.serve.provenance import EngineResult
from thermocline.serve.query_preparation import NODE_BYTES, PreparedQuery
from thermocline.serve.query_translation import Translatable
from thermocline.serve.route import AccessPath
from thermocline.serve.values import (
    Caller,
    EncodedRows,
    HotCopy,
    LakeState,
    QueryRequest,
    TableHead,
)

if TYPE_CHECKING:
    from thermocline.serve.analysis.time_range import TimeRange
    from thermocline.serve.fleet.fleet import Fleet
    from thermocline.serve.fleet.messages import TableVersion
    from thermocline.serve.result_cache import ResultCache
    from thermocline.sql.guard import GuardedQuery

MAX_OLDER_ROWS = 500
"""The result of an older part is sent with the query; with more rows the query is not split."""
MAX_RECOMPUTED = 3
"""A table whose older rows change in so many commits in a row is not split for the day."""
MIN_OLDER_ROWS = 200_000
"""With fewer rows before the boundary, a split saves nothing."""


@dataclass(frozen=True)
class Boundary:
    """Where a query is split: a time of its table, and a node that holds all rows from then on."""

    table: str
    head: TableHead
    node: str
    at: datetime
    """In UTC, without a zone."""

    @property
    def version(self) -> Hashable:
        """The version of the rows before the boundary: it is equal when they are.

        Files never change: they are added and removed. A file that begins on a day after the
        boundary has no row before it; rows without a time do not count.
        """
        older = self.head.files.begun_before(day_after(self.at))
        return self.head.uuid, self.head.deletes, older, self.head.schema_fingerprint


def find_boundary(
    prepared: PreparedQuery,
    lake_state: LakeState,
    nodes: Mapping[str, int],
    now: datetime,
    min_rows: int = MIN_OLDER_ROWS,
) -> Boundary | None:
    """Return where to split a query, or None. `nodes` are the available ones by load."""
    if len(prepared.tables) != 1 or prepared.query.dialect != "duckdb":
        return None
    (table,) = prepared.tables
    head = lake_state.table_heads[table]
    if head.time is None:
        return None
    time_range = prepared.time_ranges(lake_state.table_heads)[table]
    if time_range.start is None:
        return None  # rows without a time may matter, and are in neither part
    held = {
        n: copies[table] for n in nodes if table in (copies := lake_state.hot_copies.get(n, {}))
    }
    newest = [n for n, copy in held.items() if copy.snapshot == head.snapshot]
    if not newest:
        return None
    node = min(newest, key=lambda each: nodes[each])
    at = _boundary_time(now, held[node])
    if (
        not _covers_both_sides(at, time_range)
        or _estimate_rows_before(at, time_range, head) < min_rows
    ):
        return None
    return Boundary(table, head, node, at)


@dataclass
class CombinedQuery:
    """The query over the newer rows and the result of the older part, with its translations.

    An older part is hundreds of constants: the translated texts are cached, but no tree.
    """

    split: QuerySplit
    older: EncodedRows
    sql: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def query(self) -> GuardedQuery:
        """The query as a tree, built on each access."""
        found = self.split.combine(self.older)
        assert found is not None, "an older part that cannot be combined was accepted"
        return found


@dataclass
class SplitQuery:
    """A query split at a boundary, with both parts prepared."""

    key: Hashable
    split: QuerySplit | None
    """None when it cannot be split."""
    older: PreparedQuery
    recomputed: int = 0
    """How often in a row the older part was recomputed."""
    _combined: CombinedQuery | None = None

    @property
    def bytes(self) -> int:
        """The approximate memory of both parts and of the combined query."""
        size = self.older.bytes + (2 * NODE_BYTES * self.older.nodes if self.split else 0)
        if (both := self._combined) is None:
            return size
        return size + len(both.older.body) + sum(map(len, both.sql.values()))

    def combine(self, older: EngineResult) -> CombinedQuery | None:
        """Return the combined query, cached for this older result; None if it cannot be built."""
        if self._combined is None or self._combined.older is not older.rows:
            if self.split is None or self.split.combine(older.rows) is None:
                return None
            self._combined = CombinedQuery(self.split, older.rows)
        return self._combined


class IncrementalResults:
    """Answers split queries.

    `execute_older` runs the older part, `translate` translates a query.
    """

    def __init__(
        self,
        fleet: Fleet,
        results: ResultCache[EngineResult],
        execute_older: Callable[[PreparedQuery, QueryRequest, int, float], Awaitable[EngineResult]],
        translate: Callable[[Translatable, AccessPath], tuple[str, Mapping[str, TableVersion]]],
    ) -> None:
        self._fleet = fleet
        self._result_cache = results
        self._execute_older = execute_older
        self._translate = translate

    async def execute(
        self,
        prepared: PreparedQuery,
        request: QueryRequest,
        caller: Caller,
        boundary: Boundary,
        budget: QueryBudget,
    ) -> EngineResult | None:
        """Return the answer from both parts; None when that fails. Raises CopyMoved."""
        split_ = split_at(prepared, boundary)
        if split_ is None:
            return None
        deadline = time.perf_counter() + budget.seconds
        try:
            older, is_cached = await self._get_older(split_.older, boundary, caller, deadline)
            split_.recomputed = 0 if is_cached else split_.recomputed + 1
            combined = split_.combine(older)
            if combined is None or split_.recomputed > MAX_RECOMPUTED:
                prepared.split = replace(split_, split=None, _combined=None)
                return None
            source = "cached" if is_cached else f"read by {older.access_path.engine}"
            because = (
                f"{boundary.node} holds {boundary.table} from {boundary.at:%Y-%m-%d} on",
                f"older rows were {source}, and are the same at this snapshot",
            )
            access_path = AccessPath(
                "hot", boundary.node, {boundary.table: boundary.head.snapshot}, because
            )
            sql, views = self._translate(combined, access_path)
            left = deadline - time.perf_counter()
            budget = replace(budget, seconds=max(left, 0.001))
            query = EngineQuery(sql, views, request.format, budget)
            rows = await self._fleet.execute(access_path, query)
        except CopyMoved:
            raise
        except TooMuch:
            prepared.split = replace(split_, split=None, _combined=None)
            return None
        except (ThermoclineError, TimeoutError):
            return None  # executing the whole query may succeed, or give a better error
        return EngineResult(
            rows, access_path, older.failures, (0, 0) if is_cached else older.scanned
        )

    async def _get_older(
        self, prepared: PreparedQuery, boundary: Boundary, caller: Caller, deadline: float
    ) -> tuple[EngineResult, bool]:
        async def make() -> EngineResult:
            result = await self._execute_older(
                prepared, QueryRequest(prepared.text), boundary.head.snapshot, deadline
            )
            if result.rows.count > MAX_OLDER_ROWS:
                raise TooMuch(f"The older part has more than {MAX_OLDER_ROWS} rows.")
            return result

        query = ("older part", prepared.text, caller.policy)
        return await self._result_cache.get_or_compute(query, boundary.version, make)


def split_at(prepared: PreparedQuery, boundary: Boundary) -> SplitQuery | None:
    """Return the query split there, cached in `prepared`; None where it cannot be split."""
    key = (boundary.at, boundary.head.schema_fingerprint)
    known = prepared.split
    if known is None or known.key != key:
        assert boundary.head.time is not None
        found = split_query(prepared.query, boundary.head.time, boundary.at, boundary.head.columns)
        known = SplitQuery(
            key, found, _prepare_part(prepared, found.older if found else prepared.query)
        )
        prepared.split = known
    return known if known.split is not None else None


def _prepare_part(prepared: PreparedQuery, part: GuardedQuery) -> PreparedQuery:
    """Prepare a part of a query for routing."""
    text = part.tree.sql(dialect=part.dialect, comments=False)
    return PreparedQuery(part, text, prepared.clock, prepared.day, prepared.now)


def _boundary_time(now: datetime, copy: HotCopy) -> datetime:
    """Return the beginning of the day, or of the node's copy if that is later."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    latest = today if copy.since is None else max(today, copy.since.astimezone(UTC))
    return latest.replace(tzinfo=None)


def _covers_both_sides(at: datetime, time_range: TimeRange) -> bool:
    """Return whether a query reads rows on both sides."""
    assert time_range.start is not None
    return time_range.start < at and (time_range.end is None or time_range.end >= at)


def _estimate_rows_before(at: datetime, time_range: TimeRange, head: TableHead) -> int:
    """Return approximately how many rows of a query are before a time."""
    assert time_range.start is not None
    return head.files.within(day_of(time_range.start), day_after(at) - 1).rows
