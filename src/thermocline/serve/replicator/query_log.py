"""A decaying log of queries: which tables are queried most, and which together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

HALF_LIFE = 3600.0
"""Seconds after which a query counts half."""

PAIR_QUERIES = 3.0
"""How many queries must join two tables to make them a pair."""

_FORGET_BELOW = 0.5
_MAX_TABLES = 20


class QueryLog:
    """Query counts by table and by pair of tables, which decay over time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._at = clock()
        self._hits: dict[str, float] = {}
        self._pairs: dict[tuple[str, str], float] = {}
        self._together: set[tuple[str, str]] = set()

    def record(self, tables: Iterable[str], times: int = 1) -> None:
        """Count queries that read these tables."""
        self._decay()
        # A query over very many tables does not show which belong together.
        names = sorted(set(tables))[:_MAX_TABLES]
        for table in names:
            self._hits[table] = self._hits.get(table, 0.0) + times
        for pair in combinations(names, 2):
            self._pairs[pair] = self._pairs.get(pair, 0.0) + times
            if self._pairs[pair] >= PAIR_QUERIES:
                self._together.add(pair)

    def weight(self, table: str) -> float:
        """Return how often a table was queried recently."""
        return self._hits.get(table, 0.0)

    def group_tables(self, sizes: Mapping[str, int], limit: int) -> dict[str, str]:
        """Return for each table the one that it is placed with: the first of its group by name.

        Groups grow by the most frequent pair, as long as the group fits on one node. A pair lasts
        until its count has nearly decayed, so that tables do not move often.
        """
        group = {table: [table] for table in sizes}
        pairs = [p for p in self._together if p[0] in sizes and p[1] in sizes]
        for one, other in sorted(pairs, key=lambda pair: (-self._pairs[pair], pair)):
            both = sorted({*group[one], *group[other]})
            if sum(sizes[table] for table in both) <= limit:
                group.update(dict.fromkeys(both, both))
        return {table: members[0] for table, members in group.items()}

    def _decay(self) -> None:
        now = self._clock()
        passed = now - self._at
        if passed < HALF_LIFE / 100:
            return
        self._at = now
        share = 0.5 ** (passed / HALF_LIFE)
        self._hits = {t: hits * share for t, hits in self._hits.items() if hits * share > 0.01}
        self._pairs = {p: n * share for p, n in self._pairs.items() if n * share > _FORGET_BELOW}
        self._together &= self._pairs.keys()
