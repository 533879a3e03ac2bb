"""Sources that pass a stored table's rows one by one, with that table's changed rows in its place.

A stored table does, and a SELECT over one such source that only filters, projects and unnests, and
UNION ALL. What such a source gives for the old and new images of the changed rows holds every row
by which its old and its new content differ.
"""

from __future__ import annotations

from sqlglot import exp

from thermocline.transform.impact.allow_list import aggregates
from thermocline.transform.impact.bound_query import Bound, sources
from thermocline.transform.impact.errors import Unsafe
from thermocline.transform.target_parts import CHANGED, EITHER, OLD

Image = tuple[str, exp.Expr]
"""A stored table, and a source that gives what its changed rows make of it, with OLD."""
_ROW_BY_ROW = ("group", "having", "qualify", "distinct")


def images(source: exp.Expr, bound: Bound) -> list[Image]:
    """The source over changed rows, once for each stored table below it."""
    inner = inner_query(source, bound)
    if inner is None:
        assert isinstance(source, exp.Table)
        return [(table_name(source), _stored(source, CHANGED))]
    return [
        (table, exp.Subquery(this=query, alias=_alias(source)))
        for table, query in _images_of(inner, bound)
    ]


def either(source: exp.Expr, bound: Bound) -> exp.Expr:
    """The source over everything that it held before or holds now."""
    inner = inner_query(source, bound)
    if inner is None:
        assert isinstance(source, exp.Table)
        return _stored(source, EITHER)
    query = inner.copy()
    _fill_either(query, bound)
    return exp.Subquery(this=query, alias=_alias(source))


def table_name(reference: exp.Table) -> str:
    """The name of a stored table as the rest of the house says it."""
    return f"{reference.db}.{reference.name}"


def _stored(table: exp.Table, schema: str) -> exp.Table:
    named = exp.to_identifier(table_name(table), quoted=True)
    return exp.Table(this=named, db=exp.to_identifier(schema), alias=_alias(table))


def changed_rows(table: str) -> exp.Table:
    """The images of a table's changed rows."""
    name, alias = exp.to_identifier(table, quoted=True), exp.to_identifier("changed")
    schema = exp.to_identifier(CHANGED)
    return exp.Table(this=name, db=schema, alias=exp.TableAlias(this=alias))


def _alias(source: exp.Expr) -> exp.TableAlias:
    return exp.TableAlias(this=exp.to_identifier(source.alias_or_name))


def inner_query(source: exp.Expr, bound: Bound) -> exp.Query | None:
    """The query behind a source; None for a stored table."""
    if isinstance(source, exp.Table):
        return None if source.db else bound.ctes[source.name.lower()]
    if isinstance(source, exp.Subquery):
        return unwrapped(source)
    raise Unsafe(f"{type(source).__name__.upper()} as a source")


def unwrapped(query: exp.Subquery) -> exp.Query:
    """What stands in brackets."""
    inner = query.unnest()
    if not isinstance(inner, exp.Query):
        raise Unsafe(f"{type(inner).__name__.upper()} as a source")
    return inner


def _images_of(query: exp.Query, bound: Bound) -> list[tuple[str, exp.Select]]:
    if isinstance(query, exp.Subquery):
        return _images_of(unwrapped(query), bound)
    if isinstance(query, exp.Union) and not query.args.get("distinct"):
        return [*_images_of(query.left, bound), *_images_of(query.right, bound)]
    if not isinstance(query, exp.Select):
        raise Unsafe(type(query).__name__.upper())
    first = _require_row_by_row(query)
    found = []
    for table, image in images(first, bound):
        copy = query.copy()
        copy.args["from_"].set("this", image)
        copy.select(exp.column(OLD, table=first.alias_or_name).as_(OLD), copy=False)
        found.append((table, copy))
    return found


def _require_row_by_row(select: exp.Select) -> exp.Expr:
    """The one source of a SELECT each of whose rows comes from one row of it."""
    first, *others = sources(select) or [exp.Null()]
    if not all(isinstance(each, exp.Unnest) for each in others):
        raise Unsafe("a join")
    if isinstance(first, exp.Null | exp.Unnest) or any(
        select.args.get(part) for part in _ROW_BY_ROW
    ):
        raise Unsafe("rows that are grouped or made distinct")
    if any(aggregates(each) or each.find(exp.Window) for each in select.selects):
        raise Unsafe("an aggregate or a window")
    return first


def _fill_either(query: exp.Query, bound: Bound) -> None:
    if isinstance(query, exp.Subquery):
        _fill_either(unwrapped(query), bound)
    elif isinstance(query, exp.SetOperation):
        _fill_either(query.left, bound)
        _fill_either(query.right, bound)
    elif isinstance(query, exp.Select):
        for source in sources(query):
            if not isinstance(source, exp.Unnest):
                source.replace(either(source, bound))
