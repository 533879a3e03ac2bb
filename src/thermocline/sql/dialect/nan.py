"""Comparisons of floats: in DuckDB and Spark, NaN equals itself and is greater than all numbers.

In Trino, as in IEEE 754, NaN is neither equal to, nor greater, nor less than anything. In ORDER BY,
however, it sorts above all numbers under NULLS LAST, and below them under NULLS FIRST.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.sql.dialect.rewrite import refuse_translation, rewrite_comparison

FRACTIONS = frozenset({"double", "real"})
IsNan = Callable[[exp.Expr], exp.Expr]
"""Returns the engine's test for NaN."""


def may_be_nan(node: exp.Expr) -> bool:
    """Return whether a value may be NaN; a constant cannot."""
    held = node.unnest()
    if isinstance(held, exp.Neg):
        held = held.this.unnest()
    return family(node) in FRACTIONS and not isinstance(held, exp.Literal)


def compare_nan_as_largest(node: exp.Expr, is_nan: IsNan) -> exp.Expr:
    """Rewrite a DuckDB comparison for an engine that follows IEEE 754."""
    node = rewrite_comparison(node)
    assert isinstance(node, exp.Binary)
    left, right = node.left, node.right
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        return node
    if isinstance(node, exp.LT | exp.LTE):
        left, right = right, left  # the code below expects the greater side on the left
    if isinstance(node, exp.EQ | exp.NEQ):
        if not (may_be_nan(left) and may_be_nan(right)):
            return node
        both = exp.and_(is_nan(left), is_nan(right))
        if isinstance(node, exp.EQ):
            return exp.paren(exp.or_(node.copy(), both))
        return exp.paren(exp.and_(node.copy(), exp.not_(exp.paren(both))))
    if not may_be_nan(left):
        return node
    strict = isinstance(node, exp.GT | exp.LT)
    if may_be_nan(right) and strict:
        beside: exp.Expr = exp.not_(is_nan(right))
    else:
        beside = exp.not_(exp.Is(this=right.copy(), expression=exp.Null()))
    return exp.paren(exp.or_(node.copy(), exp.and_(is_nan(left), beside)))


def compare_nan_as_ieee(node: exp.Expr, is_nan: IsNan) -> exp.Expr:
    """Rewrite a Trino comparison for an engine where NaN is greater than all numbers."""
    node = rewrite_comparison(node)
    assert isinstance(node, exp.Binary)
    if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ):
        return node
    sides = [each for each in (node.left, node.right) if may_be_nan(each)]
    if not sides:
        return node
    if isinstance(node, exp.NEQ):
        other = node.right if may_be_nan(node.left) else node.left
        known = exp.not_(exp.Is(this=other.copy(), expression=exp.Null()))
        # NaN differs from everything, itself included; a comparison with null is null.
        return exp.paren(exp.or_(node.copy(), exp.and_(is_nan(sides[0]), known)))
    if isinstance(node, exp.EQ):
        sides = sides[:1]
    return exp.paren(exp.and_(node.copy(), *(exp.not_(is_nan(each)) for each in sides)))


def refuse_fractions(node: exp.Expr, values: list[exp.Expr], where: str) -> exp.Expr:
    """Refuse a comparison inside another construct if NaN could change the result."""
    if any(may_be_nan(each) for each in values):
        refuse_translation(f"{where} of floats", "NaN is compared differently")
    return node


def sort_nan_as_largest(node: exp.Expr, is_nan: IsNan) -> exp.Expr:
    """Rewrite a DuckDB ORDER BY for Trino: NaN is greatest under NULLS FIRST too."""
    return _sort_nan(node, is_nan, below=False)


def sort_nan_as_trino(node: exp.Expr, is_nan: IsNan) -> exp.Expr:
    """Rewrite a Trino ORDER BY for DuckDB: under NULLS FIRST, NaN is below all numbers."""
    return _sort_nan(node, is_nan, below=True)


def _sort_nan(node: exp.Expr, is_nan: IsNan, *, below: bool) -> exp.Expr:
    found: list[exp.Expr] = []
    for each in node.expressions:
        if each.args.get("nulls_first") and may_be_nan(_resolve_sort_key(each.this, node.parent)):
            if isinstance(node.parent, exp.Select) and node.parent.args.get("distinct"):
                refuse_translation(
                    "DISTINCT with ORDER BY floats NULLS FIRST", "NaN is sorted differently"
                )
            # The NaN test is null for a null value, so it sorts where the value does.
            turned = bool(each.args.get("desc")) != below
            found.append(exp.Ordered(this=is_nan(each.this), desc=turned, nulls_first=True))
        found.append(each)
    node.set("expressions", found)
    return node


def _resolve_sort_key(key: exp.Expr, query: exp.Expr | None) -> exp.Expr:
    """Return the value that rows are ordered by, if the key is the name of a result."""
    while isinstance(query, exp.SetOperation | exp.Subquery):
        query = query.this
    if isinstance(key, exp.Column) and not key.table and isinstance(query, exp.Select):
        return next((each for each in query.selects if each.alias_or_name == key.name), key)
    return key
