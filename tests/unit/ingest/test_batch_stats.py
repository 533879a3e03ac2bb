"""What a batch holds, counted."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from thermocline.ingest.batch_stats import to_utc


@pytest.mark.parametrize(
    ("micros", "time"),
    [
        (None, None),
        (0, datetime(1970, 1, 1, tzinfo=UTC)),
        (1_700_000_000_000_000, datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)),
        (1_700_000_000_000_000_000, None),  # microseconds, given as milliseconds
        (-(1 << 63), None),
        ((1 << 63) - 1, None),
    ],
)
def test_a_time_that_no_calendar_has_is_none(micros: int | None, time: datetime | None) -> None:
    assert to_utc(micros) == time
