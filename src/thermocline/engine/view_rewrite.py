"""Queries over stored tables, made to read views instead: the same names, and none captured.

A reference with a schema is always the stored table, and `schema.table.column` always its column;
everything else that has dots is a path into a struct and stays as it is.
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
    """Return a view's name that no query can have guessed for its own CTEs and aliases."""
    return f"_tc_{_PROCESS}_{name}"


def replace_with_view(mention: exp.Table, view: str) -> None:
    """Have a query read a view where it mentions a stored table."""
    from sqlglot import exp

    alias_tables(mention.root(), [mention])
    mention.set("this", exp.to_identifier(view, quoted=True))
    mention.set("db", None)
    mention.set("catalog", None)


def alias_tables(query: exp.Expr, mentions: Iterable[exp.Table]) -> None:
    """Give each mention of a stored table an alias, and call its columns by that.

    Of `gold.orders.address.city` an engine that reads a view sees `orders.address.city`. Raises
    BadInput where it depends on the tables' columns which of two things a name means.
    """
    from sqlglot import exp

    wanted = [node for node in mentions if not node.alias]
    if not wanted:
        return
    sources = _collect_source_names(query)
    aliases: dict[int, dict[tuple[str, str], str]] = {}
    for node in wanted:
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
    """Return by what names each SELECT calls what it reads, stored tables without alias apart."""
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
    """Write an alias for `schema.table` at the beginning of a column's path."""
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
                    "Give the table an alias, and call its columns by that.",
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
