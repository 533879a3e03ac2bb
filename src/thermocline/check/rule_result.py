"""Evaluate a measured value against the bounds of its rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from fractions import Fraction
from math import isfinite, isnan
from typing import Any

from thermocline.check.rules import freshness_column, max_age
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import quote

_WORDS = {
    "mustBe": "must be {}",
    "mustNotBe": "must not be {}",
    "mustBeGreaterThan": "must be over {}",
    "mustBeGreaterOrEqualTo": "must be at least {}",
    "mustBeLessThan": "must be under {}",
    "mustBeLessOrEqualTo": "must be at most {}",
    "mustBeBetween": "must be between {}",
    "mustNotBeBetween": "must not be between {}",
}
_COUNTED = frozenset(
    {"missing", "duplicates", "accepted", "range", "length", "pattern", "reference"}
)


@dataclass(frozen=True)
class RuleOutcome:
    """The outcome of one rule.

    `metric` is the value that was compared with the rule's bounds: a count or a share of rows, an
    age in seconds, or the value of a custom query. `breaking_rows` is None for a rule that does not
    count rows. `sample` holds a few violating rows, if the gate read them.
    """

    rule: Rule
    metric: Any
    holds: bool
    breaking_rows: int | None
    message: str
    severity: str
    sample: tuple[Mapping[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "rule": self.rule.title,
            "kind": self.rule.kind,
            "columns": list(self.rule.columns),
            "metric": to_json_value(self.metric),
            "holds": self.holds,
            "breaking_rows": self.breaking_rows,
            "message": self.message,
            "severity": self.severity,
            "sample": [to_json_value(row) for row in self.sample],
        }


def evaluate_rule(
    contract: Contract, rule: Rule, measured: Any, rows: int, now: datetime
) -> RuleOutcome:
    """Evaluate one measured value against its rule. `rows` is the table's number of rows."""
    breaking: int | None = None
    metric: Any
    if rule.kind in _COUNTED:
        breaking = int(measured)
        metric = _compute_percent(breaking, rows) if rule.unit == "percent" else breaking
        exact: Any = Fraction(100 * breaking, rows or 1) if rule.unit == "percent" else breaking
        holds = satisfies_bounds(exact, rule.bounds)
        counted = f"{breaking:,} of {_format_rows(rows)}"
        message = f"{counted}: {describe_violation(rule)}{_format_bounds(rule)}"
    elif rule.kind == "row_count":
        metric, holds = rows, satisfies_bounds(rows, rule.bounds)
        message = f"the table has {_format_rows(rows)}{_format_bounds(rule)}"
    elif rule.kind == "freshness":
        metric, holds, message = _evaluate_freshness(contract, rule, measured, now)
    else:
        metric = _drop_nan(measured)
        # Without a value, the rule holds on an empty table only.
        holds = rows == 0 if metric is None else satisfies_bounds(metric, rule.bounds)
        value = "no value" if metric is None else str(to_json_value(metric))
        message = f"the query gave {value}{_format_bounds(rule)}"
    return RuleOutcome(rule, metric, holds, breaking, message, rule.severity)


def satisfies_bounds(metric: Any, bounds: tuple[tuple[str, Any], ...]) -> bool:
    """Return whether a value satisfies all bounds. `mustBeBetween` includes both of its ends."""
    return all(_satisfies(_to_exact(metric), operator, bound) for operator, bound in bounds)


def to_json_value(value: Any) -> Any:
    """Convert a value of a row to a JSON value."""
    if isinstance(value, Mapping):
        return {str(key): to_json_value(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [to_json_value(each) for each in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, bool | int | str):
        return value
    return value if isinstance(value, float) and isfinite(value) else str(value)


def _satisfies(metric: Any, operator: str, bound: Any) -> bool:
    if operator in ("mustBeBetween", "mustNotBeBetween"):
        low, high = (_to_exact(each) for each in bound)
        return bool(low <= metric <= high) == (operator == "mustBeBetween")
    bound = _to_exact(bound)
    if operator in ("mustBe", "mustNotBe"):
        return bool(metric == bound) == (operator == "mustBe")
    if isinstance(metric, str) != isinstance(bound, str):
        return False
    return {
        "mustBeGreaterThan": lambda: bool(metric > bound),
        "mustBeGreaterOrEqualTo": lambda: bool(metric >= bound),
        "mustBeLessThan": lambda: bool(metric < bound),
        "mustBeLessOrEqualTo": lambda: bool(metric <= bound),
    }[operator]()


def _to_exact(value: Any) -> Any:
    """Convert a number to one that compares exactly: 0.1 is a tenth in every type."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal) or (isinstance(value, float) and isfinite(value)):
        return Fraction(str(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value


def _drop_nan(value: Any) -> Any:
    return None if isinstance(value, float) and isnan(value) else value


def _compute_percent(breaking: int, rows: int) -> float:
    return 100 * breaking / rows if rows else 0.0


def _evaluate_freshness(
    contract: Contract, rule: Rule, micros: int | None, now: datetime
) -> tuple[float | None, bool, str]:
    column = freshness_column(contract, rule)
    if micros is None:
        return None, False, f"no row has a {column}, so nothing is fresh"
    newest = timedelta(microseconds=int(micros))
    age = (now if now.tzinfo else now.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = (age - newest).total_seconds()
    message = f"the newest {column} is {_format_duration(seconds)} old"
    allowed = max_age(contract, rule)
    if allowed is None:
        return seconds, True, message
    holds = seconds <= allowed.total_seconds()
    return (
        seconds,
        holds,
        f"{message}; it must be at most {_format_duration(allowed.total_seconds())}",
    )


def _format_duration(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def describe_violation(rule: Rule) -> str:
    """Describe briefly why a row violates the rule."""
    columns = ", ".join(rule.columns)
    if rule.kind == "missing":
        return f"{columns} is missing"
    if rule.kind == "duplicates":
        return f"{columns} is in another row too"
    if rule.kind == "accepted":
        accepted = ", ".join(str(value) for value in rule.argument("values", ()))
        return f"{columns} is not one of {quote(accepted)}"
    if rule.kind == "range":
        return f"{columns} is not {_format_interval(rule)}"
    if rule.kind == "length":
        return f"{columns} is not {_format_interval(rule)} characters long"
    if rule.kind == "pattern":
        return f"{columns} does not match {quote(rule.argument('pattern'))}"
    return f"{columns} is not in {rule.argument('table')}"


def _format_interval(rule: Rule) -> str:
    words = {"min": "≥ {}", "exclusive_min": "> {}", "max": "≤ {}", "exclusive_max": "< {}"}
    limits = ((word, rule.argument(name)) for name, word in words.items())
    return " and ".join(word.format(bound) for word, bound in limits if bound is not None)


def _format_rows(rows: int) -> str:
    return f"{rows:,} row" if rows == 1 else f"{rows:,} rows"


def _format_bounds(rule: Rule) -> str:
    if rule.kind in _COUNTED and rule.bounds == (("mustBe", 0),):
        return ""
    unit = " %" if rule.unit == "percent" else ""
    bounds = [
        _WORDS[operator].format(
            " and ".join(map(str, bound)) if isinstance(bound, list | tuple) else bound
        )
        for operator, bound in rule.bounds
    ]
    return f"; it {' and '.join(bounds)}{unit}" if bounds else ""
