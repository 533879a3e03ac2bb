"""A query as a client means it: names completed by its session, lists of tables written out.

What comes out is a text for the router, which guards it like any other. A query in which nothing
had to be completed is passed on as it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from thermocline.serve.trino import literal
from thermocline.serve.trino.catalog_tables import CATALOGS, LISTS, SYSTEM, VERSION, Lake
from thermocline.serve.trino.faults import Faulty
from thermocline.sql.guard import CATALOG_NAME, PARSER_CRASHES, SyntaxLimits, guard, sanitize

if TYPE_CHECKING:
    from sqlglot import exp
    from sqlglot.optimizer.scope import Scope

    from thermocline.serve.trino.sessions import Session

MOST_LISTS = 20
"""How many lists of tables one query may read."""


@dataclass(frozen=True)
class Resolved:
    """A query for the router. `names` are of its columns, None where the engine names them.

    `tree` is there for a query on lists alone: one of our own making, in DuckDB's dialect.
    """

    sql: str
    names: tuple[str | None, ...]
    """Empty where a * stands among the columns, so that they cannot be counted."""
    lasting: bool
    """Whether it is the same for everybody who is in the same schema, whatever the lake holds."""
    tree: exp.Query | None = None


def resolve(tree: exp.Query, sql: str | None, session: Session, lake: Lake) -> Resolved:
    """Complete a query. `sql` is its text, if it is what the tree was parsed from."""
    told = _told(tree, session)
    lists, changed = _tables(tree, session, lake)
    as_written = sql is not None and not (told or lists or changed)
    text = sql if sql is not None and as_written else tree.sql(dialect="trino")
    own = _own(tree) if lists else None
    return Resolved(text, _names(tree), lasting=not (told or lists), tree=own)


def _own(tree: exp.Query) -> exp.Query:
    """A query on lists, in the dialect of the engine that will run it, and judged in that.

    What the caller wrote of it was measured before; the lists are as long as the lake is wide.
    Lists hold names and small numbers, of which all dialects think the same; names are quoted,
    because what is a name in one may be something else in another.
    """
    judged = guard(
        tree.sql(dialect="duckdb", identify=True, comments=False),
        "duckdb",
        SyntaxLimits(characters=literal.MOST * MOST_LISTS),
    )
    if judged.tables:
        raise Faulty("NOT_SUPPORTED", "The query reads more than lists.", "Ask in two queries.")
    return judged.tree


def location(parts: Sequence[str], session: Session) -> tuple[str, str, str]:
    """Catalog, schema and name of a table that is written with one to three names."""
    lower = [part.lower() for part in parts]
    name = lower.pop()
    schema = lower.pop() if lower else session.schema
    catalog = lower.pop() if lower else session.catalog
    if schema is None:
        raise Faulty(
            "MISSING_SCHEMA_NAME",
            f"Schema must be specified when session schema is not set: {sanitize(name)}.",
            "Write layer.name, or USE a layer first.",
        )
    known(catalog)
    return catalog, schema, name


def known(catalog: str) -> str:
    """A catalog that there is."""
    if catalog not in CATALOGS:
        raise Faulty(
            "CATALOG_NOT_FOUND",
            f"Catalog '{sanitize(catalog)}' not found.",
            f"The lake's tables are in the catalog {CATALOG_NAME}.",
        )
    return catalog


def _told(tree: exp.Query, session: Session) -> bool:
    """Put in what only this server knows: who asks, and in which session."""
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


def _tables(tree: exp.Query, session: Session, lake: Lake) -> tuple[bool, bool]:
    """Complete all mentions of tables. Whether some were lists, and whether others changed."""
    from sqlglot import errors
    from sqlglot.optimizer.scope import traverse_scope

    try:
        scopes = traverse_scope(tree)
    except (errors.SqlglotError, *PARSER_CRASHES):
        return False, False  # the guard says what is wrong with it
    lists: list[tuple[exp.Table, str, tuple[str, str]]] = []
    changed = stored = False
    seen: set[int] = set()
    for scope in scopes:
        mentions, respelled = _mentions(scope, seen)
        changed |= respelled
        for mention in mentions:
            catalog, schema, name = location([part.name for part in mention.parts], session)
            if schema == "information_schema" or catalog == SYSTEM:
                if (schema, name) not in LISTS:
                    raise _no_table(catalog, schema, name)
                lists.append((mention, catalog, (schema, name)))
            else:
                stored = True
                changed |= _completed(mention, schema)
        changed |= _shortened(scope, session)
    if len(lists) > MOST_LISTS:
        raise Faulty("NOT_SUPPORTED", f"There are {len(lists)} lists in it.", "Ask for fewer.")
    if lists and stored:
        raise Faulty(
            "NOT_SUPPORTED",
            "A query reads tables of the lake, or lists of them; not both at once.",
            "Ask in two queries.",
        )
    # All are written before any is put in: what a list must show depends on the whole query.
    texts = [literal.written(LISTS[key], lake, catalog, each) for each, catalog, key in lists]
    for (mention, _, _), query in zip(lists, texts):
        _put(mention, query)
    return bool(lists), changed


def _mentions(scope: Scope, seen: set[int]) -> tuple[list[exp.Table], bool]:
    """Mentions of tables in a scope that are not of a CTE.

    Case does not tell names apart: a CTE is mentioned however it is spelled, and from then on is
    spelled as its WITH does. Whether that changed anything is the second value.
    """
    from sqlglot import exp

    common = {name.lower(): name for name in scope.cte_sources}
    found, respelled = [], False
    for source in scope.tables:
        if id(source) in seen or not isinstance(source.this, exp.Identifier):
            continue
        seen.add(id(source))
        name = common.get(source.name.lower()) if not source.db else None
        if name is None:
            found.append(source)
        elif name != source.name:
            source.this.set("this", name)
            respelled = True
    return found, respelled


def _completed(mention: exp.Table, schema: str) -> bool:
    from sqlglot import exp

    if mention.db:
        return False
    mention.set("db", exp.to_identifier(schema, quoted=True))
    return True


def _shortened(scope: Scope, session: Session) -> bool:
    """`silver.orders.id`, as SQLAlchemy writes columns, names the source `orders`."""
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


def _put(mention: exp.Table, query: exp.Select) -> None:
    from sqlglot import exp

    alias = mention.args.get("alias") or exp.TableAlias(
        this=exp.to_identifier(mention.name, quoted=True)
    )
    subquery = exp.Subquery(this=query, alias=alias.copy())
    for part in ("joins", "laterals", "sample"):
        if mention.args.get(part):
            subquery.set(part, mention.args[part])
    mention.replace(subquery)


def _names(tree: exp.Query) -> tuple[str | None, ...]:
    """Trino's names of a query's columns: `_col3` for one that has none of its own."""
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


def _no_table(catalog: str, schema: str, name: str) -> Faulty:
    return Faulty(
        "TABLE_NOT_FOUND",
        f"Table '{sanitize(f'{catalog}.{schema}.{name}')}' does not exist.",
        "SHOW TABLES lists those that do.",
    )
