"""Where an output column comes from: every SELECT that it passes through, and what it is there.

Every column of an expression is followed, through renames, stars, CTEs, derived tables and unions,
down to the stored tables.
"""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

MOST_STEPS = 500


def passed(query: exp.Query, name: str) -> Iterator[tuple[exp.Select, exp.Expr | None]]:
    """Each SELECT on the way of an output column, with the expression; None where nobody can tell.

    Somebody who needs certainty takes None for the worst.
    """
    ctes = list(query.find_all(exp.CTE))
    names = [cte.alias_or_name for cte in ctes]
    known = {cte.alias_or_name: cte.this for cte in ctes if names.count(cte.alias_or_name) == 1}
    waiting: list[tuple[exp.Expr, str]] = [(query, name)]
    seen: set[tuple[int, str]] = set()
    while waiting:
        node, wanted = waiting.pop()
        if (id(node), wanted.lower()) in seen or len(seen) > MOST_STEPS:
            continue
        seen.add((id(node), wanted.lower()))
        if isinstance(node, exp.Subquery):
            waiting.append((node.this, wanted))
        elif isinstance(node, exp.SetOperation):
            waiting += _branches(node, wanted)
        elif isinstance(node, exp.Select):
            value = output(node, wanted)
            yield node, value
            for column in value.find_all(exp.Column) if value is not None else ():
                for source in _sources_of(node, column):
                    inner = known.get(source.name) if isinstance(source, exp.Table) else source
                    stored = isinstance(source, exp.Table) and source.db
                    if inner is not None and not stored:
                        waiting.append((inner, column.name))


def _branches(union: exp.SetOperation, name: str) -> list[tuple[exp.Expr, str]]:
    names = [each.alias_or_name.lower() for each in union.selects]
    if names.count(name.lower()) != 1:
        return [(union.left, name), (union.right, name)]
    place = names.index(name.lower())
    branches = [union.left, union.right]
    return [
        (branch, branch.selects[place].alias_or_name if place < len(branch.selects) else name)
        for branch in branches
    ]


def _sources_of(select: exp.Select, column: exp.Column) -> list[exp.Expr]:
    """The sources that a column may belong to: the one it names, or any."""
    every = sources(select)
    named = [each for each in every if each.alias_or_name.lower() == column.table.lower()]
    return named if column.table and named else every


def output(select: exp.Select, name: str) -> exp.Expr | None:
    """What an output column of a SELECT is. A star gives its source's column, if there is one."""
    named = [each for each in select.selects if each.alias_or_name.lower() == name.lower()]
    stars = [each for each in select.selects if each.is_star]
    if len(named) == 1 and not isinstance(named[0], exp.Star):
        return named[0].unalias()
    if named or len(stars) != 1 or len(sources(select)) != 1:
        return None
    star = stars[0]
    changed = star.args if isinstance(star, exp.Star) else star.this.args
    if any(changed.get(key) for key in ("except_", "except", "replace", "rename")):
        return None
    return exp.column(name)


def sources(select: exp.Select) -> list[exp.Expr]:
    """What a SELECT reads from: its FROM, its joins, its laterals."""
    first = select.args.get("from_")
    joins = select.args.get("joins") or []
    laterals = select.args.get("laterals") or []
    return ([first.this] if first else []) + [join.this for join in joins] + list(laterals)
