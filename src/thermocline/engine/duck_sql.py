"""Work around known bugs of DuckDB 1.5 by rewriting SQL.

Every SQL text of a user (query, model, rule of a contract) passes through `work_around_bugs`
before DuckDB runs it, so that DuckDB returns the same result as Spark and Trino.
"""

from __future__ import annotations

from datetime import datetime

from sqlglot import exp

from thermocline.engine.time_expressions import UNITS, evaluate_moment, truncate_time

_SUB_DAY_UNITS = {"HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"}
_ARBITRARY_NOW = datetime(1970, 1, 2, 3, 4, 5, 678_901)
"""Placeholder for the current time where it must not matter: no unit of time starts then."""
SIGN_SENSITIVE: dict[type[exp.Expr], tuple[str, ...]] = {
    exp.Div: ("expression",),
    exp.Pow: ("this",),
    exp.Atan2: ("this", "expression"),
}
"""Expressions whose result differs between -0.0 and 0.0, and the arguments concerned."""
_INFINITE_TIMES = frozenset({"infinity", "+infinity", "-infinity"})
_COMPARISONS = (exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.Between, exp.In,
             exp.NullSafeEQ, exp.NullSafeNEQ)  # fmt: skip
_AFFECTED: tuple[type[exp.Expr], ...] = (
    exp.CountIf,
    exp.DateTrunc,
    exp.TimestampTrunc,
    *SIGN_SENSITIVE,
)


def work_around_bugs(tree: exp.Expr) -> None:
    """Rewrite a DuckDB tree so that its result is correct. Result columns keep their names."""
    _protect_infinite_times(tree)
    if tree.find(*_AFFECTED) is None:
        return
    for node in list(list_results(tree)):
        if not has_name(node) and node.find(*_AFFECTED) and not node.find(exp.Columns):
            name_result(node, derive_result_name(node))
    rewrite_count_if(tree)
    _protect_truncated_times(tree)
    _remove_zero_signs(tree)


# Names of results ---------------------------------------------------------------------------------


def list_results(tree: exp.Expr) -> list[exp.Expr]:
    """Return the expressions of the result columns."""
    first = tree
    while isinstance(first, exp.SetOperation | exp.Subquery):
        first = first.this
    return first.expressions if isinstance(first, exp.Select) else []


def has_name(node: exp.Expr) -> bool:
    """Return whether a result is named by the query or by a table."""
    if isinstance(node, exp.Alias | exp.Aliases | exp.Star) or node.is_star:
        return True
    return isinstance(node, exp.Column | exp.Dot) and not isinstance(node, exp.Func)


def name_result(node: exp.Expr, name: str) -> None:
    """Name an unnamed result."""
    node.replace(exp.Alias(this=node.copy(), alias=exp.to_identifier(name, quoted=True)))


def derive_result_name(node: exp.Expr) -> str:
    """Return DuckDB's name of a result in common cases, and the expression's text in others."""
    held = exp.Paren(this=node.copy())  # so that the expression has a parent
    for each in list(held.find_all(exp.Binary, exp.Count)):
        if isinstance(each, exp.Count):
            if isinstance(each.this, exp.Star):
                each.replace(exp.Anonymous(this="count_star"))
        elif not isinstance(each, exp.Func | exp.Dot) and not isinstance(each.parent, exp.Paren):
            each.replace(exp.paren(each.copy(), copy=False))
    operator = isinstance(held.this, exp.Binary) and not isinstance(held.this, exp.Func | exp.Dot)
    shown = held if operator else held.this
    return str(shown.sql("duckdb", comments=False, normalize_functions="lower"))[:200]


# Workarounds --------------------------------------------------------------------------------------


def rewrite_count_if(tree: exp.Expr) -> None:
    """Rewrite COUNT_IF as COUNT: for no rows DuckDB returns 0 or null, other engines 0."""
    for node in list(tree.find_all(exp.CountIf)):
        if isinstance(node.this, exp.Distinct):
            continue  # only DuckDB supports it
        one = exp.Case(ifs=[exp.If(this=node.this, true=exp.Literal.number(1))])
        node.replace(exp.Count(this=one, big_int=True))


def _protect_truncated_times(tree: exp.Expr) -> None:
    """Keep DuckDB from rewriting comparisons of truncated times incorrectly.

    For a date truncated to less than a day, DuckDB compares the date itself, with the wrong day; so
    a timestamp is truncated instead. And if no truncated time can equal the constant, DuckDB
    returns false even for a null time; so an expression around the truncation is compared.
    """
    # Inner nodes first: an outer one may be replaced by a copy.
    for node in reversed(list(tree.find_all(exp.DateTrunc, exp.TimestampTrunc))):
        if node.text("unit").upper() in _SUB_DAY_UNITS and _may_be_a_date(node.this):
            node.set("this", _add_zero_interval(node.this))
        above: exp.Expr = node
        while isinstance(above.parent, exp.Paren | exp.Cast | exp.TryCast):
            above = above.parent
        compared = above.parent
        if isinstance(compared, exp.EQ | exp.NEQ):
            other = compared.right if above is compared.left else compared.left
            if _is_unit_start(other, node.text("unit")):
                continue  # DuckDB is correct here, and prunes files by it
        if isinstance(compared, exp.EQ | exp.NEQ | exp.In | exp.NullSafeEQ | exp.NullSafeNEQ):
            node.replace(exp.paren(_add_zero_interval(node.copy()), copy=False))


def _protect_infinite_times(tree: exp.Expr) -> None:
    """Keep DuckDB from pruning files by an infinite time, which fails.

    DuckDB does not prune files by a column with a zero interval added.
    """
    for node in list(tree.find_all(exp.Cast)):
        text = node.this.name.strip().lower() if isinstance(node.this, exp.Literal) else ""
        above: exp.Expr = node
        while isinstance(above.parent, exp.Paren | exp.Cast | exp.Tuple):
            above = above.parent
        compared = above.parent
        if text not in _INFINITE_TIMES or not isinstance(compared, _COMPARISONS):
            continue
        for side in list(compared.iter_expressions()):
            if isinstance(side.unnest(), exp.Column | exp.Dot):
                side.replace(exp.paren(_add_zero_interval(side.copy()), copy=False))


def _may_be_a_date(node: exp.Expr) -> bool:
    made = isinstance(node, exp.Anonymous) and node.name.lower() == "make_timestamp"
    return not made and not isinstance(node, exp.Literal)


def _is_unit_start(node: exp.Expr, unit: str) -> bool:
    """Return whether an expression is known to be the start of a unit of time."""
    at = evaluate_moment(node, _ARBITRARY_NOW)
    return at is not None and unit.lower() in UNITS and truncate_time(at, unit.lower()) == at


def _add_zero_interval(node: exp.Expr) -> exp.Expr:
    """Add a zero interval: the same value, but a different expression for the planner."""
    nothing = exp.Interval(this=exp.Literal.string("0"), unit=exp.var("SECOND"))
    return exp.Add(this=exp.paren(node), expression=nothing)


def _remove_zero_signs(tree: exp.Expr) -> None:
    """Hide the sign of zeros, which DuckDB loses when it sorts, groups or stores.

    A sum with 0 is never -0.0, and any other number stays unchanged, with its type.
    """
    for node in reversed(list(tree.find_all(*SIGN_SENSITIVE))):
        for key in SIGN_SENSITIVE[type(node)]:
            value = node.args[key]
            if not isinstance(value.unnest(), exp.Literal):
                held = exp.paren(value, copy=False) if isinstance(value, exp.Binary) else value
                zero = exp.Literal.number(0)
                node.set(key, exp.paren(exp.Add(this=held, expression=zero), copy=False))
