"""The views of the lake that were sent, so that the next one can be sent as what changed since.

Views are numbered by epoch, and the sender by a name of its own, so that no other sender's epoch is
taken for ours. A receiver names the view that it has; where that one is no longer here, it is sent
the whole. What there is to send goes in pages of bounded size, for which the receiver asks one by
one; a view that is being sent is kept.
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

from thermocline.serve.fleet import state_delta as lookouts
from thermocline.serve.values import LakeState

MAX_STATES = 16
PAGE_BYTES = 256 << 10
"""A page is read on the router's event loop: one of this size takes it a few milliseconds."""


class StatePages:
    """The last views that were sent. Any thread may call."""

    def __init__(self, kept: int = MAX_STATES, page_bytes: int = PAGE_BYTES) -> None:
        self.sender = secrets.token_hex(8)
        self._kept = kept
        self._page_bytes = page_bytes
        self._states: OrderedDict[int, LakeState] = OrderedDict()
        """By epoch, the one that was asked for last at the end."""
        self._lock = threading.Lock()

    def build_page(self, request: Mapping[str, Any], newest: LakeState) -> dict[str, Any]:
        """What a receiver is sent of the newest view, or of the one whose pages it asks for.

        The request names the `sender` and the epoch `after` which it wants to know, and for
        another page the epoch `to` and the place `from` that the page before gave as `next`.
        """
        known = request.get("sender") == self.sender
        after, to = int(request.get("after", 0)), int(request.get("to", 0))
        place = tuple(int(each) for each in request.get("from", (0, 0)))
        with self._lock:
            self._remember(newest)
            old = self._find(after) if known else None
            new = self._find(to) if known and to else None
            if new is None or (old is None and after):
                new, place = self._find(newest.epoch), (0, 0)
            old = lookouts.EMPTY_STATE if old is None else old
        assert new is not None
        pieces, following = self._cut_page(old, new, place)
        return {
            "sender": self.sender,
            "base": old.epoch,
            "epoch": new.epoch,
            "looked_at": new.polled_at.isoformat(),
            "pieces": pieces,
            "next": following,
        }

    def _remember(self, newest: LakeState) -> None:
        before = self._states.get(newest.epoch)
        if before is not None:  # the same, seen again later
            later = max(before.polled_at, newest.polled_at)
            self._states[newest.epoch] = replace(before, polled_at=later)
            return
        self._states[newest.epoch] = newest
        while len(self._states) > self._kept:
            self._states.popitem(last=False)

    def _find(self, epoch: int) -> LakeState | None:
        found = self._states.get(epoch)
        if found is not None:
            self._states.move_to_end(epoch)
        return found

    def _cut_page(
        self, old: LakeState, new: LakeState, place: tuple[int, ...]
    ) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
        """The pieces of a page, and where the next one begins."""
        page: list[dict[str, Any]] = []
        size = 0
        for at, piece in _changes_from(old, new, *place):
            if size > self._page_bytes:
                return page, at
            page.append(piece)
            size += len(json.dumps(piece))
        return page, None


def _changes_from(
    old: LakeState, new: LakeState, first: int, skipped: int
) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """The pieces from a place on, each with its place."""
    for number, each in enumerate(lookouts.list_changes(old, new)[first:], first):
        of_it = enumerate(lookouts.encode_changes(old, new, each))
        for place, piece in islice(of_it, skipped if number == first else 0, None):
            yield (number, place), piece
