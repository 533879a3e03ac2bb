"""A model's query with every name resolved: stars written out, each column under its source.

All CTEs stand at the root, so that any part of the query can be asked for by itself. A query whose
names cannot be resolved with certainty is not safe to be computed in parts.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlglot import errors, exp

from thermocline.engine import query_types
from thermocline.engine.query_types import Columns
from thermocline.transform.impact.allow_list import require_allowed
from thermocline.transform.impact.errors import Unsafe

PLACE = "place"
"""In a table's meta: which mention of a stored table it is, counted through the query's text."""


@dataclass(frozen=True)
class Bound:
    """A bound query. `query` has no WITH: its CTEs are in `ctes`, each after those it reads."""

    query: exp.Query
    ctes: dict[str, exp.Query]

    def with_ctes(self, query: exp.Select) -> exp.Select:
        """A query over parts of this one, which can be run by itself."""
        query.set("with_", None)
        for name, inner in self.ctes.items():
            query = query.with_(name, as_=inner.copy(), copy=False)
        return query


def bind(query: exp.Query, columns: Columns) -> Bound:
    """Resolve a query's names over its sources' columns; raise Unsafe for what has no rule."""
    query = query.copy()
    if any(each.recursive for each in query.find_all(exp.With)):
        raise Unsafe("a recursive CTE")
    mentions = stored_tables(query)
    for place, reference in enumerate(mentions):
        reference.meta[PLACE] = place
    try:
        bound = query_types.qualify_and_annotate(query, columns)
    except (errors.SqlglotError, RecursionError) as error:
        raise Unsafe(f"a name in it ({str(error).splitlines()[0]})") from error
    if not isinstance(bound, exp.Query):
        raise Unsafe("what is no SELECT")
    for ordered in list(bound.find_all(exp.Select, exp.SetOperation)):
        if not (ordered.args.get("limit") or ordered.args.get("offset")):
            ordered.set("order", None)  # the order of a table's rows means nothing
    _name_branches_alike(bound)
    require_allowed(bound)
    found = Bound(bound, _hoisted(bound))
    _require_resolved(found)
    return found


def stored_tables(query: exp.Expr) -> list[exp.Table]:
    """The mentions of stored tables in a query, in the order of its text."""
    return [found for found in query.find_all(exp.Table) if found.db]


def sources(select: exp.Select) -> list[exp.Expr]:
    """What a SELECT reads from: its FROM and its joins."""
    first = select.args.get("from_")
    joins = select.args.get("joins") or []
    return ([first.this] if first else []) + [join.this for join in joins]


def _name_branches_alike(bound: exp.Query) -> None:
    """Give all branches of a set operation the column names that it takes from its first one."""
    for operation in bound.find_all(exp.SetOperation):
        names = [each.alias_or_name for each in operation.selects]
        branch: exp.Expr = operation.right
        while isinstance(branch, exp.SetOperation | exp.Subquery):
            branch = branch.this
        if not isinstance(branch, exp.Select) or len(branch.selects) != len(names):
            raise Unsafe("branches of different width")
        named = zip(branch.selects, names, strict=True)
        branch.set("expressions", [_aliased(each.unalias(), name) for each, name in named])


def _aliased(value: exp.Expr, name: str) -> exp.Expr:
    return query_types.with_type(exp.alias_(value, name), value.type or exp.DType.UNKNOWN)


def _hoisted(bound: exp.Query) -> dict[str, exp.Query]:
    """Take all CTEs out of a query, those of inner queries before the ones that hold them."""
    found: dict[str, exp.Query] = {}
    for node in [each for each in bound.walk() if each.args.get("with_") is not None]:
        with_ = node.args["with_"]
        if with_ is None:
            continue  # taken with the CTE that held it
        node.set("with_", None)
        for cte in with_.expressions:
            inner = _hoisted(cte.this)
            if cte.args["alias"].columns:
                raise Unsafe("a CTE with a list of columns")
            for name, query in {**inner, cte.alias.lower(): cte.this}.items():
                if name in found:
                    raise Unsafe(f"two CTEs of one name, {name}")
                found[name] = query
    return found


def _require_resolved(bound: Bound) -> None:
    """Every column belongs to a source of the SELECT that it stands in, by one name alone."""
    for query in (bound.query, *bound.ctes.values()):
        for select in query.find_all(exp.Select):
            _require_own(select)
        for table in query.find_all(exp.Table):
            if not table.db and table.name.lower() not in bound.ctes:
                raise Unsafe(f"{table.name}, a source that is not known")


def _require_own(select: exp.Select) -> None:
    names = [source.alias_or_name.lower() for source in sources(select)]
    if len(set(names)) < len(names) or "" in names:
        raise Unsafe("two sources of one name")
    for source in sources(select):
        alias = source.args.get("alias")
        if alias is not None and alias.columns and not isinstance(source, exp.Unnest):
            raise Unsafe("a source with a list of columns")
    outputs = [each.alias_or_name.lower() for each in select.selects]
    if len(set(outputs)) < len(outputs):
        raise Unsafe("two output columns of one name")
    for column in select.find_all(exp.Column):
        if column.parent_select is select and column.table.lower() not in names:
            raise Unsafe(f"{column.sql()}, a name from outside its SELECT")
