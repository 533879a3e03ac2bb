"""How large one value may be made: widths, repetitions and series of values.

A text of 2 GB is made in one step, which heeds no interrupt. So how often something is repeated has
to be known beforehand: a number that is written there, or what `least` bounds by one. What is not
known to be small is refused.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NoReturn

from sqlglot import exp

from thermocline.engine.time_expressions import evaluate_moment
from thermocline.errors import BadInput

MAX_VALUE_SIZE = 1_000_000
"""Characters of a text, or values of a list, that a query may ask to be made at once."""
_MAX_NUMBER_WIDTH = 1_000
"""Of a number that is formatted."""
_ASSUMED_STORED_LENGTH = 100
"""How long texts in tables are taken to be when they are repeated."""
_SECONDS = {"MICROSECOND": 1e-6, "MILLISECOND": 1e-3, "SECOND": 1, "MINUTE": 60, "HOUR": 3600}
_LARGE_STEP_UNITS = {"DAY", "WEEK", "MONTH", "QUARTER", "YEAR"}
"""There are fewer of them than would fill the memory."""
_WIDTH_ARGUMENTS = {"bar": 3, "format_number": 1}
"""Functions that the parser does not know, and which of their arguments is a width."""


class ValueTooLarge(BadInput):
    """A query asks for a value that is too large, or not known to be small."""

    code = "too-wide"


def check_value_size(node: exp.Expr) -> None:
    """Refuse a node that may make a large value in one step. Raises TooWide."""
    match node:
        case exp.Repeat():
            _check(node, _multiply(_upper_bound(node.args.get("times")), _max_length(node.this)))
        case exp.Pad():
            _check(node, _upper_bound(node.expression))
        case exp.Format():
            _check_format(node)
        case exp.GenerateSeries() if not isinstance(node.parent, exp.Table):
            _check(node, _count_series_values(node))  # as a table it is made row by row
        case exp.Anonymous() if node.name.lower() in _WIDTH_ARGUMENTS:
            place = _WIDTH_ARGUMENTS[node.name.lower()]
            if place < len(node.expressions):
                _check(node, _upper_bound(node.expressions[place]), _MAX_NUMBER_WIDTH)


def _check(node: exp.Expr, size: float | None, most: int = MAX_VALUE_SIZE) -> None:
    if size is None:
        _refuse(node, "is not known to be small")
    if size > most:
        _refuse(node, f"is more than {most:,}")


def _refuse(node: exp.Expr, what: str) -> NoReturn:
    name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()  # type: ignore[attr-defined]
    raise ValueTooLarge(
        f"What {name.lower()} makes {what}.", "Write a smaller number, or least(…, 1000) around it."
    )


def _upper_bound(node: exp.Expr | None) -> float | None:
    """At most how large a number is; None when that is not known."""
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
    """At most how long a text is, where that follows from the query."""
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
    """A format has widths of its own, which another value may give."""
    pattern = node.this
    if not isinstance(pattern, exp.Literal) or not pattern.is_string:
        _refuse(node, "is not known to be small")
    if re.search(r"\{[^{}]*\{|%[-+# 0,(]*(\d*\.)?\*", pattern.name):
        _refuse(node, "is not known to be small")
    for width in re.findall(r"\d+", pattern.name):
        _check(node, float(width), _MAX_NUMBER_WIDTH)


def _count_series_values(node: exp.GenerateSeries) -> float | None:
    """At most how many values a series has."""
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
