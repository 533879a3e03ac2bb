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

from thermocline.serve.fleet import lookout as lookouts
from thermocline.serve.terms import Lookout

KEPT = 16
PAGE_BYTES = 256 << 10
"""A page is read on the router's event loop: one of this size takes it a few milliseconds."""


class Views:
    """The last views that were sent. Any thread may call."""

    def __init__(self, kept: int = KEPT, page_bytes: int = PAGE_BYTES) -> None:
        self.sender = secrets.token_hex(8)
        self._kept = kept
        self._page_bytes = page_bytes
        self._views: OrderedDict[int, Lookout] = OrderedDict()
        """By epoch, the one that was asked for last at the end."""
        self._lock = threading.Lock()

    def page(self, request: Mapping[str, Any], newest: Lookout) -> dict[str, Any]:
        """What a receiver is sent of the newest view, or of the one whose pages it asks for.

        The request names the `sender` and the epoch `after` which it wants to know, and for
        another page the epoch `to` and the place `from` that the page before gave as `next`.
        """
        known = request.get("sender") == self.sender
        after, to = int(request.get("after", 0)), int(request.get("to", 0))
        place = tuple(int(each) for each in request.get("from", (0, 0)))
        with self._lock:
            self._note(newest)
            old = self._found(after) if known else None
            new = self._found(to) if known and to else None
            if new is None or (old is None and after):
                new, place = self._found(newest.epoch), (0, 0)
            old = lookouts.NOTHING if old is None else old
        assert new is not None
        pieces, following = self._cut(old, new, place)
        return {
            "sender": self.sender,
            "base": old.epoch,
            "epoch": new.epoch,
            "looked_at": new.looked_at.isoformat(),
            "pieces": pieces,
            "next": following,
        }

    def _note(self, newest: Lookout) -> None:
        before = self._views.get(newest.epoch)
        if before is not None:  # the same, seen again later
            later = max(before.looked_at, newest.looked_at)
            self._views[newest.epoch] = replace(before, looked_at=later)
            return
        self._views[newest.epoch] = newest
        while len(self._views) > self._kept:
            self._views.popitem(last=False)

    def _found(self, epoch: int) -> Lookout | None:
        found = self._views.get(epoch)
        if found is not None:
            self._views.move_to_end(epoch)
        return found

    def _cut(
        self, old: Lookout, new: Lookout, place: tuple[int, ...]
    ) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
        """The pieces of a page, and where the next one begins."""
        page: list[dict[str, Any]] = []
        size = 0
        for at, piece in _from(old, new, *place):
            if size > self._page_bytes:
                return page, at
            page.append(piece)
            size += len(json.dumps(piece))
        return page, None


def _from(
    old: Lookout, new: Lookout, first: int, skipped: int
) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    """The pieces from a place on, each with its place."""
    for number, each in enumerate(lookouts.changed(old, new)[first:], first):
        of_it = enumerate(lookouts.pieces(old, new, each))
        for place, piece in islice(of_it, skipped if number == first else 0, None):
            yield (number, place), piece
