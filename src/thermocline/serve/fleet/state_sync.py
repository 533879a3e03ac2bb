"""The router's replica of the replicator's state, updated by differences.

A sync begins with the epoch that is known here, and continues page by page; its changes are applied
at its end. A lost message loses no changes, as every sync names the epoch that it starts from. Two
concurrent syncs do not disturb each other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from thermocline.serve.fleet.state_delta import EMPTY_STATE, StateDecoder
from thermocline.serve.values import LakeState


class StateReplica:
    """The sender's state, as of the last sync."""

    def __init__(self) -> None:
        self.state: LakeState = EMPTY_STATE
        self.sender = ""

    def forget(self) -> None:
        """Request the whole state next time. The current one stays until then."""
        self.sender = ""


class StateSync:
    """One transfer of a state, in one or several pages."""

    def __init__(self, replica: StateReplica) -> None:
        self._replica = replica
        self._base, self._sender = replica.state, replica.sender
        self._incoming = StateDecoder(EMPTY_STATE, EMPTY_STATE)
        self._update_id: tuple[str, int, int] | None = None

    def request(self) -> dict[str, Any]:
        """Return the fields of the first request."""
        return {"sender": self._sender, "after": self._base.epoch}

    def take(self, reply: Mapping[str, Any]) -> dict[str, Any] | None:
        """Decode a page; return the fields of the next request, or None at the end."""
        update_id = sender, base, epoch = (
            str(reply["sender"]), int(reply["base"]), int(reply["epoch"])
        )  # fmt: skip
        if update_id != self._update_id:  # the first page, or the sender switched to a newer state
            self._update_id = update_id
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
            raise ValueError(f"The changes since {base} were not requested.")
        return self._base

    def finish(self, reply: Mapping[str, Any]) -> frozenset[str]:
        """Apply the transfer and return the tables that it named. Drop an outdated one."""
        assert self._update_id is not None
        replica, (sender, _, epoch) = self._replica, self._update_id
        polled_at, known = datetime.fromisoformat(reply["polled_at"]), replica.state
        if sender == replica.sender and epoch <= known.epoch:
            if epoch == known.epoch and polled_at > known.polled_at:
                replica.state = replace(known, polled_at=polled_at)
            return frozenset()
        self._incoming.known = known
        replica.state, replica.sender = self._incoming.finish(epoch, polled_at), sender
        return frozenset(self._incoming.tables)
