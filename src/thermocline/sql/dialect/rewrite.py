"""Rewrite a syntax tree for another engine: node by node, bottom up, by rules."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn

from sqlglot import exp

from thermocline.engine.query_types import NUMBERS, TIMES, T, family, with_type
from thermocline.sql.guard import QueryRefused

Rule = Callable[[exp.Expr], exp.Expr]
"""Returns the rewritten node, or the same node if unchanged. Its children are already rewritten."""


class Untranslatable(QueryRefused):
    """A construct that another engine may evaluate differently."""

    code = "unfaithful"


def refuse_translation(construct: str, why: str = "") -> NoReturn:
    """Refuse a construct by its name."""
    reason = f" ({why})" if why else ""
    raise Untranslatable(
        f"The query cannot be translated without changing its meaning: {construct}{reason}.",
        "Rewrite the query, or write it in the dialect of the engine that runs it.",
    )


def construct_name(node: exp.Expr) -> str:
    """Return the name of a node as users know it."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    if isinstance(node, exp.Func) and not isinstance(node, exp.Connector):
        return node.sql_name().lower()
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).upper()


def rewrite_tree(tree: exp.Query, rules: Mapping[str, Rule], same: Iterable[str]) -> exp.Query:
    """Rewrite the tree. A node type without a rule must be listed in `same`.

    Raises Untranslatable with the first construct that cannot be translated.
    """
    allowed = frozenset(same)
    # A reversed walk reaches the children before their node, and needs no recursion, which a chain
    # of thousands of ANDs would exhaust.
    for node in reversed(list(tree.walk(bfs=False))):
        rule = rules.get(type(node).__name__)
        if rule is None:
            if type(node).__name__ not in allowed:
                refuse_translation(construct_name(node))
            continue
        parent, key, index = node.parent, node.arg_key, node.index
        result = rule(node)
        if result is node:
            continue
        if result.type is None:
            result.type = node.type
        if parent is None:
            assert isinstance(result, exp.Query)
            tree = result
        else:
            parent.set(key or "this", result, index)
    return tree


# Building -----------------------------------------------------------------------------------------


def call(name: str, *arguments: exp.Expr, kind: Any = None) -> exp.Expr:
    """Return a call of an engine's function by name."""
    made = exp.Anonymous(this=name, expressions=list(arguments))
    return made if kind is None else with_type(made, kind)


def cast(node: exp.Expr, kind: exp.DType | exp.DataType) -> exp.Expr:
    """Return a native cast of the engine, which no rule rewrites."""
    to = kind.copy() if isinstance(kind, exp.DataType) else exp.DataType(this=kind)
    return with_type(exp.Cast(this=node, to=to), to)


def parenthesize(node: exp.Expr) -> exp.Expr:
    """Parenthesize an operator, so that precedence cannot regroup its operands."""
    return exp.paren(node, copy=False) if isinstance(node, exp.Binary | exp.Not) else node


def integer_value(node: exp.Expr | None) -> int | None:
    """Return the value of an integer literal, or None for anything else."""
    if isinstance(node, exp.Neg):
        inner = integer_value(node.this)
        return None if inner is None else -inner
    return int(node.name) if isinstance(node, exp.Literal) and node.is_int else None


AggregateRewrite = Callable[[exp.Expr, Callable[[exp.Expr], exp.Expr]], exp.Expr | None]
"""Rewrites an aggregate as other aggregates, each through `place`; None leaves it unchanged."""


def build_aggregate_rules(
    builders: Mapping[str, AggregateRewrite], window: Rule
) -> dict[str, Rule]:
    """Build rules that rewrite an aggregate as several others, each with its FILTER and OVER.

    `window` is the rule that applies to every window.
    """

    def rule(node: exp.Expr) -> exp.Expr:
        if isinstance(node, exp.Window):
            node = window(node)
        inner = _unwrap_aggregate(node)
        builder = builders.get(type(inner).__name__)
        held = isinstance(node.parent, exp.Filter | exp.Window) and node.arg_key == "this"
        if builder is None or held:
            return node

        def place(other: exp.Expr) -> exp.Expr:
            if inner is node:
                return other
            around = node.copy()
            _unwrap_aggregate(around).replace(other)
            return around

        result = builder(inner, place)
        return node if result is None else parenthesize(result)

    return dict.fromkeys([*builders, "Filter", "Window"], rule)


def _unwrap_aggregate(node: exp.Expr) -> exp.Expr:
    while isinstance(node, exp.Filter | exp.Window):
        node = node.this
    return node


# Checks that all engines share -------------------------------------------------------------------

_PORTABLE_PATTERN = re.compile(
    r"\^?(?:[A-Za-z0-9 _@#/,:;=<>%&~!\"'-]|\[[A-Za-z0-9_ ]+(?:-[A-Za-z0-9])?\]|[()|*+?])*"
)


def is_portable_pattern(node: exp.Expr) -> bool:
    """Return whether a regular expression is a constant with one meaning in all engines.

    It must not contain `.` and `$`, which treat line ends differently, backslash classes or flags.
    """
    return (
        isinstance(node, exp.Literal)
        and node.is_string
        and _PORTABLE_PATTERN.fullmatch(node.name) is not None
        and "(?" not in node.name
    )


def rewrite_interval(node: exp.Expr) -> exp.Expr:
    """Rewrite an interval of one integer and one unit, the only form that all engines share."""
    assert isinstance(node, exp.Interval)
    unit = (node.text("unit") or "").upper().rstrip("S")
    count = node.this.name if isinstance(node.this, exp.Literal) else ""
    if not re.fullmatch(r"-?[0-9]{1,9}", count):
        refuse_translation("INTERVAL", "only one integer with one unit is supported")
    whole, factor = {
        "WEEK": ("DAY", 7), "QUARTER": ("MONTH", 3), "SECOND": ("SECOND", 1),
        "MINUTE": ("MINUTE", 1), "HOUR": ("HOUR", 1), "DAY": ("DAY", 1), "MONTH": ("MONTH", 1),
        "YEAR": ("YEAR", 1),
    }.get(unit, ("", 0))  # fmt: skip
    if not factor:
        refuse_translation(f"INTERVAL of {unit or 'a string'}")
    value = exp.Literal.string(str(int(count) * factor))
    return with_type(exp.Interval(this=value, unit=exp.Var(this=whole)), T.INTERVAL)


def require_same_family(nodes: Iterable[exp.Expr | None], where: str) -> None:
    """Refuse values of different families where an engine would pick one of the types for all."""
    families = {family(node) for node in nodes} - {"null"}
    if "unknown" in families:
        refuse_translation(where, "the type of a value is not known")
    if len(families) > 1 and not families <= NUMBERS:
        refuse_translation(where, f"of {' and '.join(sorted(families))}")


_TIME_TYPES = {"date": T.DATE, "timestamp": T.TIMESTAMPNTZ, "timestamptz": T.TIMESTAMPTZ}
_TIME_TEXT = re.compile(
    r"(\d{4}-\d\d-\d\d)(?:[ T](\d\d:\d\d:\d\d)(\.\d{1,6})?)?(?: ?(Z|UTC|[+-]\d\d(?::?\d\d)?))?"
)


def build_time_literal(text: str, kind: exp.DType) -> exp.Expr:
    """Return a time literal in the one format that all engines share: UTC without an offset."""
    found = _TIME_TEXT.fullmatch(text.strip())
    if found is None or (found[4] and kind != T.TIMESTAMPTZ):
        refuse_translation(
            f"the string {text[:40]!r} as a time", "engines accept different formats"
        )
    day, clock, fraction, offset = found.groups()
    if kind == T.DATE:
        if clock:
            refuse_translation(f"the string {text[:40]!r} as a date")
        return cast(with_type(exp.Literal.string(day), T.TEXT), kind)
    spelt = f"{day} {clock or '00:00:00'}{fraction or ''}"
    if offset not in (None, "Z", "UTC"):
        try:
            moment = datetime.fromisoformat(f"{spelt}{offset}").astimezone(UTC)
        except (ValueError, OverflowError):
            refuse_translation(f"the string {text[:40]!r} as a time")
        spelt = moment.replace(tzinfo=None).isoformat(" ")
    return cast(with_type(exp.Literal.string(spelt), T.TEXT), kind)


def convert_literal(node: exp.Expr, other: exp.Expr) -> exp.Expr:
    """Convert a string literal to the type of the value that it is compared with."""
    wanted = family(other)
    if not (isinstance(node, exp.Literal) and node.is_string) or wanted in {"text", "null"}:
        return node
    if wanted in _TIME_TYPES:
        return build_time_literal(node.name, _TIME_TYPES[wanted])
    if wanted in {"integer", "decimal"} and re.fullmatch(r"-?\d{1,18}", node.name):
        return cast(node, T.BIGINT)
    refuse_translation(f"the string {node.name[:40]!r} compared with a {wanted}")


def rewrite_comparison(node: exp.Expr) -> exp.Expr:
    """Rewrite a comparison so that every engine compares both sides as the same type."""
    assert isinstance(node, exp.Binary)
    left, right = node.left, node.right
    node.set("this", convert_literal(left, right))
    node.set("expression", convert_literal(right, left))
    require_comparable([node.left, node.right], construct_name(node))
    return node


def require_comparable(nodes: Iterable[exp.Expr], where: str) -> None:
    """Refuse a comparison of types that engines convert differently."""
    families = {family(node) for node in nodes} - {"null"}
    if families <= NUMBERS or families <= TIMES:
        return
    if len(families) == 1 and families & {"text", "boolean", "real"}:
        return
    refuse_translation(f"{where} of {' and '.join(sorted(families))}")


def rewrite_between(node: exp.Expr) -> exp.Expr:
    """Rewrite BETWEEN as a comparison with both ends."""
    for end in ("low", "high"):
        node.set(end, convert_literal(node.args[end], node.this))
        require_comparable([node.this, node.args[end]], "BETWEEN")
    return node


def rewrite_in(node: exp.Expr) -> exp.Expr:
    """Rewrite IN as a comparison with each value; rows of a query must have the same family."""
    if node.args.get("unnest") or node.args.get("field"):
        refuse_translation("IN with a list value")
    query = node.args.get("query")
    if query is not None:
        selects = query.unnest().selects
        if len(selects) != 1:
            refuse_translation("IN with several columns")
        require_comparable([node.this, selects[0]], "IN")
    node.set("expressions", [convert_literal(each, node.this) for each in node.expressions])
    for each in node.expressions:
        require_comparable([node.this, each], "IN")
    return node
