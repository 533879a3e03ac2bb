"""The last states that were sent, so that the next one can be sent as a difference.

States are numbered by epoch; the sender has a random name, so that epochs of different senders are
not confused. A receiver names the state that it has; when that one is no longer kept, it receives
the whole state. Changes are sent in pages of bounded size, which the receiver requests one by one;
a state that is being sent is kept.
"""

from __future__ import annotations

import json
import secrets
import threading
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

from thermocline.serve.fleet import state_delta
from thermocline.serve.values import LakeState

MAX_STATES = 16
PAGE_BYTES = 256 << 10
"""The router decodes a page on its event loop: one of this size takes a few milliseconds."""


class StatePages:
    """The last states that were sent. Thread-safe."""

    def __init__(self, max_states: int = MAX_STATES, page_bytes: int = PAGE_BYTES) -> None:
        self.sender = secrets.token_hex(8)
        self._max_states = max_states
        self._page_bytes = page_bytes
        self._states: OrderedDict[int, LakeState] = OrderedDict()
        """By epoch, the most recently requested one last."""
        self._lock = threading.Lock()

    def build_page(self, request: Mapping[str, Any], newest: LakeState) -> dict[str, Any]:
        """Return a page of the newest state, or of the one whose pages the receiver requests.

        The request names the `sender` and the epoch `after` which it needs changes, and for another
        page the epoch `to` and the position `from` that the previous page had as `next`.
        """
        known = request.get("sender") == self.sender
        after, to = int(request.get("after", 0)), int(request.get("to", 0))
        position = tuple(int(each) for each in request.get("from", (0, 0)))
        with self._lock:
            self._remember(newest)
            old = self._find(after) if known else None
            new = self._find(to) if known and to else None
            if new is None or (old is None and after):
                new, position = self._find(newest.epoch), (0, 0)
            old = state_delta.EMPTY_STATE if old is None else old
        assert new is not None
        pieces, following = self._cut_page(old, new, position)
        return {
            "sender": self.sender,
            "base": old.epoch,
            "epoch": new.epoch,
            "polled_at": new.polled_at.isoformat(),
            "pieces": pieces,
            "next": following,
        }

    def _remember(self, newest: LakeState) -> None:
        before = self._states.get(newest.epoch)
        if before is not None:  # the same state, polled again later
            later = max(before.polled_at, newest.polled_at)
            self._states[newest.epoch] = replace(before, polled_at=later)
            return
        self._states[newest.epoch] = newest
        while len(self._states) > self._max_states:
            self._states.popitem(last=False)

    def _find(self, epoch: int) -> LakeState | None:
        found = self._states.get(epoch)
        if found is not None:
            self._states.move_to_end(epoch)
        return found

    def _cut_page(
        self, old: LakeState, new: LakeState, position: tuple[int, ...]
    ) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
        """Return the pieces of a page, and the position of the next page."""
        page: list[dict[str, Any]] = []
        size = 0
        for at, piece in _changes_from(old, new, *position):
            if size > self._page_bytes:
                return page, at
            page.append(piece)
            size += len(json.dumps(piece))
        return page, None


def _changes_from(
    old: LakeState, new: LakeState, first: int, skipped: int
) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """Yield the pieces from a position on, each with its position."""
    for number, each in enumerate(state_delta.list_changes(old, new)[first:], first):
        pieces = enumerate(state_delta.encode_changes(old, new, each))
        for position, piece in islice(pieces, skipped if number == first else 0, None):
            yield (number, position), piece
