"""Parse the bounds of a rule: the `mustBe…` operators of the standard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from thermocline.contract.odcs.durations import parse_duration
from thermocline.contract.problems import DocumentPath, ProblemReport, quote

if TYPE_CHECKING:
    from open_data_contract_standard.model import DataQuality

Bounds = tuple[tuple[str, Any], ...]

OPERATORS = (
    "mustBe", "mustNotBe", "mustBeGreaterThan", "mustBeGreaterOrEqualTo", "mustBeLessThan",
    "mustBeLessOrEqualTo", "mustBeBetween", "mustNotBeBetween",
)  # fmt: skip
_UPPER_BOUNDS = ("mustBeLessThan", "mustBeLessOrEqualTo")
_UNITS = {"rows": "rows", "row": "rows", "percent": "percent", "%": "percent"}


def read_bounds(
    entry: DataQuality, at: DocumentPath, where: str, default: int | None, report: ProblemReport
) -> tuple[Bounds, str]:
    """Return the operators of a rule and their unit.

    All operators must hold. Without operators the measure must equal `default`; without a default,
    their absence is a problem.
    """
    unit = _UNITS.get((entry.unit or "rows").lower())
    if unit is None:
        report.add((*at, "unit"), where, f"unit {quote(entry.unit)} is neither rows nor percent")
        unit = "rows"
    bounds: list[tuple[str, Any]] = []
    for operator in OPERATORS:
        value = getattr(entry, operator)
        if value is None:
            continue
        flaw = _check_operator_value(operator, value, unit)
        if flaw:
            report.add((*at, operator), where, flaw)
        bounds.append((operator, tuple(value) if isinstance(value, list) else value))
    if bounds:
        return tuple(bounds), unit
    if default is None:
        report.add_missing(at, where, "the rule has no bound", "add mustBe…")
        return (), unit
    return (("mustBe", default),), unit


def read_within(
    entry: DataQuality,
    arguments: Mapping[str, Any],
    at: DocumentPath,
    where: str,
    report: ProblemReport,
) -> timedelta | None:
    """Return the maximum age of the newest row: `arguments.within`, or an upper time bound."""
    place, value, unit = (*at, "arguments", "within"), arguments.get("within"), None
    if value is None:
        operator = next((o for o in _UPPER_BOUNDS if getattr(entry, o) is not None), None)
        if operator is None:
            hint = "add arguments: {within: 2h}"
            report.add_missing(at, where, "freshness has no maximum age", hint)
            return None
        place, value, unit = (*at, operator), getattr(entry, operator), entry.unit
    try:
        return parse_duration(value, unit)
    except ValueError as error:
        report.add(place, where, f"within {quote(value)}", str(error))
        return None


def _check_operator_value(operator: str, value: Any, unit: str) -> str | None:
    numbers = value if isinstance(value, list) else [value]
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float):
            return f"{operator} needs a number, not {quote(number)}"
        if not math.isfinite(number):
            return f"{operator} needs a finite number"
        if unit == "percent" and not 0 <= number <= 100:
            return f"{operator} of {number} percent is outside 0 to 100"
    if len(numbers) == 2 and numbers[0] > numbers[1]:
        return f"{operator} has the larger number first"
    return None
