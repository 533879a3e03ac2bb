"""When the Arrow lane is tried, and what it counts."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from thermocline.ingest.fast_path import MAX_SKIPPED, FastPathBackoff, count_messages
from thermocline.ingest.validation import EVENT_TIME, FILE, PAYLOAD, POSITION


def test_a_lane_that_is_declined_again_and_again_rests_longer_and_longer() -> None:
    backoff = FastPathBackoff()
    rests = []
    for _ in range(9):
        skipped = 0
        while not backoff.is_ready():
            skipped += 1
        rests.append(skipped)
        backoff.record_declined()
    assert rests == [0, 0, 2, 6, 14, 30, 62, MAX_SKIPPED, MAX_SKIPPED]
    while not backoff.is_ready():
        pass
    backoff.record_success()
    backoff.record_declined()
    assert backoff.is_ready()


def test_one_bad_batch_in_two_keeps_the_lane_open() -> None:
    backoff = FastPathBackoff()
    for _ in range(20):
        assert backoff.is_ready()
        backoff.record_declined()
        assert backoff.is_ready()
        backoff.record_success()


def records(*places: tuple[int, int]) -> pa.Table:
    files, positions = zip(*places, strict=True)
    count = len(places)
    return pa.table(
        {
            FILE: pa.array(files, pa.int32()),
            POSITION: pa.array(positions, pa.int64()),
            EVENT_TIME: pa.array(range(count), pa.timestamp("us", "UTC")),
            PAYLOAD: pa.array([b"xyz"] * count),
        }
    )


def test_records_are_counted_with_their_bytes_and_times() -> None:
    found = count_messages(records((0, 5), (0, 7), (1, 0)), ((5, 8), (0, 1)))
    assert (found.rows, found.bad, found.outside, found.bytes) == (3, 0, 0, 9)
    assert found.oldest == datetime(1970, 1, 1, tzinfo=UTC)
    assert found.newest == datetime(1970, 1, 1, 0, 0, 0, 2, UTC)


@pytest.mark.parametrize(
    "places",
    [
        [(0, 4)],
        [(0, 8)],
        [(0, 5), (0, 5)],
        [(0, 6), (0, 5)],
        [(1, 0), (0, 5)],
        [(0, 5), (1, 0), (0, 6)],
    ],
)
def test_a_record_outside_its_span_or_twice_is_noticed(places: list[tuple[int, int]]) -> None:
    assert count_messages(records(*places), ((5, 8), (0, 1))).outside
