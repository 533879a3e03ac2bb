"""What the keeper tells the router arrives as it was told."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from thermocline.serve.fleet import lookout
from thermocline.serve.terms import FileStat, Head, Held, Lookout

moments = st.datetimes(timezones=st.just(UTC))
snapshots = st.integers(min_value=-(2**63), max_value=2**63 - 1)
files = st.builds(
    FileStat,
    bytes=st.integers(0, 2**40),
    rows=st.integers(0, 2**40),
    low=st.none() | moments,
    high=st.none() | moments,
)
heads = st.builds(
    Head,
    table=st.just("gold.t"),
    uuid=st.uuids().map(str),
    snapshot=snapshots,
    metadata=st.text(),
    committed_at=moments,
    columns=st.dictionaries(st.text(), st.sampled_from(["int", "decimal(9,2)", "list<string>"])),
    time=st.none() | st.text(),
    snapshots=st.lists(snapshots).map(tuple),
    files=st.lists(files).map(tuple),
    hot=st.none() | st.just(math.inf) | st.floats(1, 1e9),
)
copies = st.builds(
    Held, snapshot=snapshots, since=st.none() | moments, rows=st.integers(0), bytes=st.integers(0)
)
lookouts = st.builds(
    Lookout,
    epoch=st.integers(0),
    looked_at=moments,
    heads=heads.map(lambda head: {head.table: head}),
    held=st.dictionaries(st.text(), st.dictionaries(st.text(), copies, max_size=3), max_size=3),
)


@given(lookouts)
def test_what_is_written_is_read_again(seen: Lookout) -> None:
    strict = json.dumps(lookout.written(seen), allow_nan=False)
    assert lookout.read(json.loads(strict)) == seen


@given(lookouts, moments)
def test_a_look_that_saw_nothing_new_only_moves_the_time(seen: Lookout, later: datetime) -> None:
    again = Lookout(seen.epoch, later, seen.heads, seen.held)
    told = json.loads(json.dumps(lookout.still(again)))
    assert "heads" not in told
    assert lookout.read(told, known=seen) == again


def test_moments_are_utc_whoever_wrote_them() -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=5))).isoformat()
    for text in (noon.isoformat(), east, "2026-11-16T12:00:00"):
        held = lookout.read_held({"snapshot": "7", "since": text})
        assert held == Held(7, noon)
        assert held.since is not None and held.since.tzinfo is UTC


def test_a_bound_that_no_calendar_has_is_unknown() -> None:
    assert lookout.moment(2**62) is None
    assert lookout.moment(0) == datetime(1970, 1, 1, tzinfo=UTC)


def test_reading_one_loads_nothing_heavy() -> None:
    script = (
        "import sys, thermocline.serve.fleet.lookout\n"
        "print([m for m in ('pyarrow', 'duckdb', 'pyiceberg', 'numpy') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert said.strip() == b"[]"
