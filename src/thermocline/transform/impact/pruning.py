"""Which mentions of stored tables need only the rows of the parts that are asked for?

A query that is asked for a few days of its target should read a few days of its sources. Where
the values that name the parts arrive at a stored table as a column of it, a row of another value
cannot reach the asked parts. That must hold on every way by which the mention is read: a CTE may
be read by several, and by some of them for the rows of other parts, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from thermocline.transform.impact.bound_query import PLACE, Bound
from thermocline.transform.impact.lineage import Arrival, Carry

_ROOT = ""


@dataclass(frozen=True)
class Filter:
    """A mention of a stored table whose rows reach only the part that a column of theirs names.

    `place` counts the mentions through the query's text; with `day` the part is the column's day.
    """

    place: int
    table: str
    column: str
    day: bool


def filters_of(carry: Carry, bound: Bound) -> list[Filter]:
    """The mentions to which the values of a carry came, as one column, whenever they are read."""
    entries = Counter(carry.entries)
    visits = Counter({_ROOT: 1})
    for _, reference in _mentions(bound):
        visits[reference.name.lower()] += entries[id(reference)]
    whole = _read_whole(bound, entries, visits)
    arrived: dict[int, list[Arrival]] = {}
    for arrival in carry.arrivals:
        arrived.setdefault(arrival.place, []).append(arrival)
    found = []
    for owner, table in _mentions(bound, stored=True):
        ways = arrived.get(table.meta[PLACE], [])
        if owner not in whole and _always(ways, visits[owner]):
            way = ways[0]
            found.append(Filter(way.place, way.table, way.column, way.day))
    return found


def _always(ways: list[Arrival], visits: int) -> bool:
    """Whether the values came as one and the same column, each time that a mention was read."""
    return len(ways) == visits and len(set(ways)) == 1 and bool(ways[0].column)


def _read_whole(bound: Bound, entries: Counter[int], visits: Counter[str]) -> set[str]:
    """The CTEs that something reads for the rows of all parts."""
    whole: set[str] = set()
    for _ in range(len(bound.ctes) + 1):
        for owner, reference in _mentions(bound):
            if owner in whole or entries[id(reference)] != visits[owner]:
                whole.add(reference.name.lower())
    return whole


def _mentions(bound: Bound, *, stored: bool = False) -> Iterator[tuple[str, exp.Table]]:
    """The mentions of CTEs, or of stored tables, each with the CTE that it stands in."""
    for owner, query in ((_ROOT, bound.query), *bound.ctes.items()):
        for table in query.find_all(exp.Table):
            if bool(table.db) is stored:
                yield owner, table
