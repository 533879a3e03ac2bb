"""Zeros have no sign here: -0.0 divides as 0.0 does, whoever answers.

DuckDB loses the sign where it sorts, groups or stores (`engine.duck_sql`), Spark where it groups.
So that one question has one answer, nobody may show it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import exp

from thermocline.engine.duck_sql import SHOWING
from thermocline.engine.query_types import T, family, typed
from thermocline.sql.dialect import qualify, shared_rules
from thermocline.sql.dialect.rewrite import Unfaithful, cast, wrapped

if TYPE_CHECKING:
    from sqlglot.schema import MappingSchema

_KINDS = {"double": T.DOUBLE, "real": T.FLOAT}
_NUMBER = "number"


def unsigned(node: exp.Expr) -> exp.Expr:
    """A fraction that is never -0.0, which no sum with 0.0 is; anything else as it is."""
    kind = _KINDS.get(family(node))
    if kind is None or isinstance(node.unnest(), exp.Literal):
        return node
    zero = cast(exp.Literal.number(0), kind)
    return typed(exp.paren(exp.Add(this=wrapped(node), expression=zero), copy=False), kind)


def power(node: exp.Expr) -> exp.Expr:
    """The rule of POW, whose base may be a zero."""
    node = shared_rules.RULES["Pow"](node)
    node.set("this", unsigned(node.this))
    return node


def forget_signs(tree: exp.Query, dialect: str, known: MappingSchema) -> None:
    """Say a tree that stays in its own dialect so that no fraction shows the sign of a zero.

    Where types cannot be told, because a name cannot, it stays as it is.
    """
    showing = list(tree.find_all(*SHOWING))
    if not showing:
        return
    for number, node in enumerate(showing):
        node.meta[_NUMBER] = number
    try:
        twin = qualify.made(tree.copy(), dialect, known)
    except Unfaithful:
        return
    types = {each.meta.get(_NUMBER): each for each in twin.find_all(*SHOWING)}
    for node in reversed(showing):
        other = types.get(node.meta[_NUMBER])
        if other is None:
            continue
        for key in SHOWING[type(node)]:
            node.args[key].type = other.args[key].type
            node.set(key, unsigned(node.args[key]))
