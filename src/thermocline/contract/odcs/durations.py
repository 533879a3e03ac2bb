"""Parse durations: 5 with unit m, 7d, 1d12h, PT5M."""

from __future__ import annotations

import re
from datetime import timedelta

_SECONDS = {
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3600, "hr": 3600, "hrs": 3600, "hour": 3600, "hours": 3600,
    "d": 86400, "day": 86400, "days": 86400,
    "w": 604800, "wk": 604800, "week": 604800, "weeks": 604800,
    "mo": 2592000, "month": 2592000, "months": 2592000,
    "y": 31536000, "yr": 31536000, "yrs": 31536000, "year": 31536000, "years": 31536000,
}  # fmt: skip
_MAX_SECONDS = 1000 * 31536000
_PART = re.compile(r"\s*([0-9]{1,12}(?:\.[0-9]{1,9})?)\s*([A-Za-z]+)\s*", re.ASCII)
_ISO = re.compile(r"P(?:\d+[YMWD])*(?:T(?:\d+[HMS])+)?", re.ASCII)

UNITS = "s, m, h, d, w, mo (30 days) or y (365 days)"


def parse_duration(value: object, unit: str | None = None) -> timedelta:
    """Return the duration of a value and its unit. Raises ValueError with the problem."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a duration must be a number with a unit")
    text = f"{value}{unit}" if unit else str(value)
    seconds = _iso_seconds(text) if _ISO.fullmatch(text) else _seconds(text)
    if not 0 < seconds <= _MAX_SECONDS:
        raise ValueError("a duration must be more than 0 and at most 1,000 years")
    return timedelta(seconds=seconds)


def _seconds(text: str) -> float:
    total, position = 0.0, 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise ValueError(f"write a number and a unit, such as 7d; units are {UNITS}")
        unit = _SECONDS.get(match[2].lower())
        if unit is None:
            raise ValueError(f'unknown unit "{match[2][:20]}"; units are {UNITS}')
        total += float(match[1]) * unit
        position = match.end()
    return total


def _iso_seconds(text: str) -> float:
    days, _, times = text[1:].partition("T")
    units = {"Y": 31536000, "M": 2592000, "W": 604800, "D": 86400}
    total = sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([YMWD])", days))
    units = {"H": 3600, "M": 60, "S": 1}
    return float(total + sum(int(n) * units[u] for n, u in re.findall(r"(\d+)([HMS])", times)))
