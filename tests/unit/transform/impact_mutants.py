"""The analysis with one of its guards taken out, each under the name of what it guards against."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlglot import exp
from tests.random_chains import DAY, NUMBER, Chain

from thermocline.transform.impact import (
    allow_list,
    joins,
    lineage,
    pruning,
    row_images,
    touch_queries,
)

Patch = pytest.MonkeyPatch


def _arguments(patch: Patch, kind: str, *more: str) -> None:
    patch.setitem(allow_list._ARGUMENTS, kind, allow_list._ARGUMENTS[kind] | set(more))


def _allow(patch: Patch, *kinds: str) -> None:
    patch.setattr(allow_list, "_ALLOWED", allow_list._ALLOWED | set(kinds))


def _limit(patch: Patch) -> None:
    _allow(patch, "Limit")
    _arguments(patch, "Select", "limit", "order")


def _distinct_on(patch: Patch) -> None:
    patch.setitem(allow_list._RULES, "Distinct", lambda node: None)
    _arguments(patch, "Distinct", "on")
    _arguments(patch, "Select", "order")


def _subqueries(patch: Patch) -> None:
    _allow(patch, "Exists")
    _arguments(patch, "In", "query")
    patch.setitem(allow_list._RULES, "Select", lambda node: None)
    patch.setitem(allow_list._RULES, "Column", lambda node: None)


def _rollup(patch: Patch) -> None:
    _allow(patch, "Rollup")
    _arguments(patch, "Group", "rollup")


def _sides(**words: str) -> Callable[[Patch], None]:
    def apply(patch: Patch) -> None:
        source = joins._parse_join

        def mutated(join: exp.Join) -> joins.JoinSource:
            found = source(join)
            return replace(found, side=words.get(found.side, found.side))

        patch.setattr(joins, "_parse_join", mutated)

    return apply


def _conditions(patch: Patch) -> None:
    def everything(
        self: joins.FromClause, joined: Any, source: joins.JoinSource
    ) -> list[joins.Conjunct]:
        return [*map(joins.Conjunct, source.on), *self.conditions_within([*joined, source])]

    patch.setattr(joins.FromClause, "join_conditions", everything)


def _kept(patch: Patch) -> None:
    def differing(*given: Any) -> exp.Select:
        found = original(*given)
        if found.args.get("group"):
            found.set("group", exp.Group(expressions=[value.copy() for value in given[4]]))
        return found

    original = touch_queries.select_differing
    patch.setattr(lineage, "select_differing", differing)


def _read_whole(patch: Patch) -> None:
    patch.setattr(pruning, "_find_whole_ctes", lambda *given: set())
    patch.setattr(
        pruning, "_is_always_column", lambda ways, visits: len(set(ways)) == 1 and ways[0].column
    )


def _ways(patch: Patch) -> None:
    patch.setattr(
        pruning, "_is_always_column", lambda ways, visits: any(way.column for way in ways)
    )


def _no_aggregates(patch: Patch) -> None:
    patch.setattr(lineage, "has_aggregate", lambda node: False)


def _windows_inside(patch: Patch) -> None:
    patch.setattr(lineage, "_find_crossing_windows", lambda select, values: [])


def _new_rows_only(patch: Patch) -> None:
    def now(source: exp.Expr, bound: Any) -> exp.Expr:
        return source.copy()

    patch.setattr(lineage, "build_old_and_new", now)


def _first_source_only(patch: Patch) -> None:
    patch.setattr(lineage.LineageTracer, "_trace_joined", lambda *given: [])


def _grouped_images(patch: Patch) -> None:
    patch.setattr(row_images, "_ROW_BY_ROW", ())
    patch.setattr(row_images, "has_aggregate", lambda node: False)


IN_KEYS = Chain(
    "select q.day, q.n as v0 from s.events as q where q.k in (select z.k from s.keys as z)",
    (("day", DAY), ("v0", NUMBER)),
)
MUTANTS: dict[str, tuple[Callable[[Patch], None], int, Chain | None]] = {
    "an aggregate names the part": (_no_aggregates, 47, None),
    "a window reaches across parts": (_windows_inside, 89, None),
    "an outer join supplies the part": (_sides(LEFT=""), 28, None),
    "a full join": (_sides(FULL="LEFT"), 238, None),
    "the right side of a join changes": (_first_source_only, 38, None),
    "a WHERE hides a row that found its partner": (_conditions, 1035, None),
    "rows of different meaning cancel out": (_kept, 1016, None),
    "rows that are gone on both sides": (_new_rows_only, 476, None),
    "an aggregate is taken for rows": (_grouped_images, 26, None),
    "LIMIT": (_limit, 142, None),
    "DISTINCT ON": (_distinct_on, 712, None),
    "a subquery in a condition": (_subqueries, 1, IN_KEYS),
    "ROLLUP": (_rollup, 66, None),
    "a CTE is read by something else as well": (_read_whole, 901, None),
    "one mention is reached in two ways": (_ways, 666, None),
}
"""What is no longer guarded against: how, and a seed whose query shows it.

Where chains seldom have what shows it, the query is given, and the seed is that of the tables.
"""


@contextmanager
def mutant(name: str) -> Iterator[tuple[int, Chain | None]]:
    """The analysis without one guard; gives the seed to begin with, and the query if it is one."""
    apply, seed, asked = MUTANTS[name]
    with pytest.MonkeyPatch.context() as patch:
        apply(patch)
        yield seed, asked
