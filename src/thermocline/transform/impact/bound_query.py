"""A model's query with every name resolved: stars expanded, each column qualified by its source.

All CTEs are hoisted to the root, so that each part of the query can run by itself. A query whose
names cannot be resolved with certainty is not safe for computing only some parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import errors, exp

from thermocline.engine import query_types
from thermocline.engine.query_types import Columns
from thermocline.errors import first_line
from thermocline.transform.impact.allow_list import require_allowed
from thermocline.transform.impact.unsafe import Unsafe

POSITION = "place"
"""Key in a table's meta: its position among the references to stored tables in the query's text."""


@dataclass(frozen=True)
class BoundQuery:
    """A bound query. `query` has no WITH: its CTEs are in `ctes`, each after those it reads."""

    query: exp.Query
    ctes: dict[str, exp.Query]

    def with_ctes(self, query: exp.Select) -> exp.Select:
        """Return a query over parts of this one, with the CTEs that it needs to run by itself."""
        query.set("with_", None)
        for name, inner in self.ctes.items():
            query = query.with_(name, as_=inner.copy(), copy=False)
        return query


def bind(query: exp.Query, columns: Columns) -> BoundQuery:
    """Resolve a query's names over its sources' columns; raise Unsafe for unlisted constructs."""
    query = query.copy()
    if any(each.recursive for each in query.find_all(exp.With)):
        raise Unsafe("a recursive CTE")
    mentions = find_stored_tables(query)
    for position, reference in enumerate(mentions):
        reference.meta[POSITION] = position
    try:
        bound = query_types.qualify_and_annotate(query, columns)
    except (errors.SqlglotError, RecursionError) as error:
        raise Unsafe(f"a name in it ({first_line(error)})") from error
    if not isinstance(bound, exp.Query):
        raise Unsafe("a statement that is not a SELECT")
    for ordered in list(bound.find_all(exp.Select, exp.SetOperation)):
        if not (ordered.args.get("limit") or ordered.args.get("offset")):
            ordered.set("order", None)  # a table's rows have no order
    _align_branch_names(bound)
    require_allowed(bound)
    found = BoundQuery(bound, _hoist_ctes(bound))
    _require_resolved(found)
    return found


def find_stored_tables(query: exp.Expr) -> list[exp.Table]:
    """Return the references to stored tables in a query, in the order of its text."""
    return [found for found in query.find_all(exp.Table) if found.db]


def list_sources(select: exp.Select) -> list[exp.Expr]:
    """Return the sources of a SELECT: its FROM and its joins."""
    first = select.args.get("from_")
    joins = select.args.get("joins") or []
    return ([first.this] if first else []) + [join.this for join in joins]


def _align_branch_names(bound: exp.Query) -> None:
    """Give all branches of a set operation the column names of its first branch."""
    for operation in bound.find_all(exp.SetOperation):
        names = [each.alias_or_name for each in operation.selects]
        branch: exp.Expr = operation.right
        while isinstance(branch, exp.SetOperation | exp.Subquery):
            branch = branch.this
        if not isinstance(branch, exp.Select) or len(branch.selects) != len(names):
            raise Unsafe("branches of different width")
        named = zip(branch.selects, names, strict=True)
        branch.set("expressions", [_add_alias(each.unalias(), name) for each, name in named])


def _add_alias(value: exp.Expr, name: str) -> exp.Expr:
    return query_types.with_type(exp.alias_(value, name), value.type or exp.DType.UNKNOWN)


def _hoist_ctes(bound: exp.Query) -> dict[str, exp.Query]:
    """Remove all CTEs from a query and return them, inner CTEs before outer ones."""
    found: dict[str, exp.Query] = {}
    for node in [each for each in bound.walk() if each.args.get("with_") is not None]:
        with_ = node.args["with_"]
        if with_ is None:
            continue  # hoisted with its outer CTE
        node.set("with_", None)
        for cte in with_.expressions:
            inner = _hoist_ctes(cte.this)
            if cte.args["alias"].columns:
                raise Unsafe("a CTE with a list of columns")
            for name, query in {**inner, cte.alias.lower(): cte.this}.items():
                if name in found:
                    raise Unsafe(f"two CTEs of one name, {name}")
                found[name] = query
    return found


def _require_resolved(bound: BoundQuery) -> None:
    """Require that every column belongs to exactly one source of its own SELECT."""
    for query in (bound.query, *bound.ctes.values()):
        for select in query.find_all(exp.Select):
            _require_own_columns(select)
        for table in query.find_all(exp.Table):
            if not table.db and table.name.lower() not in bound.ctes:
                raise Unsafe(f"{table.name}, a source that is not known")


def _require_own_columns(select: exp.Select) -> None:
    names = [source.alias_or_name.lower() for source in list_sources(select)]
    if len(set(names)) < len(names) or "" in names:
        raise Unsafe("two sources of one name")
    for source in list_sources(select):
        alias = source.args.get("alias")
        if alias is not None and alias.columns and not isinstance(source, exp.Unnest):
            raise Unsafe("a source with a list of columns")
    outputs = [each.alias_or_name.lower() for each in select.selects]
    if len(set(outputs)) < len(outputs):
        raise Unsafe("two output columns of one name")
    for column in select.find_all(exp.Column):
        if column.parent_select is select and column.table.lower() not in names:
            raise Unsafe(f"{column.sql()}, a name from outside its SELECT")
