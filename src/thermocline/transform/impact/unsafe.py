"""The error for a query that is not proven safe; the model is then computed in full."""

from __future__ import annotations


class Unsafe(Exception):
    """No rule proves that changes can be traced through a query; `reason` names the construct."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
