"""Limit the size of a single value: widths, repetitions and series of values.

An engine builds a text of 2 GB in one step that cannot be interrupted. So the number of repetitions
must be known in advance: a literal, or a value bounded by `least`. Anything else is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NoReturn

from sqlglot import exp

from thermocline.engine.time_expressions import evaluate_moment
from thermocline.errors import BadInput

MAX_VALUE_SIZE = 1_000_000
"""Maximum characters of a text, or elements of a list, that one expression may produce."""
_MAX_NUMBER_WIDTH = 1_000
"""Maximum width of a formatted number."""
_ASSUMED_STORED_LENGTH = 100
"""Assumed length of stored texts when they are repeated."""
_SECONDS = {"MICROSECOND": 1e-6, "MILLISECOND": 1e-3, "SECOND": 1, "MINUTE": 60, "HOUR": 3600}
_LARGE_STEP_UNITS = {"DAY", "WEEK", "MONTH", "QUARTER", "YEAR"}
"""Units so large that a series of them cannot fill the memory."""
_WIDTH_ARGUMENTS = {"bar": 3, "format_number": 1}
"""Functions unknown to the parser, with the position of their width argument."""


class ValueTooLarge(BadInput):
    """A query produces a value that is too large, or whose size is not known."""

    code = "too-wide"


def check_value_size(node: exp.Expr) -> None:
    """Refuse a node that may produce a large value in one step. Raises ValueTooLarge."""
    match node:
        case exp.Repeat():
            _check(node, _multiply(_upper_bound(node.args.get("times")), _max_length(node.this)))
        case exp.Pad():
            _check(node, _upper_bound(node.expression))
        case exp.Format():
            _check_format(node)
        case exp.GenerateSeries() if not isinstance(node.parent, exp.Table):
            _check(node, _count_series_values(node))  # as a table it is produced row by row
        case exp.Anonymous() if node.name.lower() in _WIDTH_ARGUMENTS:
            place = _WIDTH_ARGUMENTS[node.name.lower()]
            if place < len(node.expressions):
                _check(node, _upper_bound(node.expressions[place]), _MAX_NUMBER_WIDTH)


def _check(node: exp.Expr, size: float | None, limit: int = MAX_VALUE_SIZE) -> None:
    if size is None:
        _refuse(node, "has no known upper bound")
    if size > limit:
        _refuse(node, f"exceeds {limit:,}")


def _refuse(node: exp.Expr, what: str) -> NoReturn:
    name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()  # type: ignore[attr-defined]
    raise ValueTooLarge(
        f"The size of the result of {name.lower()} {what}.",
        "Use a smaller number, or limit the argument with least(…, 1000).",
    )


def _upper_bound(node: exp.Expr | None) -> float | None:
    """Return an upper bound of a number, or None if there is none."""
    match node:
        case exp.Literal() | exp.Neg() | exp.Mul():
            return _exact_number(node)
        case exp.Paren() | exp.Cast():
            return _upper_bound(node.this)
        case exp.Least():
            known = [_upper_bound(each) for each in (node.this, *node.expressions)]
            return min((each for each in known if each is not None), default=None)
        case exp.Mod():
            divisor = _exact_number(node.expression)
            return None if divisor is None else abs(divisor)
        case exp.Add():
            left, right = _upper_bound(node.left), _upper_bound(node.right)
            return None if left is None or right is None else left + right
    return None


def _max_length(node: exp.Expr) -> float | None:
    """Return an upper bound of the length of a text, or None if there is none."""
    match node:
        case exp.Literal():
            return float(max(len(node.name), 1))
        case exp.Paren() | exp.Upper() | exp.Lower() | exp.Trim() | exp.Cast():
            return _max_length(node.this)
        case exp.Repeat():
            return _multiply(_upper_bound(node.args.get("times")), _max_length(node.this))
        case exp.Pad():
            return _upper_bound(node.expression)
        case exp.DPipe() | exp.Concat():
            parts = [_max_length(each) for each in node.iter_expressions()]
            return sum(each or 0 for each in parts) if None not in parts else None
        case exp.Column() | exp.Dot():
            return _ASSUMED_STORED_LENGTH
    return (
        None if node.find(exp.Repeat, exp.Pad, exp.Format, exp.AggFunc) else _ASSUMED_STORED_LENGTH
    )


def _multiply(count: float | None, size: float | None) -> float | None:
    return None if count is None or size is None else count * size


def _check_format(node: exp.Format) -> None:
    """Check the widths inside a format string; an argument may supply a width."""
    pattern = node.this
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        _refuse(node, "has no known upper bound")
    if re.search(r"\{[^{}]*\{|%[-+# 0,(]*(\d*\.)?\*", pattern.name):
        _refuse(node, "has no known upper bound")
    for width in re.findall(r"\d+", pattern.name):
        _check(node, float(width), _MAX_NUMBER_WIDTH)


def _count_series_values(node: exp.GenerateSeries) -> float | None:
    """Return an upper bound of the number of values in a series."""
    start, end, step = (node.args.get(key) for key in ("start", "end", "step"))
    if isinstance(step, exp.Interval):
        unit = step.text("unit").upper().rstrip("S")
        count = step.this.name if isinstance(step.this, exp.Literal) else ""
        if unit in _LARGE_STEP_UNITS:
            return 0
        now = datetime.now(UTC).replace(tzinfo=None)
        ends = [evaluate_moment(each, now) if each is not None else None for each in (start, end)]
        first, last = ends
        if first is None or last is None or unit not in _SECONDS or not count.isdecimal():
            return None
        return abs((last - first).total_seconds()) / (_SECONDS[unit] * max(int(count), 1))
    if end is None:
        return _upper_bound(start)
    low, high = _exact_number(start), _exact_number(end)
    by = _exact_number(step) if step is not None else 1.0
    if low is None or high is None or not by:
        least = _upper_bound(end)
        return least if low is not None and low >= 0 and least is not None and by else None
    return abs(high - low) / abs(by) + 1


def _exact_number(node: exp.Expr | None) -> float | None:
    if isinstance(node, exp.Neg):
        inner = _exact_number(node.this)
        return None if inner is None else -inner
    if isinstance(node, exp.Mul):
        left, right = _exact_number(node.left), _exact_number(node.right)
        return None if left is None or right is None else left * right
    if isinstance(node, exp.Paren):
        return _exact_number(node.this)
    return float(node.name) if isinstance(node, exp.Literal) and not node.is_string else None
