"""What the keeper tells the router arrives as it was told."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.serve.filesums import FileSums, FileTimes, file_sums, manifest_sums
from thermocline.serve.fleet import lookout
from thermocline.serve.terms import Head, Held, Lookout

NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
DAY = 86_400_000_000

moments = st.datetimes(timezones=st.just(UTC))
numbers = st.integers(min_value=-(2**63), max_value=2**63 - 1)
micros = st.none() | st.integers(-(10**11) * 86_400, 10**11 * 86_400) | numbers
files = st.builds(
    FileTimes,
    bytes=st.integers(0, 2**40),
    rows=st.integers(0, 2**40),
    low=micros,
    high=micros,
    digest=st.integers(0, 2**128 - 1),
)
names = st.sampled_from(["gold.a", "gold.b", 'x."y'])
heads = st.builds(
    Head,
    table=names,
    uuid=st.sampled_from(["one", "other"]),
    snapshot=numbers,
    metadata=st.text(),
    committed_at=moments,
    columns=st.dictionaries(st.text(), st.sampled_from(["int", "decimal(9,2)", "list<string>"])),
    time=st.none() | st.text(),
    snapshots=st.lists(st.integers(0, 9), max_size=12).map(tuple),
    files=st.lists(files, max_size=8).map(file_sums),
    hot=st.none() | st.just(math.inf) | st.floats(1, 1e9),
    alike=st.integers(0, 9),
    deletes=st.integers(0, 2**128 - 1),
)
copies = st.builds(
    Held, snapshot=numbers, since=st.none() | moments, rows=st.integers(0), bytes=st.integers(0)
)
lookouts = st.builds(
    Lookout,
    epoch=st.integers(0),
    looked_at=moments,
    heads=st.lists(heads).map(lambda some: {head.table: head for head in some}),
    held=st.dictionaries(st.text(), st.dictionaries(names, copies, max_size=3), max_size=3),
)


def sent(old: Lookout, new: Lookout) -> list[dict[str, Any]]:
    """The pieces between two, as they are on the wire."""
    pieces = [each for of in lookout.changed(old, new) for each in lookout.pieces(old, new, of)]
    written = json.dumps(pieces, allow_nan=False)
    read: list[dict[str, Any]] = json.loads(written)
    return read


def arrived(old: Lookout, new: Lookout, known: Lookout | None = None) -> Lookout:
    incoming = lookout.Incoming(old, known or old)
    incoming.add(sent(old, new))
    return incoming.done(new.epoch, new.looked_at)


def columns(of: Lookout) -> dict[str, list[str]]:
    return {table: list(head.columns) for table, head in of.heads.items()}


@settings(deadline=None)
@given(lookouts, lookouts)
def test_what_changed_makes_one_of_another(old: Lookout, new: Lookout) -> None:
    found = arrived(old, new)
    assert found == new
    assert columns(found) == columns(new)


@settings(deadline=None)
@given(lookouts)
def test_the_whole_is_what_changed_since_nothing(seen: Lookout) -> None:
    found = arrived(lookout.NOTHING, seen, known=seen)
    assert found == seen
    for table, head in found.heads.items():
        assert head is seen.heads[table], "what is as it was stays the same object"


@settings(deadline=None)
@given(lookouts, heads)
def test_a_commit_sends_its_own_table_only(seen: Lookout, changed: Head) -> None:
    after = replace(seen, epoch=seen.epoch + 1, heads={**seen.heads, changed.table: changed})
    assert {piece["table"] for piece in sent(seen, after)} == {changed.table}
    found = arrived(seen, after)
    assert found == after
    for table, head in seen.heads.items():
        assert table == changed.table or found.heads[table] is head
    assert found.held is seen.held


def test_a_commit_sends_what_it_added_whatever_is_there_before() -> None:
    def size(days: int, snapshots: int) -> int:
        files = file_sums(FileTimes(10**6, 10**4, d * DAY, d * DAY, d) for d in range(days))
        new = manifest_sums([FileTimes(10**6, 10**4, days * DAY, days * DAY, 7)])
        history = tuple(range(10**18 + snapshots, 10**18, -1))
        before = head(files, history)
        after = head(files.folded([new], []), (10**18 + snapshots + 1, *history))
        old, now = (Lookout(1, NOON, {"gold.a": each}, {}) for each in (before, after))
        assert arrived(old, now) == now
        return len(json.dumps(sent(old, now)))

    assert size(10, 10) == pytest.approx(size(10_000, 10_000), rel=0.05)


def test_columns_in_another_order_are_other_columns() -> None:
    before = head(FileSums(), (1,))
    after = replace(before, columns=dict(reversed(before.columns.items())))
    old, new = (Lookout(n, NOON, {"gold.a": each}, {}) for n, each in ((1, before), (2, after)))
    assert columns(arrived(old, new)) == {"gold.a": ["at", "id"]}
    whole = lookout.Incoming(lookout.NOTHING, old)
    whole.add(sent(lookout.NOTHING, new))
    assert columns(whole.done(2, NOON)) == {"gold.a": ["at", "id"]}


def test_no_piece_is_large_however_large_the_lake() -> None:
    files = file_sums(FileTimes(1, 1, d * DAY, d * DAY, 2**127 + d) for d in range(20_000))
    large = head(files, tuple(range(10**18, 10**18 + 50_000)))
    held = {"node-0": {f"gold.t{n}": Held(n, NOON, n, n) for n in range(20_000)}}
    seen = Lookout(1, NOON, {"gold.a": large}, held)
    pieces = sent(lookout.NOTHING, seen)
    assert max(len(json.dumps(piece)) for piece in pieces) < 200_000
    assert arrived(lookout.NOTHING, seen) == seen


def test_a_piece_without_its_beginning_is_refused() -> None:
    incoming = lookout.Incoming(lookout.NOTHING, lookout.NOTHING)
    with pytest.raises(ValueError, match="without its beginning"):
        incoming.add([{"table": "gold.a", "snapshots": ["1"]}])


def head(files: FileSums, snapshots: tuple[int, ...]) -> Head:
    columns = {"id": "long", "at": "timestamptz"}
    return Head("gold.a", "u", snapshots[0], "m", NOON, columns, "at", snapshots, files)


def test_moments_are_utc_whoever_wrote_them() -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=5))).isoformat()
    for text in (noon.isoformat(), east, "2026-11-16T12:00:00"):
        held = lookout.read_held({"snapshot": "7", "since": text})
        assert held == Held(7, noon)
        assert held.since is not None and held.since.tzinfo is UTC


def test_reading_one_loads_nothing_heavy() -> None:
    script = (
        "import sys, thermocline.serve.fleet.lookout\n"
        "print([m for m in ('pyarrow', 'duckdb', 'pyiceberg', 'numpy') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert said.strip() == b"[]"
