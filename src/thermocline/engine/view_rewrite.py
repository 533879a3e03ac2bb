"""Rewrite queries over stored tables to read views, without changing what any name refers to.

A reference with a schema is always the stored table, and `schema.table.column` always its column;
any other dotted name is a path into a struct and stays unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import count
from typing import TYPE_CHECKING
from uuid import uuid4

from thermocline.engine.spark import CATALOG
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from sqlglot import exp

_PROCESS = uuid4().hex


def private_view_name(name: str) -> str:
    """Return the name of a view that no query can guess for its own CTEs and aliases."""
    return f"_tc_{_PROCESS}_{name}"


def replace_with_view(reference: exp.Table, view: str) -> None:
    """Replace a reference to a stored table with a view."""
    from sqlglot import exp

    alias_tables(reference.root(), [reference])
    reference.set("this", exp.to_identifier(view, quoted=True))
    reference.set("db", None)
    reference.set("catalog", None)


def alias_tables(query: exp.Expr, references: Iterable[exp.Table]) -> None:
    """Give each reference to a stored table an alias, and qualify its columns with it.

    `gold.orders.address.city` becomes `orders.address.city` for an engine that reads a view. Raises
    BadInput for a name whose meaning depends on the tables' columns.
    """
    from sqlglot import exp

    unaliased = [node for node in references if not node.alias]
    if not unaliased:
        return
    sources = _collect_source_names(query)
    aliases: dict[int, dict[tuple[str, str], str]] = {}
    for node in unaliased:
        select = id(node.find_ancestor(exp.Select))
        taken = sources.setdefault(select, set())
        names = (f"{node.db}_{node.name}{n or ''}" for n in count())
        alias = node.name
        while alias.lower() in taken:
            alias = next(names)
        taken.add(alias.lower())
        aliases.setdefault(select, {})[node.db.lower(), node.name.lower()] = alias
        node.set("alias", exp.TableAlias(this=exp.to_identifier(alias, quoted=True)))
    for column in list(query.find_all(exp.Column)):
        if len(column.parts) > 2:
            _rename_column(column, aliases, sources)


def _collect_source_names(query: exp.Expr) -> dict[int, set[str]]:
    """Return the source names of each SELECT, without stored tables that have no alias."""
    from sqlglot import exp

    found: dict[int, set[str]] = {}
    for node in query.find_all(exp.Table, exp.Subquery, exp.Unnest, exp.Lateral):
        name = node.alias or (node.name if isinstance(node, exp.Table) and not node.db else "")
        if name:
            found.setdefault(id(node.find_ancestor(exp.Select)), set()).add(name.lower())
    return found


def _rename_column(
    column: exp.Column,
    aliases: Mapping[int, Mapping[tuple[str, str], str]],
    sources: Mapping[int, set[str]],
) -> None:
    """Replace `schema.table` at the start of a column's path with the alias."""
    from sqlglot import exp

    parts = column.parts
    select = column.find_ancestor(exp.Select)
    while select is not None:
        known = aliases.get(id(select), {})
        for skipped in (1, 0):
            path = parts[skipped:]
            if len(path) < 3 or (skipped and parts[0].name.lower() != CATALOG):
                continue
            alias = known.get((path[0].name.lower(), path[1].name.lower()))
            if alias is not None and parts[0].name.lower() in sources.get(id(select), ()):
                raise BadInput(
                    f"{column.sql('duckdb')} may be a column of a table or a path into a struct.",
                    "Give the table an alias, and qualify its columns with the alias.",
                )
            if alias is not None:
                _set_path(column, [exp.to_identifier(alias, quoted=True), *path[2:]])
                return
        if parts[0].name.lower() in sources.get(id(select), ()):
            return  # a column of that source, and a path into it
        select = select.find_ancestor(exp.Select)


def _set_path(column: exp.Column, parts: list[exp.Expr]) -> None:
    keys = ("this", "table", "db", "catalog")
    for key, part in zip(keys, reversed([*[None] * (4 - len(parts)), *parts]), strict=True):
        column.set(key, part)
