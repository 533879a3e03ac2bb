"""The one answer for whatever is not proven: the model is computed as a whole."""

from __future__ import annotations


class Unsafe(Exception):
    """No rule proves that the change can be followed through a query; says what has none."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
