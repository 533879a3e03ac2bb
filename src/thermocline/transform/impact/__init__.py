"""Which part of a model's output can a change in its inputs touch? Decided from the query alone.

The query is bound, so that every name has one meaning (`bind`); it may hold only constructs that
are listed (`allowed`); and the columns that name the output's parts are followed down to the
stored tables by one rule an operator (`carry`). Whatever has no rule raises `Unsafe` with its
reason, and the model is computed as a whole.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from thermocline.engine import query_types
from thermocline.transform.impact.allow_list import aggregates
from thermocline.transform.impact.bound_query import Bound, bind, sources, stored_tables
from thermocline.transform.impact.errors import Unsafe
from thermocline.transform.impact.lineage import Carry
from thermocline.transform.impact.pruning import Filter, filters_of
from thermocline.transform.impact.touch_queries import Touch

__all__ = [
    "Filter",
    "Impact",
    "Touch",
    "Unsafe",
    "columns_read",
    "impact_of",
    "require_row_by_row",
    "stored_tables",
]

Columns = Mapping[str, Mapping[str, str]]
"""Table → column → its type in the words of contracts."""


@dataclass(frozen=True)
class Impact:
    """How changes of a query's sources reach its output.

    `touches` are queries that together name all parts that changes can touch. `filters` are the
    mentions of stored tables whose rows can be left out when only some parts are asked for.
    """

    touches: tuple[Touch, ...]
    filters: tuple[Filter, ...]


def impact_of(
    query: exp.Query,
    columns: Columns,
    target: Mapping[str, str],
    days: Collection[str] = (),
) -> Impact:
    """Follow the `target` columns of a query, of those among `days` only the day; or raise Unsafe.

    `target` has the type in which each is written, `columns` are those of the tables that the
    query reads.
    """
    bound = bind(query, columns)
    _require_types(bound.query, target)
    carry = Carry(bound)
    values: list[exp.Expr] = [
        exp.cast(exp.column(name), exp.DataType.Type.DATE) if name in days else exp.column(name)
        for name in target
    ]
    touches = carry.query(bound.query, values)
    filters = filters_of(carry, bound) if len(target) == 1 else []
    named = (_named(touch, list(target), bound) for touch in touches)
    return Impact(tuple(named), tuple(filters))


def _require_types(query: exp.Query, target: Mapping[str, str]) -> None:
    """A value that is converted when it is written names another part than it does before."""
    values = {each.alias_or_name.lower(): each.unalias() for each in query.selects}
    for name, written in target.items():
        value = values.get(name.lower())
        if value is None:
            raise Unsafe(f"{name}, a partition or key that it does not give")
        if not query_types.matches_type(value, written):
            given = value.type.sql("duckdb").lower() if value.type is not None else "unknown"
            raise Unsafe(f"{name}, which is {given} there and {written} in the contract")


def _named(touch: Touch, target: Sequence[str], bound: Bound) -> Touch:
    query = touch.query
    values = zip(query.selects, target, strict=True)
    query.set("expressions", [exp.alias_(v.unalias(), name, quoted=True) for v, name in values])
    return Touch(touch.table, bound.with_ctes(query), touch.column, touch.day)


def require_row_by_row(
    query: exp.Query, columns: Columns, load_times: Collection[str] = ()
) -> None:
    """Raise Unsafe unless each output row comes from exactly one row of the one table it reads.

    Output columns among `load_times` may be the time of the computation.
    """
    bound = bind(_without_clock(query, load_times), columns).query
    if not isinstance(bound, exp.Select) or len(sources(bound)) != 1:
        raise Unsafe("more than one source")
    (source,) = sources(bound)
    if not isinstance(source, exp.Table) or not source.db:
        raise Unsafe("a source that is not a stored table")
    for part in ("group", "having", "qualify", "distinct"):
        if bound.args.get(part):
            raise Unsafe(part.upper())
    if any(aggregates(each) or each.find(exp.Window) for each in bound.selects):
        raise Unsafe("an aggregate or a window")


def _without_clock(query: exp.Query, load_times: Collection[str]) -> exp.Query:
    copy = query.copy()
    for value in copy.selects if isinstance(copy, exp.Select) else ():
        clock = value.unalias()
        clock = clock.this if isinstance(clock, exp.Cast) else clock
        now = isinstance(clock, exp.Anonymous) and clock.name.lower() == "now"
        if value.alias in load_times and (now or isinstance(clock, exp.CurrentTimestamp)):
            clock.replace(exp.Null())
    return copy


def columns_read(query: exp.Query, available: Sequence[str]) -> list[str]:
    """The columns of a table that a query may read, by name; all of them if it says `*`."""
    stars = query.find_all(exp.Star)
    if any(not isinstance(star.parent, exp.Count) for star in stars):
        return list(available)
    named = {column.name.lower() for column in query.find_all(exp.Column)}
    # A struct's field is written like a qualified column: its root is the table part.
    named |= {column.table.lower() for column in query.find_all(exp.Column) if column.table}
    named |= {identifier.name.lower() for identifier in query.find_all(exp.Identifier)}
    return [name for name in available if name.lower() in named]
