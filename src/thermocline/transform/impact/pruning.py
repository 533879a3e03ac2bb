"""Find the references to stored tables that need only the rows of the requested parts.

A query for a few days of its target should read a few days of its sources. Where the values that
identify the parts arrive at a stored table as one of its columns, rows with other values cannot
reach the requested parts. This must hold on every path to the reference: a CTE may be read several
times, and sometimes for the rows of other parts, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from sqlglot import exp

from thermocline.transform.impact.bound_query import POSITION, BoundQuery
from thermocline.transform.impact.lineage import LineageTracer, TracedColumn

_ROOT = ""


@dataclass(frozen=True)
class SourceFilter:
    """A reference to a stored table whose rows reach only the part that one of its columns names.

    `position` counts the references in the query's text. With `day`, the part is the column's day.
    """

    position: int
    table: str
    column: str
    day: bool


def find_source_filters(tracer: LineageTracer, bound: BoundQuery) -> list[SourceFilter]:
    """Return the references that the traced values reach as one column, on every path."""
    cte_references = Counter(tracer.cte_references)
    visits = Counter({_ROOT: 1})
    for _, reference in _find_references(bound):
        visits[reference.name.lower()] += cte_references[id(reference)]
    whole_ctes = _find_whole_ctes(bound, cte_references, visits)
    traced: dict[int, list[TracedColumn]] = {}
    for each in tracer.traced_columns:
        traced.setdefault(each.position, []).append(each)
    found = []
    for owner, table in _find_references(bound, stored=True):
        columns = traced.get(table.meta[POSITION], [])
        if owner not in whole_ctes and _is_always_column(columns, visits[owner]):
            column = columns[0]
            found.append(SourceFilter(column.position, column.table, column.column, column.day))
    return found


def _is_always_column(traced: list[TracedColumn], visits: int) -> bool:
    """Return whether the values arrived as the same column on every visit of a reference."""
    return len(traced) == visits and len(set(traced)) == 1 and bool(traced[0].column)


def _find_whole_ctes(
    bound: BoundQuery, cte_references: Counter[int], visits: Counter[str]
) -> set[str]:
    """Return the CTEs that some reader needs with the rows of all parts."""
    whole_ctes: set[str] = set()
    for _ in range(len(bound.ctes) + 1):
        for owner, reference in _find_references(bound):
            if owner in whole_ctes or cte_references[id(reference)] != visits[owner]:
                whole_ctes.add(reference.name.lower())
    return whole_ctes


def _find_references(bound: BoundQuery, *, stored: bool = False) -> Iterator[tuple[str, exp.Table]]:
    """Yield the references to CTEs, or to stored tables, each with the CTE that holds it."""
    for owner, query in ((_ROOT, bound.query), *bound.ctes.items()):
        for table in query.find_all(exp.Table):
            if bool(table.db) is stored:
                yield owner, table
