"""The rules of a contract: those that the author wrote, and those that the contract implies."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from thermocline.contract.definition import Contract, Rule


def list_rules(contract: Contract) -> tuple[Rule, ...]:
    """Return all rules of a contract, implied rules first.

    A required or key column must not be missing, a key must not repeat, and the newest row must not
    be older than the promised freshness (a warning: late data is no reason to withhold newer data).
    A rule that the author wrote for the same columns replaces the implied one.
    """
    return (
        *_missing(contract),
        *_duplicates(contract),
        *_freshness(contract),
        *contract.rules,
    )


def row_rules(contract: Contract) -> tuple[Rule, ...]:
    """Return the rules that ingestion applies to single rows.

    A rule that tolerates violating rows, or only warns, does not apply to a single row.
    """
    implied = _missing(contract, system=False)
    return tuple(
        rule
        for rule in (*implied, *contract.rules)
        if rule.is_row_level and rule.severity == "error" and _tolerates_none(rule)
    )


def max_age(contract: Contract, rule: Rule) -> timedelta | None:
    """Return the age that a freshness rule allows the newest row."""
    within: timedelta | None = rule.argument("within", contract.freshness)
    return within


def freshness_column(contract: Contract, rule: Rule) -> str | None:
    """Return the column whose newest value determines the table's freshness."""
    return rule.columns[0] if rule.columns else contract.freshness_column


def _missing(contract: Contract, *, system: bool = True) -> tuple[Rule, ...]:
    stated = {name for rule in contract.rules if rule.kind == "missing" for name in rule.columns}
    return tuple(
        Rule("missing", (column.name,), line=column.line)
        for column in (contract.table_columns if system else contract.columns)
        if (column.required or column.name in contract.key) and column.name not in stated
    )


def _duplicates(contract: Contract) -> tuple[Rule, ...]:
    key = contract.shape.key if contract.key else ()
    stated = (set(rule.columns) for rule in contract.rules if rule.kind == "duplicates")
    if not key or any(columns in (set(key), set(contract.key)) for columns in stated):
        return ()
    return (Rule("duplicates", key, line=contract.line),)


def _freshness(contract: Contract) -> tuple[Rule, ...]:
    stated = any(rule.kind == "freshness" for rule in contract.rules)
    if contract.freshness is None or contract.freshness_column is None or stated:
        return ()
    rule = Rule(
        "freshness",
        (contract.freshness_column,),
        severity="warning",
        line=contract.line,
    )
    return (rule,)


def _tolerates_none(rule: Rule) -> bool:
    none: set[tuple[str, Any]] = {("mustBe", 0), ("mustBeLessOrEqualTo", 0)}
    if rule.unit == "rows":
        none.add(("mustBeLessThan", 1))
    return any((operator, bound) in none for operator, bound in rule.bounds if _is_number(bound))


def _is_number(bound: Any) -> bool:
    return isinstance(bound, int | float)
