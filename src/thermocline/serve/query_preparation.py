"""A question made ready: guarded, its clock pinned, its start narrowed, and kept for the next time.

Dashboards ask the same texts again and again. What a text means is worked out once and kept for as
long as it stays true: for ever when it never looks at the clock, for the day when it asks for the
date, not at all when it asks for the time.
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
"""Texts and their trees take memory: of longer ones, which nobody types again, none is kept."""
NODE_BYTES = 450
"""About how much memory a node of a tree takes."""
TEXT_BYTES = 3_000
"""About how much a text takes beside its trees: its route, its times, its place among others."""


@dataclass
class PreparedQuery:
    """A question that may be asked, and what follows from its text alone.

    `text` is its canonical spelling: two spellings of one question have the same. `sql` keeps its
    translations by engine, `routed` is where it went last, `repeated` whether it was answered
    before, and `parted` what `parts` has made of it. None of it holds on to what was once known of
    the lake.
    """

    question: GuardedQuery
    text: str
    clock: Clock
    day: date
    now: datetime
    sql: dict[tuple[str, ...], str] = field(default_factory=dict)
    cached_route: CachedRoute | None = None
    was_answered: bool = False
    split: SplitQuery | None = None
    _has_bare_names: bool | None = None
    _time_ranges: dict[tuple[str, ...], dict[str, TimeRange]] = field(default_factory=dict)

    @cached_property
    def nodes(self) -> int:
        """How many nodes the question's tree has."""
        return sum(1 for _ in self.question.tree.walk())

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        texts = 4 * len(self.text) + sum(map(len, self.sql.values()))
        split = 0 if self.split is None else self.split.bytes
        return TEXT_BYTES + self.nodes * NODE_BYTES + texts + split

    @property
    def tables(self) -> tuple[str, ...]:
        """The stored tables that it mentions."""
        return tuple(self.question.tables)

    def check_names(self, heads: Mapping[str, TableHead]) -> None:
        """Refuse a name that is a function of the engine's where the tables have no such column."""
        if self._has_bare_names is None:
            self._has_bare_names = has_bare_names(self.question.tree)
        if self._has_bare_names:
            refuse_bare_functions(self.question, {t: heads[t].columns for t in self.tables})

    def time_ranges(self, heads: Mapping[str, TableHead]) -> dict[str, TimeRange]:
        """Which time of each table the question can see, all its mentions together."""
        key = tuple(heads[table].schema_fingerprint for table in self.tables)
        if key not in self._time_ranges:
            self._time_ranges.clear()  # columns changed; what they were does not come back
            self._time_ranges[key] = self._compute_time_ranges(
                {t: _to_timed_table(heads[t]) for t in self.tables}
            )
        return self._time_ranges[key]

    def _compute_time_ranges(self, timed: Mapping[str, TimedTable]) -> dict[str, TimeRange]:
        from sqlglot import exp

        # All engines here take names in any case; whoever compares them gets them in one.
        lower = self.question.tree.copy()
        twins = {id(a): b for a, b in zip(self.question.tree.walk(), lower.walk(), strict=True)}
        for name in lower.find_all(exp.Identifier):
            name.set("this", name.name.lower())
        of_twin = find_time_ranges(lower, timed, self.now.replace(tzinfo=None))
        found = {one: of_twin[id(twin)] for one, twin in twins.items() if id(twin) in of_twin}
        hulls: dict[str, TimeRange] = {}
        for table, mentions in self.question.tables.items():
            seen = [found.get(id(mention), UNBOUNDED) for mention in mentions]
            hull = seen[0]
            for other in seen[1:]:
                hull = hull | other
            hulls[table] = hull
        return hulls


def _to_timed_table(head: TableHead) -> TimedTable:
    return TimedTable(head.time and head.time.lower(), frozenset(map(str.lower, head.columns)))


class QueryPreparer:
    """Makes questions ready, and keeps the most recent ones, up to a number of bytes."""

    def __init__(self, bounds: SyntaxLimits | None = None) -> None:
        self._bounds = bounds
        self._cached: OrderedDict[tuple[object, ...], tuple[PreparedQuery, int]] = OrderedDict()
        self.bytes = 0
        self._lock = threading.Lock()  # long texts are prepared beside the loop

    def __call__(
        self, ask: QueryRequest, heads: Mapping[str, TableHead], now: datetime
    ) -> PreparedQuery:
        """The prepared question. Raises Refused; asks nobody."""
        key = (ask.sql, ask.dialect, ask.table_id, ask.start_time)
        found, _ = self._cached.get(key, (None, 0))
        if found is not None and (found.clock is Clock.NEVER or found.day == now.date()):
            self._cache(key, found)
            return found
        prepared = _prepare(ask, heads, now, self._bounds)
        # What `start_time` leaves out depends on the tables' columns, which may change.
        lasting = prepared.clock is not Clock.INSTANT and ask.start_time is None
        if lasting and len(ask.sql) <= MAX_CACHED_LENGTH:
            self._cache(key, prepared)
        return prepared

    def _cache(self, key: tuple[object, ...], prepared: PreparedQuery) -> None:
        """Keep a question as the most recent one. It may have grown since it was kept before."""
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
    ask: QueryRequest, heads: Mapping[str, TableHead], now: datetime, bounds: SyntaxLimits | None
) -> PreparedQuery:
    from sqlglot import exp

    question = guard(ask.sql, ask.dialect, bounds)
    for mention in (each for some in question.tables.values() for each in some):
        if mention.args.get("version") or mention.args.get("when"):
            raise QueryRefused(
                "A query cannot name a version.", "Give `snapshot` beside the query."
            )
    clock = pin_clock(question.tree, now)
    if ask.start_time is not None:
        _apply_start_time(question, ask, heads)
    if ask.table_id is not None and ask.table_id.lower() not in question.tables:
        raise QueryRefused(
            "table_id is no table of the query.", "Leave it out, or name one of them."
        )
    text = question.tree.sql(dialect=question.dialect, comments=False)
    assert isinstance(question.tree, exp.Query)
    return PreparedQuery(question, text, clock, now.date(), now)


def _apply_start_time(
    question: GuardedQuery, ask: QueryRequest, heads: Mapping[str, TableHead]
) -> None:
    """Leave out the rows before `start_time`: of the table that is named, or of all with a time."""
    from sqlglot import exp

    assert ask.start_time is not None
    start = ask.start_time.astimezone(UTC).replace(tzinfo=None).isoformat(" ", "microseconds")
    for table, mentions in question.tables.items():
        head = heads.get(table)
        if head is None or head.time is None or ask.table_id not in (None, table):
            continue
        word = {"timestamptz": "timestamptz", "date": "date"}.get(head.columns[head.time])
        stamp = f"{start}+00:00" if word == "timestamptz" else start
        bound = exp.cast(exp.Literal.string(stamp), word or "timestamp")
        if word == "date":
            # A day counts when the start lies in it: a row of that day may be later.
            bound = exp.cast(exp.Literal.string(start[:10]), "date")
        for number, mention in enumerate(mentions):
            alias = mention.alias or mention.name
            inner = mention.copy()
            inner.set("alias", None)
            column = exp.column(head.time, quoted=True)
            # Not copied on the way: the spans are looked up by this very node.
            select = exp.select("*").from_(inner, copy=False).where(column >= bound, copy=False)
            mention.replace(select.subquery(alias, copy=False))
            mentions[number] = inner
