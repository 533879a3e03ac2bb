"""The loop of a stream: how long it bears with a source that is away."""

from __future__ import annotations

from threading import Event
from typing import TYPE_CHECKING, cast

import pytest

from thermocline.errors import Transient
from thermocline.ingest import stream
from thermocline.ingest.source import Source

if TYPE_CHECKING:
    from thermocline.lake import Lake

FASTER = 1000


class Away:
    """A source that cannot be reached, then has nothing new, then is away again."""

    source = Source("away", "landing", "bronze.raw_away")

    def __init__(self, tries: int) -> None:
        self.looks, self._tries = 0, tries

    def ingest_batch(self) -> None:
        self.looks += 1
        if self.looks != self._tries + 1:
            raise Transient("It does not answer.", "Look whether it runs.")

    def close(self) -> None:
        pass


def test_a_source_that_is_away_is_tried_for_minutes_and_soon_again_after_it_was_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream, "MIN_PAUSE_SECONDS", stream.MIN_PAUSE_SECONDS / FASTER)
    monkeypatch.setattr(stream, "MAX_PAUSE_SECONDS", stream.MAX_PAUSE_SECONDS / FASTER)
    stop, pauses = Event(), []
    for beat in stream.poll_sources(cast("Lake", None), [Away(9)], every=0, stop=stop):
        pauses.append(round(beat.pause * FASTER))
        assert (beat.failure is None) == (beat.pause == 0)
        if len(pauses) == 12:
            stop.set()
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30, 0, 1, 2]
    assert sum(pauses[:9]) > 120
