"""Which offsets are read next, and when a topic is not the one it was."""

from __future__ import annotations

import pytest

from thermocline.ingest.kafka import offset_ranges
from thermocline.ingest.kafka.offset_ranges import OffsetRange, PartitionOffsets, Topic
from thermocline.ingest.marks import Position


def topic(*extents: tuple[int, int], id_: str = "A") -> Topic:
    return Topic(id_, {n: PartitionOffsets(*extent) for n, extent in enumerate(extents)})


def at(*offsets: int, id_: str = "A") -> Position:
    return {"topics": {"t": {"id": id_, "next": {str(n): o for n, o in enumerate(offsets)}}}}


def test_a_first_start_is_at_either_end() -> None:
    there = {"t": topic((5, 9), (0, 2))}
    assert offset_ranges.start_position(there, at_end=False) == at(5, 0)
    assert offset_ranges.start_position(there, at_end=True) == at(9, 2)


@pytest.mark.parametrize(
    ("rows", "sizes"),
    [(1000, [10, 100, 40]), (30, [10, 10, 10]), (60, [10, 25, 25]), (2, [1, 0, 1]), (1, [1, 0, 0])],
)
def test_a_bounded_batch_is_shared_fairly(rows: int, sizes: list[int]) -> None:
    there = {"t": topic((0, 10), (0, 100), (0, 40))}
    taken = {
        part.partition: part.end - part.start
        for part in offset_ranges.plan_ranges(at(0, 0, 0), there, rows)
    }
    assert [taken.get(n, 0) for n in range(3)] == sizes
    assert sum(taken.values()) <= rows


def test_reading_on_ends_where_the_topic_ends() -> None:
    there = {"t": topic((0, 7), (0, 3))}
    position = at(0, 0)
    read: list[tuple[int, int]] = []
    while ranges := offset_ranges.plan_ranges(position, there, 4):
        read += [(s.partition, o) for s in ranges for o in range(s.start, s.end)]
        position = offset_ranges.advance_position(position, ranges)
    assert sorted(read) == [(0, n) for n in range(7)] + [(1, n) for n in range(3)]
    assert (position, offset_ranges.count_lag(position, there)) == (at(7, 3), 0)
    assert offset_ranges.plan_ranges(position, there, 4) == []


@pytest.mark.parametrize(
    ("position", "there", "said"),
    [
        (at(3), topic((0, 9)), None),
        (at(9), topic((9, 9)), None),
        (at(3), topic((3, 9), (0, 4)), None),  # a partition was added
        (at(3), topic((5, 9)), "offsets 3 to 4 of t/0 were deleted"),
        (at(3), topic((0, 9), (2, 4)), "offsets 0 to 1 of t/1 were deleted"),
        (at(12), topic((0, 9)), "t/0 ends at offset 9, though 12 were read"),
        (at(3, 4), topic((0, 9)), "the partition t/1 is gone"),
        (at(3), topic((0, 9), id_="B"), "t was deleted and created again after 3 of its records"),
    ],
)
def test_what_may_be_missing_is_said(position: Position, there: Topic, said: str | None) -> None:
    found = offset_ranges.find_losses(position, {"t": there})
    assert (found == []) if said is None else (len(found) == 1 and said in found[0])


def test_an_accepted_loss_goes_on_where_the_topic_still_is() -> None:
    assert offset_ranges.reconcile_position(at(3, 30), {"t": topic((5, 9), (0, 20), (0, 4))}) == at(
        5, 20, 0
    )
    assert offset_ranges.reconcile_position(at(3), {"t": topic((0, 9), id_="B")}) == at(0, id_="B")


def test_a_topic_may_be_added_to_a_source() -> None:
    there = {"t": topic((0, 5)), "u": Topic("U", {0: PartitionOffsets(2, 4)})}
    position = offset_ranges.reconcile_position(at(5), there)
    assert offset_ranges.plan_ranges(position, there, 10) == [OffsetRange("u", 0, 2, 4)]
