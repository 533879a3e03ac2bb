"""Qualify a query: resolve every name, so that no dialect's resolution rules matter."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from sqlglot import errors, exp

from thermocline.engine.query_types import Columns, annotate
from thermocline.errors import first_line
from thermocline.sql.dialect.rewrite import refuse_translation
from thermocline.sql.guard import PARSER_CRASHES

if TYPE_CHECKING:
    from sqlglot.schema import MappingSchema


def qualify_query(tree: exp.Query, dialect: str, known: MappingSchema) -> exp.Query:
    """Give each column its table, expand stars, aliases and USING, and annotate types."""
    from sqlglot.optimizer.qualify import qualify

    if any(each.args.get("on") for each in tree.find_all(exp.Distinct)):
        refuse_translation("DISTINCT ON")
    for part in list(tree.find_all(exp.Anonymous)):
        if part.name.lower() == "date_part" and len(part.expressions) == 2:
            name, of = part.expressions
            if isinstance(name, exp.Literal):
                part.replace(exp.Extract(this=exp.Var(this=name.name.upper()), expression=of))
    try:
        tree = qualify(
            tree,
            schema=known,
            dialect=dialect,
            quote_identifiers=False,
            validate_qualify_columns=False,
            isolate_tables=False,
        )
    except errors.SqlglotError as error:
        refuse_translation("a name that cannot be resolved", first_line(error)[:120])
    except PARSER_CRASHES:
        refuse_translation("a name that cannot be resolved")
    for select in tree.find_all(exp.Select):
        _expand_group_by_all(select)
        _refuse_duplicate_names(select, outermost=select is _first_select(tree))
    annotate(tree, known, dialect)
    return tree


def _expand_group_by_all(select: exp.Select) -> None:
    """Expand GROUP BY ALL: group by every result without an aggregate."""
    group = select.args.get("group")
    if group is None or not group.args.get("all"):
        return
    if any(each.find(exp.Query) for each in select.selects):
        refuse_translation("GROUP BY ALL with a subquery among its results")
    keys = [
        each.unalias().copy()
        for each in select.selects
        if not any(not isinstance(agg.parent, exp.Window) for agg in each.find_all(exp.AggFunc))
    ]
    if any(not key.find(exp.Column) or key.find(exp.Window) for key in keys):
        refuse_translation("GROUP BY ALL with constants or windows")
    select.set("group", exp.Group(expressions=keys) if keys else None)


def _refuse_duplicate_names(select: exp.Select, *, outermost: bool) -> None:
    """Refuse subqueries with two columns of the same name."""
    names = [each.alias_or_name.lower() for each in select.selects]
    star = any(each.is_star for each in select.selects)
    if star and select.args.get("joins"):
        refuse_translation("* of several tables", "their columns are unknown")
    if not outermost and len(set(names)) < len(names):
        refuse_translation("a subquery with two columns of the same name")


def _first_select(tree: exp.Query) -> exp.Expr:
    node: exp.Expr = tree
    while isinstance(node, exp.SetOperation | exp.Subquery):
        node = node.this
    return node


def rename_ambiguous_sources(tree: exp.Query, columns: Columns) -> None:
    """Rename sources that have the name of a column: `f.k` could mean field `k` of column `f`.

    In a subquery, other engines search the columns of its own tables before those of outer queries.
    """
    names = {name.lower() for table in columns.values() for name in table}
    names |= {each.alias.lower() for each in tree.find_all(exp.Alias)}
    sources = [
        alias.this
        for alias in tree.find_all(exp.TableAlias)
        if alias.this is not None and not isinstance(alias.parent, exp.CTE)
    ]
    taken = names | {each.name for each in sources}
    renamed: dict[str, str] = {}
    for name in sorted({each.name for each in sources} & names):
        renamed[name] = next(
            other for n in itertools.count(1) if (other := f"{name}_{n}") not in taken
        )
        taken.add(renamed[name])
    mentions = [column.args["table"] for column in tree.find_all(exp.Column) if column.table]
    for each in (*sources, *mentions):
        each.set("this", renamed.get(each.name, each.name))
