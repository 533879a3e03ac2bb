"""Queries over changed rows, which name the parts that these may touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.transform.impact.joins import Conjunct, From, Source, text
from thermocline.transform.target_parts import OLD

_FOUND = "_tc_found"
_GROUPABLE = {"integer", "text", "date", "timestamp", "timestamptz", "boolean", "decimal"}
"""Kinds of columns of which equal values are the same in whatever is computed from them."""


@dataclass(frozen=True)
class Touch:
    """A query over the changed rows of one table that names parts they may touch.

    It gives a column c0, c1, … for each value. Where it is only a stored table's column, or the
    day of one, `column` says which.
    """

    table: str
    query: exp.Select
    column: str = ""
    day: bool = False


def select_values(values: Sequence[exp.Expr], relation: Sequence[exp.Expr]) -> exp.Select:
    """The values as c0, c1, … over a FROM and its joins."""
    first, *joins = relation
    named = [exp.alias_(value.copy(), f"c{n}") for n, value in enumerate(values)]
    return exp.Select(expressions=named, from_=exp.From(this=first), joins=joins)


def beside_found(
    shape: From,
    joined: Sequence[Source],
    values: Sequence[exp.Expr],
    touch: Touch,
    here: Sequence[exp.Expr],
) -> exp.Select:
    """The values of those joined rows for which what stands `here` is among what a touch names."""
    alias = exp.TableAlias(this=exp.to_identifier(_FOUND))
    found = exp.Subquery(this=touch.query.distinct(), alias=alias)
    same = [
        exp.NullSafeEQ(this=value.copy(), expression=exp.column(f"c{n}", table=_FOUND))
        for n, value in enumerate(here)
    ]
    query = select_values(values, [*shape.relation(joined), exp.Join(this=found, kind="CROSS")])
    filters = [each.node.copy() for each in shape.pool(joined)]
    return query.where(*filters, *same, copy=False)


def differing(
    select: exp.Select,
    shape: From,
    joined: Sequence[Source],
    changed: Source,
    values: Sequence[exp.Expr],
    own: Sequence[Conjunct],
) -> exp.Select:
    """The values of those joined rows that old and new images of `changed` do not give alike.

    What a row says is a function of the joined columns that stand anywhere in the SELECT, and of
    those of `changed` that stand anywhere but in its own conditions. As many old images as new ones
    that agree in all of these make no difference: a version of a customer that was closed today
    takes part in every order since it began, and changes none of them.
    """
    query = select_values(
        values, [*shape.relation(joined), exp.Join(this=changed.node, kind="CROSS")]
    )
    conditions = {id(each.node): each.node for each in (*shape.pool(joined), *own)}
    if conditions:
        query = query.where(*(node.copy() for node in conditions.values()), copy=False)
    kept = _kept(select, {each.alias for each in joined}, changed.alias, own)
    if kept is None or any(text(c) not in kept for v in values for c in v.find_all(exp.Column)):
        return query
    sign = exp.func("IF", exp.column(OLD, table=changed.alias), exp.Literal.number(-1),
                    exp.Literal.number(1))  # fmt: skip
    uneven = exp.NEQ(this=exp.Sum(this=sign), expression=exp.Literal.number(0))
    return query.group_by(*kept.values(), copy=False).having(uneven, copy=False)


def _kept(
    select: exp.Select, joined: set[str], changed: str, own: Sequence[Conjunct]
) -> dict[str, exp.Expr] | None:
    """The columns that a joined row's meaning depends on; None where rows cannot be grouped."""
    inside = {id(node) for each in own for node in each.node.walk()}
    kept: dict[str, exp.Expr] = {}
    for column in select.find_all(exp.Column):
        if column.parent_select is not select:
            continue
        alias = column.table.lower()
        if alias in joined or (alias == changed and id(column) not in inside):
            if family(column) not in _GROUPABLE:
                return None
            kept[text(column)] = column.copy()
    return kept
