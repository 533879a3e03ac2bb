"""Analyze from a query alone which parts of its output a change of its inputs can touch.

The query is bound, so that every name has one meaning (`bound_query`). It may hold only constructs
of an allow-list (`allow_list`). The columns that identify the output's parts are traced down to
the stored tables, with one rule per operator (`lineage`). A construct without a rule raises
`Unsafe` with the reason, and the model is computed in full.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from thermocline.engine import query_types
from thermocline.transform.impact.allow_list import has_aggregate
from thermocline.transform.impact.bound_query import (
    BoundQuery,
    bind,
    find_stored_tables,
    list_sources,
)
from thermocline.transform.impact.lineage import LineageTracer
from thermocline.transform.impact.pruning import SourceFilter, find_source_filters
from thermocline.transform.impact.touch_queries import TouchQuery
from thermocline.transform.impact.unsafe import Unsafe

__all__ = [
    "Impact",
    "SourceFilter",
    "TouchQuery",
    "Unsafe",
    "analyze_query",
    "find_columns_read",
    "find_stored_tables",
    "require_row_by_row",
]

Columns = Mapping[str, Mapping[str, str]]
"""Table → column → its type, as in contracts."""


@dataclass(frozen=True)
class Impact:
    """How changes of a query's sources reach its output.

    `touches` are queries that together return all parts that changes can touch. `filters` are the
    references to stored tables whose rows can be pruned when only some parts are computed.
    """

    touches: tuple[TouchQuery, ...]
    filters: tuple[SourceFilter, ...]


def analyze_query(
    query: exp.Query,
    columns: Columns,
    target: Mapping[str, str],
    days: Collection[str] = (),
) -> Impact:
    """Trace the `target` columns of a query, only the day for those in `days`; or raise Unsafe.

    `target` maps each column to the type in which it is written. `columns` are the columns of the
    tables that the query reads.
    """
    bound = bind(query, columns)
    _require_types(bound.query, target)
    tracer = LineageTracer(bound)
    expressions: list[exp.Expr] = [
        exp.cast(exp.column(name), exp.DataType.Type.DATE) if name in days else exp.column(name)
        for name in target
    ]
    touches = tracer.trace_query(bound.query, expressions)
    filters = find_source_filters(tracer, bound) if len(target) == 1 else []
    outputs = (_name_outputs(touch, list(target), bound) for touch in touches)
    return Impact(tuple(outputs), tuple(filters))


def _require_types(query: exp.Query, target: Mapping[str, str]) -> None:
    """Refuse a value that is converted when it is written: it would name another part."""
    expressions = {each.alias_or_name.lower(): each.unalias() for each in query.selects}
    for name, written in target.items():
        value = expressions.get(name.lower())
        if value is None:
            raise Unsafe(f"{name}, a partition or key that it does not return")
        if not query_types.matches_type(value, written):
            actual = value.type.sql("duckdb").lower() if value.type is not None else "unknown"
            raise Unsafe(f"{name}, which is {actual} there and {written} in the contract")


def _name_outputs(touch: TouchQuery, target: Sequence[str], bound: BoundQuery) -> TouchQuery:
    query = touch.query
    expressions = zip(query.selects, target, strict=True)
    query.set(
        "expressions", [exp.alias_(v.unalias(), name, quoted=True) for v, name in expressions]
    )
    return TouchQuery(touch.table, bound.with_ctes(query), touch.column, touch.day)


def require_row_by_row(
    query: exp.Query, columns: Columns, load_times: Collection[str] = ()
) -> None:
    """Raise Unsafe unless each output row comes from exactly one row of the one table it reads.

    Output columns among `load_times` may be the time of the computation.
    """
    bound = bind(_remove_clock(query, load_times), columns).query
    if not isinstance(bound, exp.Select) or len(list_sources(bound)) != 1:
        raise Unsafe("more than one source")
    (source,) = list_sources(bound)
    if not isinstance(source, exp.Table) or not source.db:
        raise Unsafe("a source that is not a stored table")
    for part in ("group", "having", "qualify", "distinct"):
        if bound.args.get(part):
            raise Unsafe(part.upper())
    if any(has_aggregate(each) or each.find(exp.Window) for each in bound.selects):
        raise Unsafe("an aggregate or a window")


def _remove_clock(query: exp.Query, load_times: Collection[str]) -> exp.Query:
    copy = query.copy()
    for value in copy.selects if isinstance(copy, exp.Select) else ():
        clock = value.unalias()
        clock = clock.this if isinstance(clock, exp.Cast) else clock
        now = isinstance(clock, exp.Anonymous) and clock.name.lower() == "now"
        if value.alias in load_times and (now or isinstance(clock, exp.CurrentTimestamp)):
            clock.replace(exp.Null())
    return copy


def find_columns_read(query: exp.Query, available: Sequence[str]) -> list[str]:
    """Return the columns of a table that a query may read, by name; all of them for `*`."""
    stars = query.find_all(exp.Star)
    if any(not isinstance(star.parent, exp.Count) for star in stars):
        return list(available)
    outputs = {column.name.lower() for column in query.find_all(exp.Column)}
    # A struct's field is written like a qualified column: its root is the table part.
    outputs |= {column.table.lower() for column in query.find_all(exp.Column) if column.table}
    outputs |= {identifier.name.lower() for identifier in query.find_all(exp.Identifier)}
    return [name for name in available if name.lower() in outputs]
