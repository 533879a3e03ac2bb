"""Functions without brackets: names that mean a column where there is one, and else a function.

`user` is the name of the one whom the engine runs as. So such a name is only let through as the
column of something that its own SELECT, or one around it, reads.
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
"""All that DuckDB, Spark and Trino call without brackets. A test asks them."""

Columns = Mapping[str, Mapping[str, str]]


def has_bare_names(tree: exp.Query) -> bool:
    """Return whether a query has such a name at all."""
    from sqlglot import exp

    return any(_is_bare(each) for each in tree.find_all(exp.Column))


def refuse_bare_functions(question: GuardedQuery, columns: Columns) -> None:
    """Refuse a query with such a name that is no column. `columns` are the stored tables'."""
    from sqlglot import exp
    from sqlglot.optimizer.scope import traverse_scope

    stored = {
        id(mention): frozenset(map(str.lower, columns.get(table, ())))
        for table, mentions in question.tables.items()
        for mention in mentions
    }
    scopes = {id(scope.expression): scope for scope in traverse_scope(question.tree)}
    for column in question.tree.find_all(exp.Column):
        if not _is_bare(column):
            continue
        name, around = column.name.lower(), column.find_ancestor(exp.Query)
        scope = scopes.get(id(around))
        # What orders a UNION is one of its results.
        ordered = isinstance(around, exp.SetOperation) and name in map(
            str.lower, around.named_selects
        )
        if not ordered and not _is_read(name, scope, stored):
            raise QueryRefused(
                f"{column.name} is no column here, but a function of the engine's.",
                "Leave it out; a column of that name is read as table.column.",
            )


def _is_bare(column: exp.Column) -> bool:
    return not column.table and column.name.lower() in NAMES


def _is_read(name: str, scope: Scope | None, stored: Mapping[int, frozenset[str]]) -> bool:
    """Return whether a SELECT reads something that has the column, or one around it does."""
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
