"""What was measured, held against what a rule allows."""

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
class Outcome:
    """One rule's verdict.

    `metric` is what was compared with the rule's bounds: a count or a share of rows, an age in
    seconds, or the value of a custom query. `breaking_rows` is None for a rule that does not
    count rows. `sample` holds a few breaking rows, where the gate looked for them.
    """

    rule: Rule
    metric: Any
    holds: bool
    breaking_rows: int | None
    message: str
    severity: str
    sample: tuple[Mapping[str, Any], ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """The outcome for a program: plain values only."""
        return {
            "rule": self.rule.title,
            "kind": self.rule.kind,
            "columns": list(self.rule.columns),
            "metric": plain(self.metric),
            "holds": self.holds,
            "breaking_rows": self.breaking_rows,
            "message": self.message,
            "severity": self.severity,
            "sample": [plain(row) for row in self.sample],
        }


def judge(contract: Contract, rule: Rule, measured: Any, rows: int, now: datetime) -> Outcome:
    """Hold one measured value against its rule. `rows` is how many the table has."""
    breaking: int | None = None
    metric: Any
    if rule.kind in _COUNTED:
        breaking = int(measured)
        metric = _share(breaking, rows) if rule.unit == "percent" else breaking
        exact: Any = Fraction(100 * breaking, rows or 1) if rule.unit == "percent" else breaking
        holds = within(exact, rule.bounds)
        message = f"{breaking:,} of {_plural(rows)}: {fault(rule)}{_allowed(rule)}"
    elif rule.kind == "row_count":
        metric, holds = rows, within(rows, rule.bounds)
        message = f"the table has {_plural(rows)}{_allowed(rule)}"
    elif rule.kind == "freshness":
        metric, holds, message = _age(contract, rule, measured, now)
    else:
        metric = _scalar(measured)
        # Nothing was measured: no news from an empty table, but no proof from a full one.
        holds = rows == 0 if metric is None else within(metric, rule.bounds)
        value = "no value" if metric is None else str(plain(metric))
        message = f"the query gave {value}{_allowed(rule)}"
    return Outcome(rule, metric, holds, breaking, message, rule.severity)


def within(metric: Any, bounds: tuple[tuple[str, Any], ...]) -> bool:
    """Whether a value satisfies all bounds. `mustBeBetween` includes both of its ends."""
    return all(_satisfies(_exact(metric), operator, bound) for operator, bound in bounds)


def plain(value: Any) -> Any:
    """A value from a row as JSON can carry it."""
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, bytes):
        return value.hex()
    if value is None or isinstance(value, bool | int | str):
        return value
    return value if isinstance(value, float) and isfinite(value) else str(value)


def _satisfies(metric: Any, operator: str, bound: Any) -> bool:
    if operator in ("mustBeBetween", "mustNotBeBetween"):
        low, high = (_exact(each) for each in bound)
        return bool(low <= metric <= high) == (operator == "mustBeBetween")
    bound = _exact(bound)
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


def _exact(value: Any) -> Any:
    """Numbers of all kinds as ones that compare exactly: 0.1 is a tenth, however it came."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal) or (isinstance(value, float) and isfinite(value)):
        return Fraction(str(value))
    if isinstance(value, datetime | date):
        return value.isoformat()
    return value


def _scalar(value: Any) -> Any:
    return None if isinstance(value, float) and isnan(value) else value


def _share(breaking: int, rows: int) -> float:
    return 100 * breaking / rows if rows else 0.0


def _age(
    contract: Contract, rule: Rule, micros: int | None, now: datetime
) -> tuple[float | None, bool, str]:
    column = freshness_column(contract, rule)
    if micros is None:
        return None, False, f"no row has a {column}, so nothing is fresh"
    newest = timedelta(microseconds=int(micros))
    age = (now if now.tzinfo else now.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    seconds = (age - newest).total_seconds()
    said = f"the newest {column} is {_span(seconds)} old"
    allowed = max_age(contract, rule)
    if allowed is None:
        return seconds, True, said
    holds = seconds <= allowed.total_seconds()
    return seconds, holds, f"{said}; it must be at most {_span(allowed.total_seconds())}"


def _span(seconds: float) -> str:
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if abs(seconds) >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def fault(rule: Rule) -> str:
    """What is wrong with a row that breaks the rule, in a few words."""
    columns = ", ".join(rule.columns)
    if rule.kind == "missing":
        return f"{columns} is missing"
    if rule.kind == "duplicates":
        return f"{columns} is in another row too"
    if rule.kind == "accepted":
        accepted = ", ".join(str(value) for value in rule.argument("values", ()))
        return f"{columns} is not one of {quote(accepted)}"
    if rule.kind == "range":
        return f"{columns} is not {_interval(rule)}"
    if rule.kind == "length":
        return f"{columns} is not {_interval(rule)} characters long"
    if rule.kind == "pattern":
        return f"{columns} does not match {quote(rule.argument('pattern'))}"
    return f"{columns} is not in {rule.argument('table')}"


def _interval(rule: Rule) -> str:
    words = {"min": "≥ {}", "exclusive_min": "> {}", "max": "≤ {}", "exclusive_max": "< {}"}
    given = ((word, rule.argument(name)) for name, word in words.items())
    return " and ".join(word.format(bound) for word, bound in given if bound is not None)


def _plural(rows: int) -> str:
    return f"{rows:,} row" if rows == 1 else f"{rows:,} rows"


def _allowed(rule: Rule) -> str:
    if rule.kind in _COUNTED and rule.bounds == (("mustBe", 0),):
        return ""
    unit = " %" if rule.unit == "percent" else ""
    said = [
        _WORDS[operator].format(
            " and ".join(map(str, bound)) if isinstance(bound, list | tuple) else bound
        )
        for operator, bound in rule.bounds
    ]
    return f"; it {' and '.join(said)}{unit}" if said else ""
