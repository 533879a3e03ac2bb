"""Replace a stored table by its changed rows, in sources that process its rows one by one.

Such a source is a stored table, a SELECT over one such source that only filters, projects and
unnests, or a UNION ALL of them. Its rows over the old and new images of the changed rows include
every row in which its old and its new content differ.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.transform.impact.allow_list import has_aggregate
from thermocline.transform.impact.bound_query import BoundQuery, list_sources
from thermocline.transform.impact.unsafe import Unsafe
from thermocline.transform.target_parts import CHANGED, EITHER, OLD

Image = tuple[str, exp.Expr]
"""A stored table, and the source computed over its changed rows, with the column OLD."""
_ROW_BY_ROW = ("group", "having", "qualify", "distinct")


def build_images(source: exp.Expr, bound: BoundQuery) -> list[Image]:
    """Return the source over changed rows, once for each stored table that it reads."""
    inner = resolve_inner_query(source, bound)
    if inner is None:
        assert isinstance(source, exp.Table)
        return [(table_name(source), _reference_stored(source, CHANGED))]
    return [
        (table, exp.Subquery(this=query, alias=_alias(source)))
        for table, query in _build_query_images(inner, bound)
    ]


def build_old_and_new(source: exp.Expr, bound: BoundQuery) -> exp.Expr:
    """Return the source over the old and the current rows."""
    inner = resolve_inner_query(source, bound)
    if inner is None:
        assert isinstance(source, exp.Table)
        return _reference_stored(source, EITHER)
    query = inner.copy()
    _replace_sources(query, bound)
    return exp.Subquery(this=query, alias=_alias(source))


def table_name(reference: exp.Table) -> str:
    """Return the name of a stored table as layer.name."""
    return f"{reference.db}.{reference.name}"


def _reference_stored(table: exp.Table, schema: str) -> exp.Table:
    named = exp.to_identifier(table_name(table), quoted=True)
    return exp.Table(this=named, db=exp.to_identifier(schema), alias=_alias(table))


def reference_changed_rows(table: str) -> exp.Table:
    """Return a reference to the images of a table's changed rows."""
    name, alias = exp.to_identifier(table, quoted=True), exp.to_identifier("changed")
    schema = exp.to_identifier(CHANGED)
    return exp.Table(this=name, db=schema, alias=exp.TableAlias(this=alias))


def _alias(source: exp.Expr) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(source.alias_or_name))


def resolve_inner_query(source: exp.Expr, bound: BoundQuery) -> exp.Query | None:
    """Return the query of a source; None for a stored table."""
    if isinstance(source, exp.Table):
        return None if source.db else bound.ctes[source.name.lower()]
    if isinstance(source, exp.Subquery):
        return unwrap(source)
    raise Unsafe(f"{type(source).__name__.upper()} as a source")


def unwrap(query: exp.Subquery) -> exp.Query:
    """Return the query inside brackets."""
    inner = query.unnest()
    if not isinstance(inner, exp.Query):
        raise Unsafe(f"{type(inner).__name__.upper()} as a source")
    return inner


def _build_query_images(query: exp.Query, bound: BoundQuery) -> list[tuple[str, exp.Select]]:
    if isinstance(query, exp.Subquery):
        return _build_query_images(unwrap(query), bound)
    if isinstance(query, exp.Union) and not query.args.get("distinct"):
        return [*_build_query_images(query.left, bound), *_build_query_images(query.right, bound)]
    if not isinstance(query, exp.Select):
        raise Unsafe(type(query).__name__.upper())
    first = _require_row_by_row(query)
    found = []
    for table, image in build_images(first, bound):
        copy = query.copy()
        copy.args["from_"].set("this", image)
        copy.select(exp.column(OLD, table=first.alias_or_name).as_(OLD), copy=False)
        found.append((table, copy))
    return found


def _require_row_by_row(select: exp.Select) -> exp.Expr:
    """Return the one source of a SELECT whose rows each come from one source row."""
    first, *others = list_sources(select) or [exp.Null()]
    if not all(isinstance(each, exp.Unnest) for each in others):
        raise Unsafe("a join")
    if isinstance(first, exp.Null | exp.Unnest) or any(
        select.args.get(part) for part in _ROW_BY_ROW
    ):
        raise Unsafe("rows that are grouped or made distinct")
    if any(has_aggregate(each) or each.find(exp.Window) for each in select.selects):
        raise Unsafe("an aggregate or a window")
    return first


def _replace_sources(query: exp.Query, bound: BoundQuery) -> None:
    if isinstance(query, exp.Subquery):
        _replace_sources(unwrap(query), bound)
    elif isinstance(query, exp.SetOperation):
        _replace_sources(query.left, bound)
        _replace_sources(query.right, bound)
    elif isinstance(query, exp.Select):
        for source in list_sources(query):
            if not isinstance(source, exp.Unnest):
                source.replace(build_old_and_new(source, bound))
