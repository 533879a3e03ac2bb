"""The router's copy of what the keeper knows: brought up to date by what changed.

A conversation begins with the view that is known here, and goes on page by page; what it brings is
taken in at its end. Nothing is lost by a message that is, as every conversation says from which
view it goes on, and two that go on at a time do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from thermocline.serve.fleet.state_delta import EMPTY_STATE, StateDecoder
from thermocline.serve.values import LakeState


class StateReplica:
    """A Lookout as its sender has it, or had it a moment ago."""

    def __init__(self) -> None:
        self.state: LakeState = EMPTY_STATE
        self.sender = ""

    def forget(self) -> None:
        """Ask for the whole next time. What is known stays known until then."""
        self.sender = ""


class StateSync:
    """One view on its way, in one page or several."""

    def __init__(self, replica: StateReplica) -> None:
        self._replica = replica
        self._base, self._sender = replica.state, replica.sender
        self._incoming = StateDecoder(EMPTY_STATE, EMPTY_STATE)
        self._of: tuple[str, int, int] | None = None

    def request(self) -> dict[str, Any]:
        """What to ask for first."""
        return {"sender": self._sender, "after": self._base.epoch}

    def take(self, reply: Mapping[str, Any]) -> dict[str, Any] | None:
        """Take in a page; gives what to ask for next, or None at the end."""
        of = sender, base, epoch = (
            str(reply["sender"]), int(reply["base"]), int(reply["epoch"])
        )  # fmt: skip
        if of != self._of:  # the first page, or the view on its way was given up for a newer one
            self._of = of
            self._incoming = StateDecoder(self._find_base(sender, base), EMPTY_STATE)
        self._incoming.known = self._replica.state
        self._incoming.add(reply["pieces"])
        if reply["next"] is None:
            return None
        return {"sender": sender, "after": base, "to": epoch, "from": reply["next"]}

    def _find_base(self, sender: str, base: int) -> LakeState:
        if base == EMPTY_STATE.epoch:
            return EMPTY_STATE
        if (sender, base) != (self._sender, self._base.epoch):
            raise ValueError(f"What changed since {base} was not asked for.")
        return self._base

    def finish(self, reply: Mapping[str, Any]) -> frozenset[str]:
        """Make what came known; gives the tables that it told of. What is older is dropped."""
        assert self._of is not None
        replica, (sender, _, epoch) = self._replica, self._of
        polled_at, known = datetime.fromisoformat(reply["looked_at"]), replica.state
        if sender == replica.sender and epoch <= known.epoch:
            if epoch == known.epoch and polled_at > known.polled_at:
                replica.state = replace(known, polled_at=polled_at)
            return frozenset()
        self._incoming.known = known
        replica.state, replica.sender = self._incoming.finish(epoch, polled_at), sender
        return frozenset(self._incoming.tables)
