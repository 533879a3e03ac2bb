"""What has landed and what has not, when a source sends a transaction again."""

from __future__ import annotations

from thermocline.ingest.postgres.log_position import LogPosition, PositionTracker

START = LogPosition("sys", "slot", commit=100)
# (transaction, lsn) of records, and a commit's end: a key change makes two records at one lsn.
STREAM: list[tuple[int, int] | int] = [(7, 40), (7, 110), (7, 110), (7, 120), 130, (8, 50), 140]


def walked(tracker: PositionTracker, stream: list[tuple[int, int] | int]) -> list[tuple[int, int]]:
    new = []
    for each in stream:
        if isinstance(each, int):
            tracker.end_transaction(each)
        elif tracker.advance(*each):
            new.append(each)
    return new


def test_everything_is_new_from_a_commit_on() -> None:
    tracker = PositionTracker(START)
    assert walked(tracker, STREAM) == [each for each in STREAM if isinstance(each, tuple)]
    assert tracker.position == LogPosition("sys", "slot", commit=140, records=5)


def test_stopped_after_any_record_the_rest_comes_once() -> None:
    records = [each for each in STREAM if isinstance(each, tuple)]
    for cut in range(len(STREAM) + 1):
        first = PositionTracker(START)
        before = walked(first, STREAM[:cut])
        # After a restart the source sends every transaction that had not ended, from its start.
        ended = [each for each in STREAM[:cut] if isinstance(each, int)]
        resumed = STREAM.index(ended[-1]) + 1 if ended else 0
        again = PositionTracker(LogPosition.from_bookmark(first.position.to_bookmark()))
        assert before + walked(again, STREAM[resumed:]) == records
        assert again.position == LogPosition("sys", "slot", commit=140, records=5)


def test_a_record_that_does_not_land_moves_the_place_but_not_the_count() -> None:
    tracker = PositionTracker(START)
    assert tracker.advance(9, 150, counts=False)
    assert tracker.position.records == 0 and tracker.position.lsn == 150
