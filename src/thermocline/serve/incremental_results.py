"""Questions that come again after every commit: what is older than today is counted once.

A dashboard asks the same of a table that grows at its end. Split at midnight, the older part of a
question has the same answer for as long as the files that hold its rows are the same, and only the
newer part, which is hot, is counted anew. See `question.split` for which questions that is true of.
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
from thermocline.serve.fleet.messages import CopyMoved, QueryBudget
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
"""So many rows of an older part are sent along with the question; with more it is not split."""
MAX_RECOMPUTED = 3
"""A table whose older rows change with so many commits in a row is counted whole for the day."""
MIN_OLDER_ROWS = 200_000
"""With fewer rows before the boundary, counting them anew is as good."""


@dataclass(frozen=True)
class Boundary:
    """Where a question is split: a table's time, and a node that holds all from then on."""

    table: str
    head: TableHead
    node: str
    at: datetime
    """In UTC, without a zone."""

    @property
    def version(self) -> Hashable:
        """Two looks at a table with the same have the same rows before the boundary.

        Files never change: they come and go. A file that begins on a day after the boundary has no
        row before it; nor does a row without a time count as one.
        """
        older = self.head.files.begun_before(day_after(self.at))
        return self.head.uuid, self.head.deletes, older, self.head.schema_fingerprint


def find_boundary(
    prepared: PreparedQuery,
    lake_state: LakeState,
    nodes: Mapping[str, int],
    now: datetime,
    worth: int = MIN_OLDER_ROWS,
) -> Boundary | None:
    """Where a question may be split, if that is worth it. `nodes` are those that can be asked."""
    if len(prepared.tables) != 1 or prepared.question.dialect != "duckdb":
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
        or _estimate_rows_before(at, time_range, head) < worth
    ):
        return None
    return Boundary(table, head, node, at)


@dataclass
class CombinedQuery:
    """The question that is left once its older part was answered, in the words of engines.

    An older part is hundreds of constants: the texts that they make are kept, and no tree.
    """

    split: QuerySplit
    older: EncodedRows
    sql: dict[tuple[str, ...], str] = field(default_factory=dict)

    @property
    def question(self) -> GuardedQuery:
        """The question as a tree, made whenever somebody needs it."""
        found = self.split.combine(self.older)
        assert found is not None, "an older part that could not be put together was taken"
        return found


@dataclass
class SplitQuery:
    """A question split at a boundary, and both parts of it ready to be asked."""

    key: Hashable
    split: QuerySplit | None
    """None, when it cannot be split after all."""
    older: PreparedQuery
    recomputed: int = 0
    """How often in a row the older part had to be read again."""
    _combined: CombinedQuery | None = None

    @property
    def bytes(self) -> int:
        """About how much memory it takes: the older part, the newer, and the whole of both."""
        size = self.older.bytes + (2 * NODE_BYTES * self.older.nodes if self.split else 0)
        if (both := self._combined) is None:
            return size
        return size + len(both.older.body) + sum(map(len, both.sql.values()))

    def combine(self, older: EngineResult) -> CombinedQuery | None:
        """The question that is left once the older part was answered, worked out once."""
        if self._combined is None or self._combined.older is not older.rows:
            if self.split is None or self.split.combine(older.rows) is None:
                return None
            self._combined = CombinedQuery(self.split, older.rows)
        return self._combined


class IncrementalResults:
    """Answers questions in parts. `first` gives the older part, `reading` says how one is asked."""

    def __init__(
        self,
        fleet: Fleet,
        results: ResultCache[EngineResult],
        first: Callable[[PreparedQuery, QueryRequest, int, float], Awaitable[EngineResult]],
        reading: Callable[[Translatable, AccessPath], tuple[str, Mapping[str, TableVersion]]],
    ) -> None:
        self._fleet = fleet
        self._result_cache = results
        self._first = first
        self._reading = reading

    async def execute(
        self,
        prepared: PreparedQuery,
        ask: QueryRequest,
        caller: Caller,
        where: Boundary,
        budget: QueryBudget,
    ) -> EngineResult | None:
        """The answer, split there; None when it cannot be had so. Raises Moved."""
        split_ = split_at(prepared, where)
        if split_ is None:
            return None
        deadline = time.perf_counter() + budget.seconds
        try:
            older, kept = await self._get_older(split_.older, where, caller, deadline)
            split_.recomputed = 0 if kept else split_.recomputed + 1
            combined = split_.combine(older)
            if combined is None or split_.recomputed > MAX_RECOMPUTED:
                prepared.split = replace(split_, split=None, _combined=None)
                return None
            told = "kept" if kept else f"read by {older.access_path.engine}"
            because = (
                f"{where.node} holds {where.table} from {where.at:%Y-%m-%d} on",
                f"what is older was {told}, and is the same at this snapshot",
            )
            access_path = AccessPath("hot", where.node, {where.table: where.head.snapshot}, because)
            sql, views = self._reading(combined, access_path)
            left = deadline - time.perf_counter()
            budget = replace(budget, seconds=max(left, 0.001))
            rows = await self._fleet.execute(access_path, sql, views, ask.format, budget)
        except CopyMoved:
            raise
        except TooMuch:
            prepared.split = replace(split_, split=None, _combined=None)
            return None
        except (ThermoclineError, TimeoutError):
            return None  # whoever answers it whole may have more to say of it
        return EngineResult(rows, access_path, older.failures, (0, 0) if kept else older.scanned)

    async def _get_older(
        self, prepared: PreparedQuery, where: Boundary, caller: Caller, deadline: float
    ) -> tuple[EngineResult, bool]:
        async def make() -> EngineResult:
            result = await self._first(
                prepared, QueryRequest(prepared.text), where.head.snapshot, deadline
            )
            if result.rows.count > MAX_OLDER_ROWS:
                raise TooMuch(f"The older part has more than {MAX_OLDER_ROWS} rows.")
            return result

        question = ("older part", prepared.text, caller.policy)
        return await self._result_cache.get_or_compute(question, where.version, make)


def split_at(prepared: PreparedQuery, where: Boundary) -> SplitQuery | None:
    """The question split there, worked out once; None where it cannot be."""
    key = (where.at, where.head.schema_fingerprint)
    known = prepared.split
    if known is None or known.key != key:
        assert where.head.time is not None
        found = split_query(prepared.question, where.head.time, where.at, where.head.columns)
        known = SplitQuery(
            key, found, _prepare_part(prepared, found.older if found else prepared.question)
        )
        prepared.split = known
    return known if known.split is not None else None


def _prepare_part(prepared: PreparedQuery, part: GuardedQuery) -> PreparedQuery:
    """A part of a question, ready to be routed."""
    text = part.tree.sql(dialect=part.dialect, comments=False)
    return PreparedQuery(part, text, prepared.clock, prepared.day, prepared.now)


def _boundary_time(now: datetime, copy: HotCopy) -> datetime:
    """The beginning of the day; later, where a node's copy begins later."""
    today = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    latest = today if copy.since is None else max(today, copy.since.astimezone(UTC))
    return latest.replace(tzinfo=None)


def _covers_both_sides(at: datetime, time_range: TimeRange) -> bool:
    """Whether a question sees rows on both sides."""
    assert time_range.start is not None
    return time_range.start < at and (time_range.end is None or time_range.end >= at)


def _estimate_rows_before(at: datetime, time_range: TimeRange, head: TableHead) -> int:
    """About how many rows of a question lie before a moment."""
    assert time_range.start is not None
    return head.files.within(day_of(time_range.start), day_after(at) - 1).rows
