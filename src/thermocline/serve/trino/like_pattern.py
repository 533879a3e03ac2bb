"""LIKE for names, in time proportional to text times pattern for every pattern."""

from __future__ import annotations

from thermocline.serve.trino.error_codes import TrinoError

MAX_PATTERN_CHARACTERS = 1_000
"""The longest pattern that is accepted."""
_ANY, _ONE = "%%", "__"
"""The tokens for % and _; no single character equals them."""


class LikePattern:
    """A pattern in which % matches any text and _ one character."""

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        if len(pattern) > MAX_PATTERN_CHARACTERS or (escape is not None and len(escape) != 1):
            raise TrinoError(
                "GENERIC_USER_ERROR",
                "The pattern is too long, or its ESCAPE is not one character.",
                f"Patterns for names have up to {MAX_PATTERN_CHARACTERS:,} characters.",
            )
        self._parts: list[str] = []
        is_escaped = False
        for char in pattern:
            if not is_escaped and char == escape:
                is_escaped = True
                continue
            part = char if is_escaped else {"%": _ANY, "_": _ONE}.get(char, char)
            if part != _ANY or self._parts[-1:] != [_ANY]:
                self._parts.append(part)
            is_escaped = False

    def matches(self, text: str) -> bool:
        """Return whether a text matches the pattern."""
        parts = self._parts
        at = step = resume = 0
        last_any = -1
        while at < len(text):
            matches = parts[step] if step < len(parts) else None
            if matches == _ANY:
                last_any, resume = step, at
                step += 1
            elif matches in (_ONE, text[at]):
                at += 1
                step += 1
            elif last_any >= 0:  # the last % matches one more character
                resume += 1
                at, step = resume, last_any + 1
            else:
                return False
        return all(part == _ANY for part in parts[step:])
