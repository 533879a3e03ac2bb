"""How the Arrow lane handles the messages and events of an offset range."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from thermocline.ingest.kafka.arrow_reader import _RangeProgress
from thermocline.ingest.kafka.offset_ranges import OffsetRange
from thermocline.ingest.unambiguous_json import NeedsSpark

RANGE = OffsetRange("t", 0, 5, 8)


@dataclass
class Trouble:
    said: str

    def name(self) -> str:
        return self.said


@dataclass
class Given:
    """A message, or an event where `said` names one."""

    at: int
    said: str = ""

    def offset(self) -> int:
        return self.at

    def error(self) -> Trouble | None:
        return Trouble(self.said) if self.said else None


def end(at: int) -> Given:
    return Given(at, "_PARTITION_EOF")


def taken(*given: Given) -> list[int] | None:
    """The offsets that were taken once the part is done."""
    reading = _RangeProgress(0, RANGE)
    for each in given:
        reading.add(each)
    return [message.offset() for message in reading.pending] if reading.is_done else None


def test_a_span_is_done_when_each_of_its_offsets_came() -> None:
    assert taken(Given(5), Given(6)) is None
    assert taken(Given(5), Given(6), Given(7)) == [5, 6, 7]
    assert taken(Given(5), Given(6), Given(7), Given(8), end(9), Given(9)) == [5, 6, 7]
    assert taken(end(5), Given(5), end(6), Given(6), Given(7)) == [5, 6, 7]


@pytest.mark.parametrize(
    "given",
    [
        (Given(6),),
        (Given(4),),
        (Given(8),),
        (Given(100),),
        (Given(5), Given(5)),
        (Given(5), Given(7)),
        (Given(5), Given(8)),
        (Given(5), end(8)),
        (Given(5), Given(6, "OFFSET_OUT_OF_RANGE")),
    ],
)
def test_an_offset_that_is_missing_twice_or_out_of_order_declines(given: tuple[Given, ...]) -> None:
    with pytest.raises(NeedsSpark):
        taken(*given)
