"""Sums by day equal those computed from the files themselves."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.serve.file_sums import (
    SMALL_FILE,
    FileTimes,
    FileTotals,
    TableFileTotals,
    day_after,
    day_of,
    sum_files,
    sum_manifest,
)

DAY = 86_400_000_000
days = st.integers(-70, 200) | st.integers(-(2**20), 2**20)
times = st.none() | st.builds(lambda day, rest: day * DAY + rest, days, st.integers(0, DAY - 1))
files = st.builds(
    FileTimes,
    bytes=st.integers(0, 3 * SMALL_FILE),
    rows=st.integers(0, 1000),
    low=times,
    high=times,
    digest=st.integers(0, 2**128 - 1),
)
manifests = st.lists(st.lists(files, max_size=4), max_size=6)


def counted(some: Sequence[FileTimes]) -> FileTotals:
    return FileTotals(
        len(some),
        sum(each.bytes for each in some),
        sum(each.rows for each in some),
        sum(each.bytes < SMALL_FILE for each in some),
        sum(each.digest for each in some) % 2**128,
    )


def bounds(file: FileTimes) -> tuple[int | None, int | None]:
    """The days of a file; bounds that cannot be are none."""
    if file.low is not None and file.high is not None and file.low > file.high:
        return None, None
    low = None if file.low is None else file.low // DAY
    return low, None if file.high is None else file.high // DAY


@settings(deadline=None)
@given(st.lists(files, max_size=20), st.none() | days, st.none() | days)
def test_a_range_of_days_has_the_files_that_meet_it(
    some: list[FileTimes], first: int | None, last: int | None
) -> None:
    if first is not None and last is not None and first > last:
        first, last = last, first
    found = sum_files(some)
    meeting = []
    for each in some:
        low, high = bounds(each)
        ends_before = first is not None and high is not None and high < first
        begins_after = last is not None and low is not None and low > last
        if not ends_before and not begins_after:
            meeting.append(each)
    assert found.within(first, last) == counted(meeting)
    assert found.total == counted(some)
    if last is not None:
        begun = [each for each in some if (low := bounds(each)[0]) is None or low < last]
        assert found.begun_before(last) == counted(begun)


@settings(deadline=None)
@given(manifests, manifests, manifests)
def test_folding_in_and_out_is_summing_what_is_left(
    stay: list[list[FileTimes]], come: list[list[FileTimes]], go: list[list[FileTimes]]
) -> None:
    before = sum_files([each for some in (*stay, *go) for each in some])
    kept = before.begins.before(3)
    after = before.with_manifests(map(sum_manifest, come), map(sum_manifest, go))
    assert after == sum_files([each for some in (*stay, *come) for each in some])
    assert before.begins.before(3) == kept, "what is known of before does not change"


@settings(deadline=None)
@given(manifests, manifests)
def test_the_days_that_changed_make_one_of_another(
    one: list[list[FileTimes]], other: list[list[FileTimes]]
) -> None:
    old, new = (
        TableFileTotals().with_manifests(map(sum_manifest, some), []).begins
        for some in (one, other)
    )
    assert old.with_days(new.changes_since(old)) == new
    assert new.changes_since(new) == {}
    assert dict(new) == {day: new.at(day) for day, _ in new}


def test_days_that_did_not_change_are_shared() -> None:
    old = sum_files(FileTimes(1, 1, d * DAY, d * DAY, d) for d in range(10_000))
    new = old.with_manifests([sum_manifest([FileTimes(1, 1, 9_999 * DAY, None, 5)])], [])
    shared = [
        a is b for a, b in zip(dict(old.begins).values(), dict(new.begins).values(), strict=True)
    ]
    assert shared.count(False) == 1
    assert list(new.begins.changes_since(old.begins)) == [9_999]


def test_a_day_is_one_of_utc_whoever_names_the_moment() -> None:
    midnight = datetime(2026, 11, 16, tzinfo=UTC)
    number = day_of(midnight)
    assert number * DAY == int(midnight.timestamp() * 1e6)
    assert day_of(midnight.replace(tzinfo=None)) == number
    assert day_of(midnight - timedelta(microseconds=1)) == number - 1
    assert day_after(midnight) == number
    assert day_after(midnight + timedelta(microseconds=1)) == number + 1
