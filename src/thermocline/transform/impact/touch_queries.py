"""Queries over changed rows that return the parts which these may touch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from thermocline.engine.query_types import family
from thermocline.transform.impact.joins import Conjunct, FromClause, JoinSource, to_sql
from thermocline.transform.target_parts import OLD

_FOUND = "_tc_found"
_GROUPABLE = {"integer", "text", "date", "timestamp", "timestamptz", "boolean", "decimal"}
"""Type families in which equal values are interchangeable in every computation."""


@dataclass(frozen=True)
class TouchQuery:
    """A query over the changed rows of one table that returns parts which they may touch.

    It has a column c0, c1, … for each value. If the value is a column of the stored table, or its
    day, `column` names that column.
    """

    table: str
    query: exp.Select
    column: str = ""
    day: bool = False


def select_values(values: Sequence[exp.Expr], relation: Sequence[exp.Expr]) -> exp.Select:
    """Select the values as c0, c1, … from a FROM and its joins."""
    first, *joins = relation
    named = [exp.alias_(value.copy(), f"c{n}") for n, value in enumerate(values)]
    return exp.Select(expressions=named, from_=exp.From(this=first), joins=joins)


def select_matching(
    from_clause: FromClause,
    joined: Sequence[JoinSource],
    values: Sequence[exp.Expr],
    touch: TouchQuery,
    here: Sequence[exp.Expr],
) -> exp.Select:
    """Select the values of joined rows whose `here` expressions are among a touch query's rows."""
    alias = exp.TableAlias(this=exp.to_identifier(_FOUND))
    found = exp.Subquery(this=touch.query.distinct(), alias=alias)
    same = [
        exp.NullSafeEQ(this=value.copy(), expression=exp.column(f"c{n}", table=_FOUND))
        for n, value in enumerate(here)
    ]
    query = select_values(
        values, [*from_clause.relation(joined), exp.Join(this=found, kind="CROSS")]
    )
    filters = [each.node.copy() for each in from_clause.conditions_within(joined)]
    return query.where(*filters, *same, copy=False)


def select_differing(
    select: exp.Select,
    from_clause: FromClause,
    joined: Sequence[JoinSource],
    changed: JoinSource,
    values: Sequence[exp.Expr],
    own: Sequence[Conjunct],
) -> exp.Select:
    """Select the values of joined rows that differ between old and new images of `changed`.

    A row's content is a function of the joined columns that the SELECT uses, and of the columns of
    `changed` that it uses outside of their own conditions. Equally many old and new images with
    equal values of all these columns cancel out: a version of a customer that was closed today
    joins every order since it began, and changes none of them.
    """
    query = select_values(
        values, [*from_clause.relation(joined), exp.Join(this=changed.node, kind="CROSS")]
    )
    conditions = {
        id(each.node): each.node for each in (*from_clause.conditions_within(joined), *own)
    }
    if conditions:
        query = query.where(*(node.copy() for node in conditions.values()), copy=False)
    grouping = _find_grouping_columns(select, {each.alias for each in joined}, changed.alias, own)
    if grouping is None or any(
        to_sql(c) not in grouping for v in values for c in v.find_all(exp.Column)
    ):
        return query
    sign = exp.func("IF", exp.column(OLD, table=changed.alias), exp.Literal.number(-1),
                    exp.Literal.number(1))  # fmt: skip
    uneven = exp.NEQ(this=exp.Sum(this=sign), expression=exp.Literal.number(0))
    return query.group_by(*grouping.values(), copy=False).having(uneven, copy=False)


def _find_grouping_columns(
    select: exp.Select, joined: set[str], changed: str, own: Sequence[Conjunct]
) -> dict[str, exp.Expr] | None:
    """Return the columns that a joined row's content depends on; None if it cannot be grouped."""
    inside = {id(node) for each in own for node in each.node.walk()}
    grouping: dict[str, exp.Expr] = {}
    for column in select.find_all(exp.Column):
        if column.parent_select is not select:
            continue
        alias = column.table.lower()
        if alias in joined or (alias == changed and id(column) not in inside):
            if family(column) not in _GROUPABLE:
                return None
            grouping[to_sql(column)] = column.copy()
    return grouping
