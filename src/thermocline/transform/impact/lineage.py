"""Follow the columns that name a target's parts down a query, to what changed.

`Carry.query(q, values)` gives queries that together name every value of `values` (expressions over
the columns of q) for which the rows of q may differ from before. Its rules, one an operator:

- A filter, DISTINCT or a set operation never moves a row to another value: what is below it names
  the values. So a filter on a computed value takes no part in finding them.
- A projection: the values are replaced by what computes them.
- GROUP BY: the values follow from what is grouped by. All rows of a group have one value then, and
  whatever is computed over them belongs to it.
- A window's PARTITION BY: the same where the values follow from it. Where they do not, all rows of
  the windows that a change reaches are looked up.
- A join: rows whose value comes from the left side change when that side does, or when what they
  find on the right changes. The left rows of now are joined with the changed rows of the right;
  or, where the right side computes its rows, with the changed values of what they are joined by.
  (A left row of before that is no row of now is a change of the left side itself.)

Every other construct raises Unsafe. Naming a part too many is only slower.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.transform.impact.allow_list import aggregates
from thermocline.transform.impact.bound_query import PLACE, Bound, stored_tables
from thermocline.transform.impact.errors import Unsafe
from thermocline.transform.impact.joins import (
    Conjunct,
    From,
    Source,
    moved_to,
    shape_of,
    text,
)
from thermocline.transform.impact.row_images import (
    changed_rows,
    either,
    images,
    inner_query,
    table_name,
    unwrapped,
)
from thermocline.transform.impact.touch_queries import Touch, beside_found, differing, select_values

MOST_TOUCHES = 200
"""A query that mentions its sources more often than this, CTEs written out, is computed whole."""


@dataclass(frozen=True)
class Arrival:
    """The values came to a mention of a stored table as a column of it, or as the day of one.

    Without a column they are something else there.
    """

    place: int
    table: str
    column: str
    day: bool


@dataclass
class Carry:
    """The way of some values down a bound query.

    `arrivals` and `entries` (the mentions of CTEs that the values came by) are kept for those ways
    alone on which rows of other values can be left out.
    """

    bound: Bound
    arrivals: list[Arrival] = field(default_factory=list)
    entries: list[int] = field(default_factory=list)

    def query(self, query: exp.Query, values: Sequence[exp.Expr]) -> list[Touch]:
        """What names the changed values, which are expressions over the query's output columns."""
        if isinstance(query, exp.Subquery):
            return self.query(unwrapped(query), values)
        if isinstance(query, exp.SetOperation):
            return self._branches(query, values)
        if isinstance(query, exp.Select):
            return self._select(query, values)
        raise Unsafe(type(query).__name__.upper())

    def _branches(self, query: exp.SetOperation, values: Sequence[exp.Expr]) -> list[Touch]:
        _require_same_kinds(query, values)
        return _within_bounds(
            [touch for each in (query.left, query.right) for touch in self.query(each, values)]
        )

    def _select(self, select: exp.Select, values: Sequence[exp.Expr]) -> list[Touch]:
        outputs = {each.alias_or_name.lower(): each.unalias() for each in select.selects}
        values = [_replaced(value, outputs) for value in values]
        if any(aggregates(value) or value.find(exp.Window) for value in values):
            raise Unsafe("a partition or key that is an aggregate or a window")
        if not any(value.find(exp.Column) for value in values):
            return self._constant(select, values)
        shape, across = shape_of(select), _windows_across(select, values)
        if not across:
            return _within_bounds(self._from(select, shape, values))
        beside = Carry(self.bound)  # rows of other values are needed: none can be left out
        touches = beside._from(select, shape, values)
        for by in across:
            touches += beside._of_windows(select, shape, by, values)
        return _within_bounds(touches)

    def _constant(self, select: exp.Select, values: Sequence[exp.Expr]) -> list[Touch]:
        """All rows have one value: any change below touches it."""
        return [
            Touch(table, select_values(values, [changed_rows(table)]))
            for table in sorted(self._tables(select))
        ]

    def _tables(self, node: exp.Expr) -> set[str]:
        found = {table_name(each) for each in stored_tables(node)}
        for table in node.find_all(exp.Table):
            if not table.db:
                found |= self._tables(self.bound.ctes[table.name.lower()])
        return found

    def _from(self, select: exp.Select, shape: From, values: Sequence[exp.Expr]) -> list[Touch]:
        """The rule for joins, source by source; see the module."""
        base, values = shape.base_of(values)
        if base is None:
            touches, joined = self._images_of_core(select, shape, values), list(shape.core)
        else:
            touches, joined = self._source(base, values), [base]
            for source in shape.core_after(base):
                touches += self._found(select, shape, joined, source, values)
                joined.append(source)
        for source in shape.after:
            touches += self._found(select, shape, joined, source, values)
            joined.append(source)
        return touches

    def _of_windows(
        self, select: exp.Select, shape: From, by: Sequence[exp.Expr], values: Sequence[exp.Expr]
    ) -> list[Touch]:
        """The values of all rows in the windows that a change reaches."""
        sources = [*shape.core_after(shape.core[0])]
        every = [shape.core[0], *sources, *shape.after]
        return [
            Touch(touch.table, beside_found(shape, every, values, touch, by))
            for touch in self._from(select, shape, by)
        ]

    def _source(self, source: Source, values: Sequence[exp.Expr]) -> list[Touch]:
        """What names the values of one source; they are expressions over its columns."""
        node = source.node
        if isinstance(node, exp.Table) and node.db:
            return [self._stored(node, values)]
        inner = inner_query(node, self.bound)
        assert inner is not None
        bare = [_bare(value) for value in values]
        if isinstance(node, exp.Table):
            self.entries.append(id(node))
        return self.query(inner, bare)

    def _stored(self, table: exp.Table, values: Sequence[exp.Expr]) -> Touch:
        name = table_name(table)
        source = images(table, self.bound)[0][1]
        query = select_values(values, [source])
        column, day = _plain(values[0]) if len(values) == 1 else ("", False)
        self.arrivals.append(Arrival(table.meta[PLACE], name, column, day))
        return Touch(name, query, column, day)

    def _found(
        self,
        select: exp.Select,
        shape: From,
        joined: Sequence[Source],
        source: Source,
        values: Sequence[exp.Expr],
    ) -> list[Touch]:
        """The values of joined rows for which a change of `source` changes what they find in it."""
        if isinstance(source.node, exp.Unnest):
            return []  # what it gives follows from the joined row itself
        conditions = shape.conditions(joined, source)
        moved = moved_to(source, joined, conditions, values)
        if moved is not None:
            arrivals, entries = len(self.arrivals), len(self.entries)
            try:
                return self._source(source, moved)
            except Unsafe:
                del self.arrivals[arrivals:], self.entries[entries:]
        beside = Carry(self.bound)  # the rows found do not decide which rows are left out
        try:
            changed = images(source.node, self.bound)
        except Unsafe:
            return beside._found_by_key(shape, joined, source, values, conditions)
        own = [c for c in conditions if source.alias in c.aliases]
        return [
            Touch(table, differing(select, shape, joined, source.with_node(image), values, own))
            for table, image in changed
        ]

    def _found_by_key(
        self,
        shape: From,
        joined: Sequence[Source],
        source: Source,
        values: Sequence[exp.Expr],
        conditions: Sequence[Conjunct],
    ) -> list[Touch]:
        """The same for a source whose rows are computed: by the changed values of its join key."""
        usable, reason = [], "no equality"
        for pair in (c.equality(joined, source) for c in conditions):
            if pair is None:
                continue
            try:
                self._source(source, [pair.there])
                usable.append(pair)
            except Unsafe as unsafe:
                reason = unsafe.reason
        if not usable:
            raise Unsafe(f"a join to {source.alias} whose key cannot be followed: {reason}")
        here = [pair.here for pair in usable]
        return [
            Touch(touch.table, beside_found(shape, joined, values, touch, here))
            for touch in self._source(source, [pair.there for pair in usable])
        ]

    def _images_of_core(
        self, select: exp.Select, shape: From, values: Sequence[exp.Expr]
    ) -> list[Touch]:
        """The values that several inner-joined sources supply together.

        A joined row that is new or gone has a changed row of one source in it, and of the others
        rows that were there before or are there now.
        """
        touches = []
        for source in shape.core:
            if isinstance(source.node, exp.Unnest):
                continue
            others = [
                each
                if isinstance(each.node, exp.Unnest)
                else each.with_node(either(each.node, self.bound))
                for each in shape.core
                if each is not source
            ]
            others.sort(key=lambda each: isinstance(each.node, exp.Unnest))
            for table, image in images(source.node, self.bound):
                query = differing(
                    select, shape, others, source.with_node(image), values, shape.pool(shape.core)
                )
                touches.append(Touch(table, query))
        return touches


def _replaced(value: exp.Expr, outputs: Mapping[str, exp.Expr]) -> exp.Expr:
    """An expression over output columns, in terms of what computes them."""

    def replaced(node: exp.Expr) -> exp.Expr:
        if not isinstance(node, exp.Column):
            return node
        if node.name.lower() not in outputs:
            raise Unsafe(f"{node.name}, a column whose origin cannot be followed")
        return outputs[node.name.lower()].copy()

    return _day_of_day(value.copy().transform(replaced, copy=False))


def _day_of_day(value: exp.Expr) -> exp.Expr:
    """The day of what is a day already is that day."""
    if isinstance(value, exp.Cast) and value.to.is_type(exp.DataType.Type.DATE):
        inner = value.this.unnest()
        if family(inner) == "date":
            return _day_of_day(inner)
    return value


def _require_same_kinds(query: exp.SetOperation, values: Sequence[exp.Expr]) -> None:
    """A branch's value is the result's only if the set operation has nothing to convert."""
    used = {column.name.lower() for value in values for column in value.find_all(exp.Column)}
    for left, right in zip(query.left.selects, query.right.selects, strict=True):
        kinds = {family(left.unalias()), family(right.unalias())} - {"null"}
        if left.alias_or_name.lower() in used and len(kinds) > 1:
            raise Unsafe(f"{left.alias_or_name}, of different types in the branches")


def _bare(value: exp.Expr) -> exp.Expr:
    """An expression over a source's columns as one over the output columns of its query."""
    copy = value.copy()
    for column in copy.find_all(exp.Column):
        column.set("table", None)
    return copy


def _windows_across(select: exp.Select, values: Sequence[exp.Expr]) -> list[Sequence[exp.Expr]]:
    """What those windows are partitioned by that hold rows of several values."""
    found: dict[str, Sequence[exp.Expr]] = {}
    for window in select.find_all(exp.Window):
        by = window.args.get("partition_by") or []
        if window.parent_select is not select or all(
            _follows(value, {text(each) for each in by}) for value in values
        ):
            continue
        if not by or select.args.get("group"):
            raise Unsafe("a window that reaches across partitions")
        found[", ".join(map(text, by))] = by
    return list(found.values())


def _follows(value: exp.Expr, given: set[str]) -> bool:
    """Whether rows that agree in what is given agree in a value."""
    if text(value) in given:
        return True
    if isinstance(value, exp.Column):
        return False
    return all(_follows(each, given) for each in value.iter_expressions())


def _plain(value: exp.Expr) -> tuple[str, bool]:
    """The column that a value is, or is the day of; empty if it is something else."""
    if isinstance(value, exp.Cast) and value.to.is_type(exp.DataType.Type.DATE):
        inner = value.this
        timed = family(inner) in {"timestamp", "timestamptz"}
        return (inner.name, True) if isinstance(inner, exp.Column) and timed else ("", False)
    return (value.name, False) if isinstance(value, exp.Column) else ("", False)


def _within_bounds(touches: list[Touch]) -> list[Touch]:
    if len(touches) > MOST_TOUCHES:
        raise Unsafe("its sources are mentioned too often")
    return touches
