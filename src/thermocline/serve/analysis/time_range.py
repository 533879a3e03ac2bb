"""Find the time range that a query can see of each table reference, from its SQL alone.

Rows outside the range cannot change the answer, so a copy with all rows inside it can answer. A
range may be too wide, and the query then goes to a slower engine; it is never too narrow. In case
of doubt it is unbounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from thermocline.engine.time_expressions import evaluate_moment, parse_unit, shift_time

if TYPE_CHECKING:
    from sqlglot import exp

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True)
class TimeRange:
    """A time range, both ends included; None is unbounded."""

    start: datetime | None = None
    end: datetime | None = None

    def __and__(self, other: TimeRange) -> TimeRange:
        starts = [each for each in (self.start, other.start) if each is not None]
        ends = [each for each in (self.end, other.end) if each is not None]
        return TimeRange(max(starts, default=None), min(ends, default=None))

    def __or__(self, other: TimeRange) -> TimeRange:
        start = self.start and other.start and min(self.start, other.start)
        end = self.end and other.end and max(self.end, other.end)
        return TimeRange(start, end)


UNBOUNDED = TimeRange()

ColumnRef = tuple[str, str]
"""A column of a source: the name of the source in its SELECT, and that of the column."""

ColumnRanges = dict[ColumnRef, TimeRange]
"""The range of each column outside of which rows cannot affect the answer."""


@dataclass(frozen=True)
class TimedTable:
    """A stored table: its time column, if any, and all of its columns."""

    column: str | None
    columns: frozenset[str]


def find_time_ranges(
    tree: exp.Query, tables: Mapping[str, TimedTable], now: datetime
) -> dict[int, TimeRange]:
    """Return the time range of each table reference, by the `id` of its node.

    References to tables that are not in `tables` are left out. Names are compared case-sensitively.
    """
    reader = _TimeRangeAnalyzer(tables, now)
    reader.visit_query(tree, {}, {})
    return reader.found


@dataclass
class _CommonTable:
    """A common table expression, and the ranges that each use of it needs."""

    columns: tuple[str, ...] | None
    uses: list[dict[str, TimeRange]] = field(default_factory=list)

    def required(self) -> dict[str, TimeRange]:
        """Return the ranges outside of which no use needs rows."""
        if not self.uses:
            return {}
        shared = set.intersection(*(set(use) for use in self.uses))
        return {name: _hull(use[name] for use in self.uses) for name in shared}


def _hull(spans_: Iterable[TimeRange]) -> TimeRange:
    first, *others = spans_
    for other in others:
        first = first | other
    return first


class _TimeRangeAnalyzer:
    def __init__(self, tables: Mapping[str, TimedTable], now: datetime) -> None:
        self._tables = tables
        self._now = now
        self.found: dict[int, TimeRange] = {}

    def visit_query(
        self, node: exp.Expr, required: Mapping[str, TimeRange], visible: Mapping[str, _CommonTable]
    ) -> None:
        """Visit a query of whose output only rows within `required` matter."""
        from sqlglot import exp

        inner = {**visible}
        with_ = node.args.get("with_")
        recursive = with_ is not None and bool(with_.recursive)
        commons: list[tuple[exp.CTE, _CommonTable, dict[str, _CommonTable]]] = []
        for cte in with_.expressions if with_ else ():
            common = _CommonTable(_output_names(cte.this) if not cte.alias_column_names else None)
            before = {**inner, cte.alias: common} if recursive else dict(inner)
            commons.append((cte, common, before))
            inner[cte.alias] = common
        if _limits_rows(node):
            required = {}
        match node:
            case exp.Select():
                self._visit_select(node, required, inner)
            case exp.SetOperation():
                self._visit_set_operation(node, required, inner)
            case exp.Subquery():
                body = _unwrap(node)
                self.visit_query(body, {} if _has_modifiers(node) else required, inner)
                self._visit_nested(node, inner, handled=[body])
            case _:
                self._visit_nested(node, inner, handled=[])
        for cte, common, before in reversed(commons):
            wanted = {} if recursive or cte.alias_column_names else common.required()
            self.visit_query(cte.this, wanted, before)

    def _visit_set_operation(
        self,
        node: exp.SetOperation,
        required: Mapping[str, TimeRange],
        visible: Mapping[str, _CommonTable],
    ) -> None:
        """Visit both sides: their columns correspond by position."""
        names = _output_names(node)
        for side in (node.left, node.right):
            own = _output_names(side)
            passed: dict[str, TimeRange] = {}
            if names and own and len(names) == len(own) and not node.args.get("by_name"):
                pairs = zip(names, own, strict=True)
                passed = {mine: required[name] for name, mine in pairs if name in required}
            self.visit_query(side, passed, visible)

    def _visit_select(
        self,
        node: exp.Select,
        required: Mapping[str, TimeRange],
        visible: Mapping[str, _CommonTable],
    ) -> None:
        from sqlglot import exp

        sources = _Sources(node, self._tables, visible)
        ranges = self._collect_ranges(node, sources)
        for place, time_range in _push_down(node, required, sources).items():
            ranges[place] = ranges.get(place, UNBOUNDED) & time_range
        handled: list[exp.Expr] = []
        for name, source in sources.by_name.items():
            own = {column: time_range for (of, column), time_range in ranges.items() if of == name}
            if isinstance(source, exp.Table):
                self._visit_table(source, own, visible)
                handled.append(source)
            elif isinstance(source, exp.Subquery):
                inner = _unwrap(source)
                self.visit_query(inner, {} if _has_modifiers(source) else own, visible)
                handled.append(inner)
        self._visit_nested(node, visible, handled)

    def _visit_table(
        self, node: exp.Table, own: dict[str, TimeRange], visible: Mapping[str, _CommonTable]
    ) -> None:
        if not node.db and node.name in visible:
            visible[node.name].uses.append(own)
            return
        stored = self._tables.get(f"{node.db}.{node.name}".lower())
        if stored is not None and stored.column is not None:
            self.found[id(node)] = own.get(stored.column, UNBOUNDED)

    def _visit_nested(
        self, node: exp.Expr, visible: Mapping[str, _CommonTable], handled: list[exp.Expr]
    ) -> None:
        """Visit queries elsewhere in a query: all of their rows may matter."""
        from sqlglot import exp

        done = {id(each) for each in handled}
        waiting = [child for child in node.iter_expressions() if not isinstance(child, exp.With)]
        while waiting:
            child = waiting.pop()
            if isinstance(child, exp.Select | exp.SetOperation):
                if id(child) not in done:
                    self.visit_query(child, {}, visible)
                continue
            if isinstance(child, exp.Table) and id(child) not in done:
                self._visit_table(child, {}, visible)  # not a source: all of it may matter
            waiting.extend(child.iter_expressions())

    def _collect_ranges(self, node: exp.Select, sources: _Sources) -> ColumnRanges:
        where = node.args.get("where")
        ranges = self._condition_ranges(where.this, sources) if where else {}
        if sources.has_asof:
            # WHERE may reject the nearest row: without it, ASOF would pick another one.
            ranges = {
                place: time_range
                for place, time_range in ranges.items()
                if place[0] == sources.first
            }
        for join, name in sources.joins:
            on = join.args.get("on")
            if on is None or join.method.upper() == "ASOF" or join.side in {"RIGHT", "FULL"}:
                continue
            both = join.side == "" and join.kind in {"", "INNER", "CROSS", "SEMI"}
            for place, time_range in self._condition_ranges(on, sources).items():
                if both or place[0] == name:
                    ranges[place] = ranges.get(place, UNBOUNDED) & time_range
        return ranges

    def _condition_ranges(self, node: exp.Expr, sources: _Sources) -> ColumnRanges:
        """Return the ranges of columns for which a condition can be true. Null is not true."""
        from sqlglot import exp

        match node:
            case exp.Paren():
                return self._condition_ranges(node.this, sources)
            case exp.And():
                left, right = (
                    self._condition_ranges(side, sources) for side in (node.left, node.right)
                )
                return {
                    place: left.get(place, UNBOUNDED) & right.get(place, UNBOUNDED)
                    for place in left.keys() | right.keys()
                }
            case exp.Or():
                left, right = (
                    self._condition_ranges(side, sources) for side in (node.left, node.right)
                )
                return {place: left[place] | right[place] for place in left.keys() & right.keys()}
            case exp.Between():
                low = self._comparison_range(exp.GTE, node.this, node.args["low"], sources)
                high = self._comparison_range(exp.LTE, node.this, node.args["high"], sources)
                return {place: low.get(place, UNBOUNDED) & high.get(place, UNBOUNDED)
                        for place in low.keys() | high.keys()}  # fmt: skip
            case exp.In() if node.expressions and not node.args.get("query"):
                each = [
                    self._comparison_range(exp.EQ, node.this, it, sources)
                    for it in node.expressions
                ]
                shared = set.intersection(*(set(ranges) for ranges in each))
                return {place: _hull(ranges[place] for ranges in each) for place in shared}
            case exp.EQ() | exp.GT() | exp.GTE() | exp.LT() | exp.LTE():
                found = self._comparison_range(type(node), node.left, node.right, sources)
                return found or self._comparison_range(_MIRROR[type(node).__name__], node.right,
                                               node.left, sources)  # fmt: skip
        return {}

    def _comparison_range(
        self, kind: object, side: exp.Expr, other: exp.Expr, sources: _Sources
    ) -> ColumnRanges:
        from sqlglot import exp

        read = _match_column(side)
        if read is None:
            return {}
        column, unit = read
        place = sources.resolve(column)
        if unit == "year" and isinstance(other, exp.Literal) and not other.is_string:
            at: datetime | None = datetime(int(other.name), 1, 1)  # UTC, as everywhere here
        else:
            at = evaluate_moment(other, self._now)
        if at is None or place is None:
            return {}
        # A truncated column is at most the column itself, and less than a unit before it.
        over = shift_time(at, 1, unit) - _TICK if unit else at
        bounds = {
            "EQ": TimeRange(at, over), "GTE": TimeRange(at, None), "GT": TimeRange(at, None),
            "LTE": TimeRange(None, over), "LT": TimeRange(None, over),
        }  # fmt: skip
        name = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
        return {place: bounds[name]}


_MIRROR = {"EQ": "EQ", "GT": "LT", "GTE": "LTE", "LT": "GT", "LTE": "GTE"}


class _Sources:
    """The sources of a SELECT, by the names that its columns use."""

    def __init__(
        self,
        node: exp.Select,
        tables: Mapping[str, TimedTable],
        visible: Mapping[str, _CommonTable],
    ) -> None:
        self.by_name: dict[str, exp.Expr] = {}
        self.joins: list[tuple[exp.Join, str]] = []
        self.has_clashes = False
        self._columns: dict[str, frozenset[str] | None] = {}
        start = node.args.get("from_")
        self.first = self._add(start.this, tables, visible) if start else ""
        for join in node.args.get("joins") or ():
            self.joins.append((join, self._add(join.this, tables, visible)))
        for lateral in node.args.get("laterals") or ():
            self._add(lateral, tables, visible)
        self.has_asof = any(join.method.upper() == "ASOF" for join, _ in self.joins)
        self._single = len(self.by_name) == 1 and not self.has_clashes
        self._natural = any(join.method.upper() == "NATURAL" for join, _ in self.joins)
        self._merged = {
            column.name for join, _ in self.joins for column in join.args.get("using") or ()
        }

    def _add(
        self, node: exp.Expr, tables: Mapping[str, TimedTable], visible: Mapping[str, _CommonTable]
    ) -> str:
        from sqlglot import exp

        name = node.alias_or_name
        if name in self.by_name or not name:
            self.has_clashes = True
            name = f"{name} {len(self.by_name)}"  # no column can name it
        self.by_name[name] = node
        columns: frozenset[str] | None = None
        alias = node.args.get("alias")
        renamed = bool(alias and alias.args.get("columns")) or bool(node.args.get("pivots"))
        if isinstance(node, exp.Table) and not renamed:
            if not node.db and node.name in visible:
                outputs = visible[node.name].columns
                columns = frozenset(outputs) if outputs else None
            elif stored := tables.get(f"{node.db}.{node.name}".lower()):
                columns = stored.columns
        elif isinstance(node, exp.Subquery) and not renamed:
            outputs = _output_names(node.this)
            columns = frozenset(outputs) if outputs else None
        self._columns[name] = columns
        if renamed:
            self._columns[name] = frozenset()  # renamed columns are not resolved
        return name

    def resolve(self, column: exp.Column) -> ColumnRef | None:
        """Return the source of a column, or None when it is ambiguous."""
        name = column.name
        if column.args.get("db") or self.has_clashes:
            return None
        if column.table:
            known = self._columns.get(column.table, frozenset())
            return (column.table, name) if known is None or name in known else None
        if self._single:
            [only] = self.by_name
            known = self._columns[only]
            return (only, name) if known is None or name in known else None
        if self._natural or name in self._merged:
            return None
        if any(columns is None for columns in self._columns.values()):
            return None
        holders = [of for of, columns in self._columns.items() if columns and name in columns]
        return (holders[0], name) if len(holders) == 1 else None


def _push_down(
    node: exp.Select, required: Mapping[str, TimeRange], sources: _Sources
) -> ColumnRanges:
    """Push the required ranges of a SELECT's output down to its source columns.

    A filter may be pushed below a GROUP BY only on a key of it, and never below a window function.
    """
    from sqlglot import exp

    if not required or sources.has_asof or any(True for _ in node.find_all(exp.Window)):
        return {}
    group = node.args.get("group")
    grouped = group is not None or any(True for _ in node.find_all(exp.AggFunc))
    keys = set()
    if group is not None:
        if any(group.args.get(word) for word in ("rollup", "cube", "grouping_sets", "all")):
            return {}
        keys = {sources.resolve(key) for key in group.expressions if isinstance(key, exp.Column)}
    found: ColumnRanges = {}
    for output in node.expressions:
        if isinstance(output, exp.Star) and not grouped and not any(output.args.values()):
            named = [exp.column(name) for name in required]
            places = [(column.name, sources.resolve(column)) for column in named]
        else:
            inner = output.unalias()
            column = inner if isinstance(inner, exp.Column) else None
            place = sources.resolve(column) if column is not None else None
            places = [(output.alias_or_name, place)]
        for name, place in places:
            if place is not None and name in required and (not grouped or place in keys):
                found[place] = found.get(place, UNBOUNDED) & required[name]
    names = _output_names(node)
    twice = names is not None and len(set(names)) < len(names)
    return {} if twice else found


def _match_column(node: exp.Expr) -> tuple[exp.Column, str | None] | None:
    """Return a column and the unit that it is truncated to, if any; None for other expressions."""
    from sqlglot import exp

    match node:
        case exp.Paren():
            return _match_column(node.this)
        case exp.Column():
            return node, None
        case exp.Cast() | exp.TryCast() if isinstance(node.this, exp.Column):
            if node.is_type(exp.DType.DATE):
                return node.this, "day"
            exact = (exp.DType.TIMESTAMP, exp.DType.TIMESTAMPTZ, exp.DType.TIMESTAMPNTZ)
            return (node.this, None) if node.is_type(*exact) else None
        case exp.Date() | exp.TsOrDsToDate() if isinstance(node.this, exp.Column):
            return None if node.args.get("zone") or node.expressions else (node.this, "day")
        case exp.TimestampTrunc() | exp.DateTrunc() if isinstance(node.this, exp.Column):
            unit = parse_unit(node.args.get("unit"))
            return (node.this, unit) if unit and not node.args.get("zone") else None
        case exp.Year() if isinstance(node.this, exp.Column):
            return node.this, "year"
    return None


def _output_names(node: exp.Expr) -> tuple[str, ...] | None:
    """Return the names of a query's columns, or None when it selects *."""
    from sqlglot import exp

    while isinstance(node, exp.Subquery):
        node = node.this
    if isinstance(node, exp.SetOperation):
        return _output_names(node.left)
    if not isinstance(node, exp.Select):
        return None
    if any(isinstance(each, exp.Star) or each.is_star for each in node.expressions):
        return None
    return tuple(each.alias_or_name for each in node.expressions)


def _limits_rows(node: exp.Expr) -> bool:
    """Return whether a query picks rows by number or by comparison with others."""
    distinct = node.args.get("distinct")
    on = distinct is not None and not isinstance(distinct, bool) and distinct.args.get("on")
    return bool(on) or any(node.args.get(word) for word in ("limit", "offset", "sample", "qualify"))


def _unwrap(node: exp.Expr) -> exp.Expr:
    """Return the query inside of its parentheses."""
    from sqlglot import exp

    while isinstance(node, exp.Subquery):
        node = node.this
    return node


def _has_modifiers(node: exp.Expr) -> bool:
    """Return whether parentheses also rename columns, limit rows or join other sources."""
    from sqlglot import exp

    more = ("limit", "offset", "sample", "joins", "pivots", "laterals", "with_", "order")
    while isinstance(node, exp.Subquery):
        alias = node.args.get("alias")
        if alias is not None and alias.args.get("columns"):
            return True
        if any(node.args.get(word) for word in more):
            return True
        node = node.this
    return not isinstance(node, exp.Select | exp.SetOperation)
