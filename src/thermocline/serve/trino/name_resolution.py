"""Resolve the names of a query: add the session's schema, replace catalog tables by their rows.

The result is a text for the router, which guards it like any other. A query without changes keeps
its original text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.serve.trino import literal_table
from thermocline.serve.trino.catalog_tables import (
    CATALOG_TABLES,
    CATALOGS,
    SYSTEM,
    VERSION,
    CatalogListing,
)
from thermocline.serve.trino.error_codes import TrinoError
from thermocline.sql.guard import CATALOG_NAME, PARSER_CRASHES, SyntaxLimits, guard, sanitize

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope

    from thermocline.serve.trino.client_session import ClientSession

MAX_CATALOG_TABLES = 20
"""How many catalog tables one query may read."""


@dataclass(frozen=True)
class ResolvedQuery:
    """A query for the router. `names` are those of its columns, None where the engine names them.

    `tree` is set for a query on catalog tables alone: a query of our own, in DuckDB's dialect.
    """

    sql: str
    names: tuple[str | None, ...]
    """Empty when the query selects *, so that the columns cannot be counted."""
    is_cacheable: bool
    """Whether it only depends on the session's schema, not on the user or the lake."""
    tree: exp.Query | None = None


def resolve(
    tree: exp.Query, sql: str | None, session: ClientSession, listing: CatalogListing
) -> ResolvedQuery:
    """Resolve the names of a query. `sql` is the text that the tree was parsed from, if any."""
    has_session_functions = _replace_session_functions(tree, session)
    lists, changed = _resolve_tables(tree, session, listing)
    as_written = sql is not None and not (has_session_functions or lists or changed)
    text = sql if sql is not None and as_written else tree.sql(dialect="trino")
    catalog_query = _build_catalog_query(tree) if lists else None
    return ResolvedQuery(
        text,
        _column_names(tree),
        is_cacheable=not (has_session_functions or lists),
        tree=catalog_query,
    )


def _build_catalog_query(tree: exp.Query) -> exp.Query:
    """Return a query on catalog tables in DuckDB's dialect, validated by the guard.

    The size of the caller's text was checked before; the inserted rows grow with the lake. They
    have names and small numbers, which mean the same in all dialects; identifiers are quoted,
    because a name in one dialect may be a keyword in another.
    """
    guarded = guard(
        tree.sql(dialect="duckdb", identify=True, comments=False),
        "duckdb",
        SyntaxLimits(characters=literal_table.MAX_CHARACTERS * MAX_CATALOG_TABLES),
    )
    if guarded.tables:
        raise TrinoError(
            "NOT_SUPPORTED", "The query reads more than catalog tables.", "Use two queries."
        )
    return guarded.tree


def qualify_name(parts: Sequence[str], session: ClientSession) -> tuple[str, str, str]:
    """Return catalog, schema and name of a table that is written with one to three names."""
    lower = [part.lower() for part in parts]
    name = lower.pop()
    schema = lower.pop() if lower else session.schema
    catalog = lower.pop() if lower else session.catalog
    if schema is None:
        raise TrinoError(
            "MISSING_SCHEMA_NAME",
            f"Schema must be specified when session schema is not set: {sanitize(name)}.",
            "Write layer.name, or USE a layer first.",
        )
    check_catalog(catalog)
    return catalog, schema, name


def check_catalog(catalog: str) -> str:
    """Return the catalog. Raises TrinoError when it does not exist."""
    if catalog not in CATALOGS:
        raise TrinoError(
            "CATALOG_NOT_FOUND",
            f"Catalog '{sanitize(catalog)}' not found.",
            f"The lake's tables are in the catalog {CATALOG_NAME}.",
        )
    return catalog


def _replace_session_functions(tree: exp.Query, session: ClientSession) -> bool:
    """Replace functions such as current_user by their values; return whether there were any."""
    from sqlglot import exp

    found: list[tuple[exp.Expr, str | None]] = []
    for node in tree.walk():
        match node:
            case exp.CurrentVersion():
                found.append((node, VERSION))
            case exp.CurrentUser():
                found.append((node, session.user))
            case exp.CurrentCatalog():
                found.append((node, session.catalog))
            case exp.CurrentTimezone():
                found.append((node, "UTC"))
            case exp.Column() if _is_word(node, "current_schema"):
                found.append((node, session.schema))
    for node, text in found:
        node.replace(exp.null() if text is None else exp.Literal.string(text))
    return bool(found)


def _is_word(node: exp.Column, word: str) -> bool:
    return not node.table and not node.this.args.get("quoted") and node.name.lower() == word


def _resolve_tables(
    tree: exp.Query, session: ClientSession, listing: CatalogListing
) -> tuple[bool, bool]:
    """Resolve all table references.

    Returns whether some are catalog tables, and whether other references changed.
    """
    from sqlglot import errors
    from sqlglot.optimizer.scope import traverse_scope

    try:
        scopes = traverse_scope(tree)
    except (errors.SqlglotError, *PARSER_CRASHES):
        return False, False  # the guard reports the error
    lists: list[tuple[exp.Table, str, tuple[str, str]]] = []
    changed = reads_stored = False
    seen: set[int] = set()
    for scope in scopes:
        tables, is_respelled = _find_tables(scope, seen)
        changed |= is_respelled
        for reference in tables:
            catalog, schema, name = qualify_name([part.name for part in reference.parts], session)
            if schema == "information_schema" or catalog == SYSTEM:
                if (schema, name) not in CATALOG_TABLES:
                    raise _table_not_found(catalog, schema, name)
                lists.append((reference, catalog, (schema, name)))
            else:
                reads_stored = True
                changed |= _add_schema(reference, schema)
        changed |= _shorten_columns(scope, session)
    if len(lists) > MAX_CATALOG_TABLES:
        raise TrinoError(
            "NOT_SUPPORTED", f"The query reads {len(lists)} catalog tables.", "Use fewer."
        )
    if lists and reads_stored:
        raise TrinoError(
            "NOT_SUPPORTED",
            "A query cannot read tables of the lake and catalog tables at once.",
            "Use two queries.",
        )
    # Build all before replacing any: what a catalog table must return depends on the whole query.
    texts = [
        literal_table.build_list_query(CATALOG_TABLES[key], listing, catalog, each)
        for each, catalog, key in lists
    ]
    for (reference, _, _), query in zip(lists, texts):
        _replace_table(reference, query)
    return bool(lists), changed


def _find_tables(scope: Scope, seen: set[int]) -> tuple[list[exp.Table], bool]:
    """Return the references to tables in a scope that are not to a CTE.

    Names are case-insensitive: a reference to a CTE gets the spelling of its WITH. The second value
    is whether that changed anything.
    """
    from sqlglot import exp

    common = {name.lower(): name for name in scope.cte_sources}
    found, is_respelled = [], False
    for source in scope.tables:
        if id(source) in seen or not isinstance(source.this, exp.Identifier):
            continue
        seen.add(id(source))
        name = common.get(source.name.lower()) if not source.db else None
        if name is None:
            found.append(source)
        elif name != source.name:
            source.this.set("this", name)
            is_respelled = True
    return found, is_respelled


def _add_schema(reference: exp.Table, schema: str) -> bool:
    from sqlglot import exp

    if reference.db:
        return False
    reference.set("db", exp.to_identifier(schema, quoted=True))
    return True


def _shorten_columns(scope: Scope, session: ClientSession) -> bool:
    """Shorten `silver.orders.id`, as SQLAlchemy writes columns, to `orders.id`."""
    changed = False
    for column in scope.columns:
        if not column.args.get("db"):
            continue
        named = [column.args["db"].name.lower(), column.table.lower()]
        owners = [
            source
            for source in scope.tables
            if not source.alias and [(source.db or session.schema or "").lower(),
                                     source.name.lower()] == named
        ]  # fmt: skip
        if len(owners) == 1:
            column.set("db", None)
            column.set("catalog", None)
            changed = True
    return changed


def _replace_table(reference: exp.Table, query: exp.Select) -> None:
    from sqlglot import exp

    alias = reference.args.get("alias") or exp.TableAlias(
        this=exp.to_identifier(reference.name, quoted=True)
    )
    subquery = exp.Subquery(this=query, alias=alias.copy())
    for part in ("joins", "laterals", "sample"):
        if reference.args.get(part):
            subquery.set(part, reference.args[part])
    reference.replace(subquery)


def _column_names(tree: exp.Query) -> tuple[str | None, ...]:
    """Return Trino's names of a query's columns: `_col3` for one without a name."""
    from sqlglot import exp

    node: exp.Expr = tree
    while isinstance(node, exp.Subquery | exp.SetOperation):
        node = node.this
    if not isinstance(node, exp.Select):
        return ()
    found: list[str | None] = []
    for place, each in enumerate(node.expressions):
        if each.is_star:
            return ()
        if isinstance(each, exp.Alias | exp.Column):
            found.append(None)
        elif isinstance(each, exp.Dot):
            found.append(each.expression.name)
        else:
            found.append(f"_col{place}")
    return tuple(found)


def _table_not_found(catalog: str, schema: str, name: str) -> TrinoError:
    return TrinoError(
        "TABLE_NOT_FOUND",
        f"Table '{sanitize(f'{catalog}.{schema}.{name}')}' does not exist.",
        "SHOW TABLES lists those that do.",
    )
