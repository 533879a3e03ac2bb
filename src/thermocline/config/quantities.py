"""Parse sizes, durations and hours of settings: 512MB, 1.5GiB, 7d, 30s, 08:00-18:00."""

from __future__ import annotations

import re

_UNITS = {"k": 1, "m": 2, "g": 3, "t": 4}
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([kmgt]?)(i?)b?", re.ASCII | re.IGNORECASE)
_SPAN = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)\s*([smhdw])", re.ASCII)
_HOURS = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_size(text: str) -> int:
    """Return bytes: k, M, G and T are decimal, Ki, Mi, Gi and Ti binary. Raises ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError('must be a size such as "512MB" or "2GiB"')
    letter = match[2].lower()
    if not letter:
        return int(float(match[1]))
    return int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[letter])


def parse_duration(text: str) -> float:
    """Return the seconds of a duration. Raises ValueError."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise ValueError('must be a duration such as "7d", "12h" or "30s"')
    return float(match[1]) * _SECONDS[match[2]]


def parse_hours(text: str) -> tuple[int, int] | None:
    """Return hours of the day as minutes since midnight, or None for "". Raises ValueError.

    The second is the smaller one if they pass midnight.
    """
    if not text.strip():
        return None
    match = _HOURS.fullmatch(text.strip())
    if match is None or match[1] + match[2] == match[3] + match[4]:
        raise ValueError('must be hours of the day such as "08:00-18:00", or empty')
    return int(match[1]) * 60 + int(match[2]), int(match[3]) * 60 + int(match[4])
