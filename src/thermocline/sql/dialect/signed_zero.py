"""Zeros have no sign here: in every engine -0.0 divides like 0.0.

DuckDB loses the sign where it sorts, groups or stores (`engine.duck_sql`), Spark where it groups.
So that a query has one result, no engine may show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from thermocline.engine.duck_sql import SIGN_SENSITIVE
from thermocline.engine.query_types import T, family, with_type
from thermocline.sql.dialect import qualify, shared_rules
from thermocline.sql.dialect.rewrite import Untranslatable, cast, parenthesize

if TYPE_CHECKING:
    from sqlglot.schema import MappingSchema

_TYPES = {"double": T.DOUBLE, "real": T.FLOAT}
_NUMBER = "number"


def remove_zero_sign(node: exp.Expr) -> exp.Expr:
    """Add 0.0 to a float, so that it is never -0.0; return other values unchanged."""
    kind = _TYPES.get(family(node))
    if kind is None or isinstance(node.unnest(), exp.Literal):
        return node
    zero = cast(exp.Literal.number(0), kind)
    return with_type(exp.paren(exp.Add(this=parenthesize(node), expression=zero), copy=False), kind)


def rewrite_power(node: exp.Expr) -> exp.Expr:
    """Rewrite POW, whose base may be a zero."""
    node = shared_rules.RULES["Pow"](node)
    node.set("this", remove_zero_sign(node.this))
    return node


def remove_zero_signs(tree: exp.Query, dialect: str, known: MappingSchema) -> None:
    """Rewrite a tree that keeps its dialect so that no float shows the sign of a zero.

    If types are unknown because a name cannot be resolved, the tree stays unchanged.
    """
    showing = list(tree.find_all(*SIGN_SENSITIVE))
    if not showing:
        return
    for number, node in enumerate(showing):
        node.meta[_NUMBER] = number
    try:
        twin = qualify.qualify_query(tree.copy(), dialect, known)
    except Untranslatable:
        return
    types = {each.meta.get(_NUMBER): each for each in twin.find_all(*SIGN_SENSITIVE)}
    for node in reversed(showing):
        other = types.get(node.meta[_NUMBER])
        if other is None:
            continue
        for key in SIGN_SENSITIVE[type(node)]:
            node.args[key].type = other.args[key].type
            node.set(key, remove_zero_sign(node.args[key]))
