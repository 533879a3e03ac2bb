"""Does every window of a query stay inside one part of the target? Decided from the SQL alone.

A window reaches rows beyond the one it stands for. Computing only some parts gives the same rows
only if it never reaches into another part: its PARTITION BY must hold the very column, at that
place in the query, from which the target's column comes. So the target is followed from the output
down through renames, stars, CTEs, derived tables and unions, and where it cannot be followed a
window is taken to reach across.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from sqlglot import exp

from thermocline.transform.lineage import output, sources


def stay_inside(query: exp.Query, target: Sequence[str], days: Collection[str] = ()) -> bool:
    """Whether no window reaches across parts, which `target` columns name; `days` by their day."""
    windows = list(query.find_all(exp.Window))
    if not windows:
        return True
    traces = []
    for name in target:
        trace = _Trace(query)
        trace.follow(query, name, day=name in days)
        traces.append(trace.met)
    return all(_inside(window, trace) for window in windows for trace in traces)


def _inside(window: exp.Window, met: dict[int, set[str]]) -> bool:
    select = window.find_ancestor(exp.Select)
    if select is None:
        return False
    cut = {_text(select, each) for each in window.args.get("partition_by") or ()}
    values = met.get(id(select), set())
    return bool(values & cut)


class _Trace:
    """Where one output column comes from: for each SELECT on the way, the texts that decide it."""

    def __init__(self, query: exp.Query) -> None:
        ctes = list(query.find_all(exp.CTE))
        names = [cte.alias_or_name for cte in ctes]
        self._ctes = {cte.alias_or_name: cte.this for cte in ctes if names.count(cte.alias) == 1}
        self._depth = 0
        self.met: dict[int, set[str]] = defaultdict(set)

    def follow(self, query: exp.Expr | None, name: str, *, day: bool) -> None:
        """Follow an output column of a query; with `day` only its day matters."""
        self._depth += 1
        if self._depth > 200:  # a recursive CTE
            return
        if isinstance(query, exp.Subquery):
            self.follow(query.this, name, day=day)
        elif isinstance(query, exp.SetOperation):
            names = [each.alias_or_name.lower() for each in query.selects]
            if names.count(name.lower()) == 1:
                for branch in (query.left, query.right):
                    chosen = branch.selects[names.index(name.lower())]
                    self.follow(branch, chosen.alias_or_name, day=day)
        elif isinstance(query, exp.Select):
            self._select(query, name, day)

    def _select(self, select: exp.Select, name: str, day: bool) -> None:
        value = output(select, name)
        if value is None:
            return
        if id(select) in self.met and _text(select, value) not in self.met[id(select)]:
            self.met[id(select)] = {""}  # read in two ways, of which a window can keep one only
            return
        self.met[id(select)].add(_text(select, value))
        if day:
            self.met[id(select)].add(_text(select, _day(value)))
        if isinstance(value, exp.Cast) and value.to.is_type(exp.DataType.Type.DATE):
            value, day = value.this, True
        if isinstance(value, exp.Column):
            self.follow(self._source(select, value), value.name, day=day)

    def _source(self, select: exp.Select, column: exp.Column) -> exp.Expr | None:
        found = sources(select)
        if column.table:
            found = [each for each in found if each.alias_or_name.lower() == column.table.lower()]
        if len(found) != 1:
            return None
        (source,) = found
        if isinstance(source, exp.Table):
            return None if source.db else self._ctes.get(source.name)
        return source


def _day(value: exp.Expr) -> exp.Expr:
    return exp.cast(value.copy(), exp.DataType.Type.DATE)


def _text(select: exp.Select, value: exp.Expr) -> str:
    """An expression's text; who it belongs to is part of it where there are several sources."""
    copy = value.copy()
    if len(sources(select)) == 1:
        for column in copy.find_all(exp.Column):
            column.set("table", None)
    return str(copy.sql("duckdb", normalize=True)).lower()
