"""Trace the columns that identify a target's parts down a query, to the changed rows.

`LineageTracer.trace_query(q, values)` returns queries that together find every value of `values`
(expressions over the columns of q) for which the rows of q may have changed. It has one rule per
operator:

- A filter, DISTINCT or a set operation never moves a row to another value: its input finds the
  values. So a filter on a computed value is ignored.
- A projection: the values are replaced by the expressions that compute them.
- GROUP BY: the values must be determined by the grouping. Then all rows of a group have one value,
  and so does every aggregate over them.
- A window's PARTITION BY: the same if it determines the values. If it does not, the values of all
  rows in the windows that a change reaches are looked up.
- A join: rows whose value comes from the left side change when that side changes, or when their
  matches on the right change. The current left rows are joined with the changed rows of the right;
  or, if the right side computes its rows, with the changed values of its join key. (An old left row
  that is not a current row is a change of the left side itself.)

Every other construct raises Unsafe. A part that is found in excess only costs time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.transform.impact.allow_list import has_aggregate
from thermocline.transform.impact.bound_query import POSITION, BoundQuery, find_stored_tables
from thermocline.transform.impact.joins import (
    Conjunct,
    FromClause,
    JoinSource,
    move_values,
    parse_from_clause,
    to_sql,
)
from thermocline.transform.impact.row_images import (
    build_images,
    build_old_and_new,
    reference_changed_rows,
    resolve_inner_query,
    table_name,
    unwrap,
)
from thermocline.transform.impact.touch_queries import (
    TouchQuery,
    select_differing,
    select_matching,
    select_values,
)
from thermocline.transform.impact.unsafe import Unsafe

MAX_TOUCHES = 200
"""A query with more references to its sources, after expanding CTEs, is computed in full."""


@dataclass(frozen=True)
class TracedColumn:
    """How traced values arrive at a reference to a stored table: as a column, or as its day.

    The column is empty if they are any other expression.
    """

    position: int
    table: str
    column: str
    day: bool


@dataclass
class LineageTracer:
    """Traces values down a bound query.

    `traced_columns` and `cte_references` (the ids of the references to CTEs on the path) are
    recorded only for paths on which rows of other values can be pruned.
    """

    bound: BoundQuery
    traced_columns: list[TracedColumn] = field(default_factory=list)
    cte_references: list[int] = field(default_factory=list)

    def trace_query(self, query: exp.Query, values: Sequence[exp.Expr]) -> list[TouchQuery]:
        """Return queries that find the changed `values`, which are over the query's outputs."""
        if isinstance(query, exp.Subquery):
            return self.trace_query(unwrap(query), values)
        if isinstance(query, exp.SetOperation):
            return self._trace_branches(query, values)
        if isinstance(query, exp.Select):
            return self._trace_select(query, values)
        raise Unsafe(type(query).__name__.upper())

    def _trace_branches(
        self, query: exp.SetOperation, values: Sequence[exp.Expr]
    ) -> list[TouchQuery]:
        _require_same_types(query, values)
        return _limit_touches(
            [
                touch
                for each in (query.left, query.right)
                for touch in self.trace_query(each, values)
            ]
        )

    def _trace_select(self, select: exp.Select, values: Sequence[exp.Expr]) -> list[TouchQuery]:
        outputs = {each.alias_or_name.lower(): each.unalias() for each in select.selects}
        values = [_substitute_outputs(value, outputs) for value in values]
        if any(has_aggregate(value) or value.find(exp.Window) for value in values):
            raise Unsafe("a partition or key that is an aggregate or a window")
        if not any(value.find(exp.Column) for value in values):
            return self._touch_all(select, values)
        from_clause, crossing = parse_from_clause(select), _find_crossing_windows(select, values)
        if not crossing:
            return _limit_touches(self._trace_from(select, from_clause, values))
        separate = LineageTracer(self.bound)  # it needs rows of other values: nothing is pruned
        touches = separate._trace_from(select, from_clause, values)
        for by in crossing:
            touches += separate._trace_windows(select, from_clause, by, values)
        return _limit_touches(touches)

    def _touch_all(self, select: exp.Select, values: Sequence[exp.Expr]) -> list[TouchQuery]:
        """Touch the one value that all rows have, on any change of a source."""
        return [
            TouchQuery(table, select_values(values, [reference_changed_rows(table)]))
            for table in sorted(self._find_tables(select))
        ]

    def _find_tables(self, node: exp.Expr) -> set[str]:
        found = {table_name(each) for each in find_stored_tables(node)}
        for table in node.find_all(exp.Table):
            if not table.db:
                found |= self._find_tables(self.bound.ctes[table.name.lower()])
        return found

    def _trace_from(
        self, select: exp.Select, from_clause: FromClause, values: Sequence[exp.Expr]
    ) -> list[TouchQuery]:
        """Apply the rule for joins, source by source; see the module docstring."""
        base, values = from_clause.find_base(values)
        if base is None:
            touches, joined = self._touch_core(select, from_clause, values), list(from_clause.core)
        else:
            touches, joined = self._trace_source(base, values), [base]
            for source in from_clause.order_core(base):
                touches += self._trace_joined(select, from_clause, joined, source, values)
                joined.append(source)
        for source in from_clause.later:
            touches += self._trace_joined(select, from_clause, joined, source, values)
            joined.append(source)
        return touches

    def _trace_windows(
        self,
        select: exp.Select,
        from_clause: FromClause,
        by: Sequence[exp.Expr],
        values: Sequence[exp.Expr],
    ) -> list[TouchQuery]:
        """Find the values of all rows in the windows that a change reaches."""
        sources = [*from_clause.order_core(from_clause.core[0])]
        every = [from_clause.core[0], *sources, *from_clause.later]
        return [
            TouchQuery(touch.table, select_matching(from_clause, every, values, touch, by))
            for touch in self._trace_from(select, from_clause, by)
        ]

    def _trace_source(self, source: JoinSource, values: Sequence[exp.Expr]) -> list[TouchQuery]:
        """Trace the values into one source; they are expressions over its columns."""
        node = source.node
        if isinstance(node, exp.Table) and node.db:
            return [self._touch_stored(node, values)]
        inner = resolve_inner_query(node, self.bound)
        assert inner is not None
        bare = [_remove_tables(value) for value in values]
        if isinstance(node, exp.Table):
            self.cte_references.append(id(node))
        return self.trace_query(inner, bare)

    def _touch_stored(self, table: exp.Table, values: Sequence[exp.Expr]) -> TouchQuery:
        name = table_name(table)
        source = build_images(table, self.bound)[0][1]
        query = select_values(values, [source])
        column, day = _match_column(values[0]) if len(values) == 1 else ("", False)
        self.traced_columns.append(TracedColumn(table.meta[POSITION], name, column, day))
        return TouchQuery(name, query, column, day)

    def _trace_joined(
        self,
        select: exp.Select,
        from_clause: FromClause,
        joined: Sequence[JoinSource],
        source: JoinSource,
        values: Sequence[exp.Expr],
    ) -> list[TouchQuery]:
        """Find the values of joined rows whose matches in `source` change with it."""
        if isinstance(source.node, exp.Unnest):
            return []  # its rows depend only on the joined row itself
        conditions = from_clause.join_conditions(joined, source)
        moved = move_values(source, joined, conditions, values)
        if moved is not None:
            traced_columns, cte_references = len(self.traced_columns), len(self.cte_references)
            try:
                return self._trace_source(source, moved)
            except Unsafe:
                del self.traced_columns[traced_columns:], self.cte_references[cte_references:]
        separate = LineageTracer(self.bound)  # its paths decide nothing about pruning
        try:
            changed = build_images(source.node, self.bound)
        except Unsafe:
            return separate._trace_join_key(from_clause, joined, source, values, conditions)
        own = [c for c in conditions if source.alias in c.aliases]
        return [
            TouchQuery(
                table,
                select_differing(select, from_clause, joined, source.with_node(image), values, own),
            )
            for table, image in changed
        ]

    def _trace_join_key(
        self,
        from_clause: FromClause,
        joined: Sequence[JoinSource],
        source: JoinSource,
        values: Sequence[exp.Expr],
        conditions: Sequence[Conjunct],
    ) -> list[TouchQuery]:
        """Do the same for a source of computed rows, by the changed values of its join key."""
        usable, reason = [], "no equality"
        for pair in (c.match_equality(joined, source) for c in conditions):
            if pair is None:
                continue
            try:
                self._trace_source(source, [pair.there])
                usable.append(pair)
            except Unsafe as unsafe:
                reason = unsafe.reason
        if not usable:
            raise Unsafe(f"a join to {source.alias} whose key cannot be followed: {reason}")
        here = [pair.here for pair in usable]
        return [
            TouchQuery(touch.table, select_matching(from_clause, joined, values, touch, here))
            for touch in self._trace_source(source, [pair.there for pair in usable])
        ]

    def _touch_core(
        self, select: exp.Select, from_clause: FromClause, values: Sequence[exp.Expr]
    ) -> list[TouchQuery]:
        """Find the values that several inner-joined sources supply together.

        A joined row that appears or disappears consists of a changed row of one source, and of old
        or current rows of the others.
        """
        touches = []
        for source in from_clause.core:
            if isinstance(source.node, exp.Unnest):
                continue
            others = [
                each
                if isinstance(each.node, exp.Unnest)
                else each.with_node(build_old_and_new(each.node, self.bound))
                for each in from_clause.core
                if each is not source
            ]
            others.sort(key=lambda each: isinstance(each.node, exp.Unnest))
            for table, image in build_images(source.node, self.bound):
                query = select_differing(
                    select,
                    from_clause,
                    others,
                    source.with_node(image),
                    values,
                    from_clause.conditions_within(from_clause.core),
                )
                touches.append(TouchQuery(table, query))
        return touches


def _substitute_outputs(value: exp.Expr, outputs: Mapping[str, exp.Expr]) -> exp.Expr:
    """Replace output columns in an expression by the expressions that compute them."""

    def substitute(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        if node.name.lower() not in outputs:
            raise Unsafe(f"{node.name}, a column whose origin cannot be followed")
        return outputs[node.name.lower()].copy()

    return _simplify_day(value.copy().transform(substitute, copy=False))


def _simplify_day(value: exp.Expr) -> exp.Expr:
    """Remove casts to a date from values that are dates."""
    if isinstance(value, exp.Cast) and value.to.is_type(exp.DataType.Type.DATE):
        inner = value.this.unnest()
        if family(inner) == "date":
            return _simplify_day(inner)
    return value


def _require_same_types(query: exp.SetOperation, values: Sequence[exp.Expr]) -> None:
    """Require that a set operation converts no value of its branches."""
    used = {column.name.lower() for value in values for column in value.find_all(exp.Column)}
    for left, right in zip(query.left.selects, query.right.selects, strict=True):
        kinds = {family(left.unalias()), family(right.unalias())} - {"null"}
        if left.alias_or_name.lower() in used and len(kinds) > 1:
            raise Unsafe(f"{left.alias_or_name}, of different types in the branches")


def _remove_tables(value: exp.Expr) -> exp.Expr:
    """Turn an expression over a source's columns into one over its query's output columns."""
    copy = value.copy()
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    return copy


def _find_crossing_windows(
    select: exp.Select, values: Sequence[exp.Expr]
) -> list[Sequence[exp.Expr]]:
    """Return the PARTITION BY of each window that holds rows of several values."""
    found: dict[str, Sequence[exp.Expr]] = {}
    for window in select.find_all(exp.Window):
        by = window.args.get("partition_by") or []
        if window.parent_select is not select or all(
            _is_determined_by(value, {to_sql(each) for each in by}) for value in values
        ):
            continue
        if not by or select.args.get("group"):
            raise Unsafe("a window that reaches across partitions")
        found[", ".join(map(to_sql, by))] = by
    return list(found.values())


def _is_determined_by(value: exp.Expr, determining: set[str]) -> bool:
    """Return whether rows with equal `determining` expressions have equal values."""
    if to_sql(value) in determining:
        return True
    if isinstance(value, exp.Column):
        return False
    return all(_is_determined_by(each, determining) for each in value.iter_expressions())


def _match_column(value: exp.Expr) -> tuple[str, bool]:
    """Return the column that a value is, or is the day of; empty for any other expression."""
    if isinstance(value, exp.Cast) and value.to.is_type(exp.DataType.Type.DATE):
        inner = value.this
        timed = family(inner) in {"timestamp", "timestamptz"}
        return (inner.name, True) if isinstance(inner, exp.Column) and timed else ("", False)
    return (value.name, False) if isinstance(value, exp.Column) else ("", False)


def _limit_touches(touches: list[TouchQuery]) -> list[TouchQuery]:
    if len(touches) > MAX_TOUCHES:
        raise Unsafe("its sources are referenced too often")
    return touches
