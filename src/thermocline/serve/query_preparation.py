"""Prepare queries: guard them, pin the clock, apply `start_time`, and cache the result.

Dashboards repeat the same texts. A prepared query is cached as long as it stays valid: forever when
it does not use the clock, for the day when it uses the date, not at all when it uses the time.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from functools import cached_property
from typing import TYPE_CHECKING

from thermocline.serve.analysis.bare_functions import has_bare_names, refuse_bare_functions
from thermocline.serve.analysis.clock import Clock, pin_clock
from thermocline.serve.analysis.time_range import UNBOUNDED, TimedTable, TimeRange, find_time_ranges
from thermocline.serve.values import QueryRequest, TableHead
from thermocline.sql.guard import GuardedQuery, QueryRefused, SyntaxLimits, guard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from thermocline.serve.incremental_results import SplitQuery
    from thermocline.serve.route_cache import CachedRoute

MAX_CACHED = 2_000
MAX_CACHED_BYTES = 24 << 20
MAX_CACHED_LENGTH = 10_000
"""Texts and their trees take memory: longer ones, which are rarely repeated, are not cached."""
NODE_BYTES = 450
"""The approximate memory of a node of a tree."""
TEXT_BYTES = 3_000
"""The approximate memory of a prepared query besides its trees: route, ranges, cache entry."""


@dataclass
class PreparedQuery:
    """A valid query, and what follows from its text alone.

    `text` is its canonical form. `sql` caches its translations by engine, `cached_route` its last
    route, `split` its split for incremental results, and `predicates` the columns by which it
    filters tables; `was_answered` is whether it was answered before. None of it keeps an old state
    of the lake alive.
    """

    query: GuardedQuery
    text: str
    clock: Clock
    day: date
    now: datetime
    sql: dict[tuple[str, ...], str] = field(default_factory=dict)
    cached_route: CachedRoute | None = None
    was_answered: bool = False
    split: SplitQuery | None = None
    predicates: Mapping[str, frozenset[str]] | None = None
    _has_bare_names: bool | None = None
    _time_ranges: dict[tuple[str, ...], dict[str, TimeRange]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> int:
        """The number of nodes of the query's tree."""
        return sum(1 for _ in self.query.tree.walk())

    @property
    def bytes(self) -> int:
        """The approximate memory that it takes."""
        texts = 4 * len(self.text) + sum(map(len, self.sql.values()))
        split = 0 if self.split is None else self.split.bytes
        return TEXT_BYTES + self.nodes * NODE_BYTES + texts + split

    @property
    def tables(self) -> tuple[str, ...]:
        """The stored tables that it mentions."""
        return tuple(self.query.tables)

    def check_names(self, heads: Mapping[str, TableHead]) -> None:
        """Refuse names that would be engine functions, because no table has such a column."""
        if self._has_bare_names is None:
            self._has_bare_names = has_bare_names(self.query.tree)
        if self._has_bare_names:
            refuse_bare_functions(self.query, {t: heads[t].columns for t in self.tables})

    def time_ranges(self, heads: Mapping[str, TableHead]) -> dict[str, TimeRange]:
        """Return the time range that the query can see of each table, over all references."""
        key = tuple(heads[table].schema_fingerprint for table in self.tables)
        if key not in self._time_ranges:
            self._time_ranges.clear()  # the columns changed; old schemas do not return
            self._time_ranges[key] = self._compute_time_ranges(
                {t: _to_timed_table(heads[t]) for t in self.tables}
            )
        return self._time_ranges[key]

    def _compute_time_ranges(self, timed: Mapping[str, TimedTable]) -> dict[str, TimeRange]:
        from sqlglot import exp

        # All engines are case-insensitive for names; the analysis compares them in lower case.
        lower = self.query.tree.copy()
        twins = {id(a): b for a, b in zip(self.query.tree.walk(), lower.walk(), strict=True)}
        for name in lower.find_all(exp.Identifier):
            name.set("this", name.name.lower())
        of_twin = find_time_ranges(lower, timed, self.now.replace(tzinfo=None))
        found = {one: of_twin[id(twin)] for one, twin in twins.items() if id(twin) in of_twin}
        ranges_by_table: dict[str, TimeRange] = {}
        for table, mentions in self.query.tables.items():
            seen = [found.get(id(mention), UNBOUNDED) for mention in mentions]
            merged = seen[0]
            for other in seen[1:]:
                merged = merged | other
            ranges_by_table[table] = merged
        return ranges_by_table


def _to_timed_table(head: TableHead) -> TimedTable:
    return TimedTable(head.time and head.time.lower(), frozenset(map(str.lower, head.columns)))


class QueryPreparer:
    """Prepares queries, and caches the most recently used ones, up to a number of bytes."""

    def __init__(self, bounds: SyntaxLimits | None = None) -> None:
        self._bounds = bounds
        self._cached: OrderedDict[tuple[object, ...], tuple[PreparedQuery, int]] = OrderedDict()
        self.bytes = 0
        self._lock = threading.Lock()  # long texts are prepared in threads

    def __call__(
        self, request: QueryRequest, heads: Mapping[str, TableHead], now: datetime
    ) -> PreparedQuery:
        """Return the prepared query. Raises QueryRefused; sends no request."""
        key = (request.sql, request.dialect, request.table_id, request.start_time)
        found, _ = self._cached.get(key, (None, 0))
        if found is not None and (found.clock is Clock.NEVER or found.day == now.date()):
            self._cache(key, found)
            return found
        prepared = _prepare(request, heads, now, self._bounds)
        # The effect of `start_time` depends on the tables' columns, which may change.
        is_cacheable = prepared.clock is not Clock.INSTANT and request.start_time is None
        if is_cacheable and len(request.sql) <= MAX_CACHED_LENGTH:
            self._cache(key, prepared)
        return prepared

    def _cache(self, key: tuple[object, ...], prepared: PreparedQuery) -> None:
        """Cache a query as the most recent one. Its size may have changed since the last time."""
        with self._lock:
            _, before = self._cached.pop(key, (None, 0))
            self._cached[key] = prepared, prepared.bytes
            self.bytes += self._cached[key][1] - before
            while len(self._cached) > MAX_CACHED or (
                self.bytes > MAX_CACHED_BYTES and len(self._cached) > 1
            ):
                _, (_, gone) = self._cached.popitem(last=False)
                self.bytes -= gone


def _prepare(
    request: QueryRequest,
    heads: Mapping[str, TableHead],
    now: datetime,
    bounds: SyntaxLimits | None,
) -> PreparedQuery:
    from sqlglot import exp

    query = guard(request.sql, request.dialect, bounds)
    for mention in (each for some in query.tables.values() for each in some):
        if mention.args.get("version") or mention.args.get("when"):
            raise QueryRefused("A query cannot name a version.", "Set `snapshot` in the request.")
    clock = pin_clock(query.tree, now)
    if request.start_time is not None:
        _apply_start_time(query, request, heads)
    if request.table_id is not None and request.table_id.lower() not in query.tables:
        raise QueryRefused(
            "table_id is no table of the query.", "Leave it out, or name one of them."
        )
    text = query.tree.sql(dialect=query.dialect, comments=False)
    assert isinstance(query.tree, exp.Query)
    return PreparedQuery(query, text, clock, now.date(), now)


def _apply_start_time(
    query: GuardedQuery, request: QueryRequest, heads: Mapping[str, TableHead]
) -> None:
    """Leave out rows before `start_time`: of the table `table_id`, or of all with a time."""
    from sqlglot import exp

    assert request.start_time is not None
    start = request.start_time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    for table, mentions in query.tables.items():
        head = heads.get(table)
        if head is None or head.time is None or request.table_id not in (None, table):
            continue
        word = {"timestamptz": "timestamptz", "date": "date"}.get(head.columns[head.time])
        literal_time = f"{start}+00:00" if word == "timestamptz" else start
        bound = exp.cast(exp.Literal.string(literal_time), word or "timestamp")
        if word == "date":
            # Keep the day of the start: a row of that day may be later than the start.
            bound = exp.cast(exp.Literal.string(start[:10]), "date")
        for number, mention in enumerate(mentions):
            alias = mention.alias or mention.name
            inner = mention.copy()
            inner.set("alias", None)
            column = exp.column(head.time, quoted=True)
            # No copies: the time ranges are looked up by the identity of this node.
            select = exp.select("*").from_(inner, copy=False).where(column >= bound, copy=False)
            mention.replace(select.subquery(alias, copy=False))
            mentions[number] = inner
