"""Functions without parentheses: names that mean a column if there is one, otherwise a function.

`user`, for example, returns the user that the engine runs as. So such a name is only allowed as a
column of a source of its SELECT, or of an enclosing one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from thermocline.sql.guard import QueryRefused

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope

    from thermocline.sql.guard import GuardedQuery

NAMES = frozenset(
    {
        "current_catalog", "current_database", "current_date", "current_path", "current_role",
        "current_schema", "current_time", "current_timestamp", "current_timezone", "current_user",
        "grouping__id", "localtime", "localtimestamp", "session_user", "system_user", "user",
    }
)  # fmt: skip
"""All functions that DuckDB, Spark and Trino call without parentheses. A test checks them."""

Columns = Mapping[str, Mapping[str, str]]


def has_bare_names(tree: exp.Query) -> bool:
    """Return whether a query has such a name."""
    from sqlglot import exp

    return any(_is_bare(each) for each in tree.find_all(exp.Column))


def refuse_bare_functions(query: GuardedQuery, columns: Columns) -> None:
    """Refuse a query with such a name that is no column. `columns` are those of stored tables."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    stored = {
        id(mention): frozenset(map(str.lower, columns.get(table, ())))
        for table, mentions in query.tables.items()
        for mention in mentions
    }
    scopes = {id(scope.expression): scope for scope in traverse_scope(query.tree)}
    for column in query.tree.find_all(exp.Column):
        if not _is_bare(column):
            continue
        name, around = column.name.lower(), column.find_ancestor(exp.Query)
        scope = scopes.get(id(around))
        # The ORDER BY of a UNION names one of its result columns.
        ordered = isinstance(around, exp.SetOperation) and name in map(
            str.lower, around.named_selects
        )
        if not ordered and not _is_read(name, scope, stored):
            raise QueryRefused(
                f"{column.name} is no column here, but a function of the engine.",
                "Remove it; write table.column for a column of that name.",
            )


def _is_bare(column: exp.Column) -> bool:
    return not column.table and column.name.lower() in NAMES


def _is_read(name: str, scope: Scope | None, stored: Mapping[int, frozenset[str]]) -> bool:
    """Return whether a SELECT, or an enclosing one, has a source with the column."""
    while scope is not None:
        for _, source in scope.selected_sources.values():
            if _has_column(source, name, stored):
                return True
        scope = scope.parent if scope.is_subquery else None
    return False


def _has_column(source: exp.Expr | Scope, name: str, stored: Mapping[int, frozenset[str]]) -> bool:
    from sqlglot.optimizer.scope import Scope

    if not isinstance(source, Scope):
        return name in stored.get(id(source), ())
    given = source.expression
    outer = [each.lower() for each in source.outer_columns]
    if outer:
        return name in outer
    selects = [each.lower() for each in getattr(given, "named_selects", ())]
    if name in selects:
        return True
    return "*" in selects and any(
        _has_column(inner, name, stored) for _, inner in source.selected_sources.values()
    )
