"""Build the SQL condition under which a row violates a rule.

A null violates only `missing`: a missing value is neither wrong nor right. NaN is outside of every
range, and 0.0 equals -0.0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlglot import exp

from thermocline.check.pattern import PatternError, translate_pattern
from thermocline.check.typed_literals import (
    WrongType,
    build_bound_violation,
    build_literal,
    is_floating,
)
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import did_you_mean, quote
from thermocline.contract.types import Primitive, Struct, Type

_BOUNDS = (("min", "<"), ("max", ">"), ("exclusive_min", "<="), ("exclusive_max", ">="))
_TEXT = (Primitive("string"), Primitive("uuid"))


class RuleError(ValueError):
    """A rule cannot be compiled; the text gives the reason, without the rule's name."""


def build_violation(contract: Contract, rule: Rule, dialect: str) -> exp.Expr:
    """Build the condition under which a row violates a row-level rule; it is never null."""
    if not rule.columns:
        raise RuleError("names no column")
    compilers = {
        "missing": _missing,
        "accepted": _accepted,
        "range": _range,
        "length": _length,
        "pattern": _pattern,
    }
    try:
        conditions = [
            compilers[rule.kind](*column(contract, name), rule, dialect) for name in rule.columns
        ]
    except (WrongType, PatternError) as error:
        raise RuleError(str(error)) from error
    return exp.or_(*conditions)


def column(contract: Contract, name: str) -> tuple[exp.Expr, Type]:
    """Return a column, or a struct field by its dotted path, with its type."""
    found = contract.column(name)
    if found:
        return exp.column(found.name, quoted=True), found.type
    first, *path = name.split(".")
    found = contract.column(first)
    if not found or not path:
        known = [column.name for column in contract.table_columns]
        hint = did_you_mean(name, known)
        raise RuleError(f"there is no column {quote(name)}" + (f"; {hint}" if hint else ""))
    expression: exp.Expr = exp.column(found.name, quoted=True)
    type_ = found.type
    for part in path:
        members = type_.fields if isinstance(type_, Struct) else ()
        fields = {member.name: member.type for member in members}
        if part not in fields:
            raise RuleError(f"there is no field {quote(part)} in {quote(name)}")
        expression = exp.Dot(this=expression, expression=exp.to_identifier(part, quoted=True))
        type_ = fields[part]
    return expression, type_


def build_presence(contract: Contract, names: Iterable[str]) -> exp.Expr:
    """Build the condition that none of the columns is null."""
    return exp.and_(*(column(contract, name)[0].is_(exp.null()).not_() for name in names))


def _missing(value: exp.Expr, type_: Type, rule: Rule, _: str) -> exp.Expr:
    absent: exp.Expr = value.is_(exp.null())
    stand_ins = []
    for stand_in in rule.argument("values") or ():
        try:
            stand_ins.append(None if stand_in is None else build_literal(stand_in, type_))
        except WrongType:  # '' or 'N/A' for a number: no such row can exist
            continue
    if not any(stand_ins):
        return absent
    return exp.or_(absent, _among(value, type_, stand_ins))


def _accepted(value: exp.Expr, type_: Type, rule: Rule, _: str) -> exp.Expr:
    values = rule.argument("values")
    if not isinstance(values, list | tuple) or not values:
        raise RuleError("accepts no value at all")
    literals = [build_literal(each, type_) for each in values if each is not None]
    there = value.copy().is_(exp.null()).not_()
    if not any(literals):
        return there
    return exp.and_(there, _among(value, type_, literals).not_())


def _among(value: exp.Expr, type_: Type, literals: list[exp.Expr | None]) -> exp.Expr:
    present = [each for each in literals if each is not None]
    if is_floating(type_) and any(each.this.name in ("0.0", "-0.0") for each in present):
        # Spark looks up long lists by a number's bits, which differ between the zeros.
        present += [
            zero for zero in (build_literal("0", type_), build_literal("-0.0", type_)) if zero
        ]
    return exp.In(this=value.copy(), expressions=present)


def _range(value: exp.Expr, type_: Type, rule: Rule, _: str) -> exp.Expr:
    bounds: list[tuple[str, Any]] = [
        (operator, rule.argument(name))
        for name, operator in _BOUNDS
        if rule.argument(name) is not None
    ]
    if not bounds:
        raise RuleError("has neither min nor max")
    outside = [
        build_bound_violation(value.copy(), operator, bound, type_) for operator, bound in bounds
    ]
    if is_floating(type_):
        outside.append(exp.IsNan(this=value.copy()))
    return exp.and_(value.copy().is_(exp.null()).not_(), exp.or_(*outside))


def _length(value: exp.Expr, type_: Type, rule: Rule, dialect: str) -> exp.Expr:
    if type_ != _TEXT[0]:
        raise RuleError(f"a {type_} column has no length")
    return _range(exp.Length(this=value), Primitive("long"), rule, dialect)


def _pattern(value: exp.Expr, type_: Type, rule: Rule, dialect: str) -> exp.Expr:
    pattern = rule.argument("pattern")
    if not isinstance(pattern, str) or not pattern:
        raise RuleError("has no pattern")
    if type_ not in _TEXT:
        raise RuleError(f"a {type_} column has no text to match")
    text = value.copy() if type_ == _TEXT[0] else exp.cast(value.copy(), "VARCHAR")
    written = translate_pattern(pattern)
    regex = exp.Literal.string(written.spark if dialect == "spark" else written.duckdb)
    matches = exp.RegexpLike(this=text, expression=regex)
    return exp.and_(value.copy().is_(exp.null()).not_(), exp.not_(matches))
