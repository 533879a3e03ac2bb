"""The columns by which a query filters each table, for advice: not proven, and never a value.

A column counts when a condition of WHERE or ON compares it with something without columns, and all
rows must meet the condition. Only such conditions let a reader skip files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sqlglot import exp


def find_predicate_columns(
    tree: exp.Query,
    tables: Mapping[str, Sequence[exp.Table]],
    columns: Mapping[str, Collection[str]],
) -> dict[str, frozenset[str]]:
    """Return the columns of each table that conditions compare with values, by table.

    `tables` are the references to each stored table in the tree, and `columns` the names of the
    tables' columns, which are returned as they are spelled there.
    """
    from sqlglot import exp

    owners = {id(node): table for table, nodes in tables.items() for node in nodes}
    names = {table: {name.lower(): name for name in columns.get(table, ())} for table in tables}
    found: dict[str, set[str]] = {table: set() for table in tables}
    for select in tree.find_all(exp.Select):
        sources = dict(_find_sources(select, owners))
        for column in _find_compared(select):
            wanted, name = column.table.lower(), column.name.lower()
            owning = [sources[wanted]] if wanted in sources else []
            if not column.table:
                owning = [table for table in sources.values() if name in names[table]]
            if len(set(owning)) == 1 and name in names[owning[0]]:
                found[owning[0]].add(names[owning[0]][name])
    return {table: frozenset(some) for table, some in found.items()}


def _find_sources(select: exp.Select, owners: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """Yield the name of each stored table that a SELECT reads, and the table."""
    start = select.args.get("from_") or select.args.get("from")
    for each in [start, *(select.args.get("joins") or ())]:
        table = each.this if each is not None else None
        if table is not None and id(table) in owners:
            yield table.alias_or_name.lower(), owners[id(table)]


def _find_compared(select: exp.Select) -> Iterator[exp.Column]:
    """Yield the columns that conditions on all rows compare with values."""
    from sqlglot import exp

    where = select.args.get("where")
    conditions = [] if where is None else [where.this]
    conditions += [on for join in select.args.get("joins") or () if (on := join.args.get("on"))]
    while conditions:
        condition = conditions.pop()
        match condition:
            case exp.And() | exp.Paren():
                conditions += list(condition.iter_expressions())
            case exp.EQ() | exp.LT() | exp.LTE() | exp.GT() | exp.GTE() | exp.NullSafeEQ():
                sides = (condition.left, condition.right)
                for one, other in (sides, sides[::-1]):
                    if isinstance(one, exp.Column) and not _has_columns(other):
                        yield one
            case exp.In() | exp.Between() if isinstance(condition.this, exp.Column):
                column = id(condition.this)
                others = (each for each in condition.iter_expressions() if id(each) != column)
                if not any(map(_has_columns, others)):
                    yield condition.this


def _has_columns(node: exp.Expr) -> bool:
    from sqlglot import exp

    return node.find(exp.Column, exp.Query) is not None
