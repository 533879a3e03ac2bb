"""LIKE, for names: in time that grows with text times pattern, whatever the pattern."""

from __future__ import annotations

from thermocline.serve.trino.faults import Faulty

LONGEST = 1_000
"""A pattern for names need not be longer."""
_ANY, _ONE = "%%", "__"
"""What a pattern's signs become; no single character equals them."""


class Like:
    """A pattern in which % stands for anything and _ for one character."""

    def __init__(self, pattern: str, escape: str | None = None) -> None:
        if len(pattern) > LONGEST or (escape is not None and len(escape) != 1):
            raise Faulty(
                "GENERIC_USER_ERROR",
                "The pattern is too long, or its ESCAPE is not one character.",
                f"Patterns for names have up to {LONGEST:,} characters.",
            )
        self._parts: list[str] = []
        taken = False
        for char in pattern:
            if not taken and char == escape:
                taken = True
                continue
            part = char if taken else {"%": _ANY, "_": _ONE}.get(char, char)
            if part != _ANY or self._parts[-1:] != [_ANY]:
                self._parts.append(part)
            taken = False

    def __call__(self, text: str) -> bool:
        """Whether a text is like the pattern."""
        parts = self._parts
        at = step = resume = 0
        star = -1
        while at < len(text):
            wanted = parts[step] if step < len(parts) else None
            if wanted == _ANY:
                star, resume = step, at
                step += 1
            elif wanted in (_ONE, text[at]):
                at += 1
                step += 1
            elif star >= 0:  # let the last % stand for one character more
                resume += 1
                at, step = resume, star + 1
            else:
                return False
        return all(part == _ANY for part in parts[step:])
