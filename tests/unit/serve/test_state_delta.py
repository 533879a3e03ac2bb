"""State deltas: what the replicator encodes, the router decodes."""

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

from thermocline.serve.file_sums import FileTimes, TableFileTotals, sum_files, sum_manifest
from thermocline.serve.fleet import state_delta
from thermocline.serve.values import HotCopy, LakeState, TableHead

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
    TableHead,
    table=names,
    uuid=st.sampled_from(["one", "other"]),
    snapshot=numbers,
    metadata=st.text(),
    committed_at=moments,
    columns=st.dictionaries(st.text(), st.sampled_from(["int", "decimal(9,2)", "list<string>"])),
    time=st.none() | st.text(),
    snapshots=st.lists(st.integers(0, 9), max_size=12).map(tuple),
    files=st.lists(files, max_size=8).map(sum_files),
    hot=st.none() | st.just(math.inf) | st.floats(1, 1e9),
    same_schema_count=st.integers(0, 9),
    deletes=st.integers(0, 2**128 - 1),
)
copies = st.builds(
    HotCopy, snapshot=numbers, since=st.none() | moments, rows=st.integers(0), bytes=st.integers(0)
)
lookouts = st.builds(
    LakeState,
    epoch=st.integers(0),
    polled_at=moments,
    table_heads=st.lists(heads).map(lambda some: {head.table: head for head in some}),
    hot_copies=st.dictionaries(st.text(), st.dictionaries(names, copies, max_size=3), max_size=3),
)


def sent(old: LakeState, new: LakeState) -> list[dict[str, Any]]:
    """The pieces between two, as they are on the wire."""
    pieces = [
        each
        for of in state_delta.list_changes(old, new)
        for each in state_delta.encode_changes(old, new, of)
    ]
    written = json.dumps(pieces, allow_nan=False)
    read: list[dict[str, Any]] = json.loads(written)
    return read


def arrived(old: LakeState, new: LakeState, known: LakeState | None = None) -> LakeState:
    incoming = state_delta.StateDecoder(old, known or old)
    incoming.add(sent(old, new))
    return incoming.finish(new.epoch, new.polled_at)


def columns(of: LakeState) -> dict[str, list[str]]:
    return {table: list(head.columns) for table, head in of.table_heads.items()}


@settings(deadline=None)
@given(lookouts, lookouts)
def test_what_changed_makes_one_of_another(old: LakeState, new: LakeState) -> None:
    found = arrived(old, new)
    assert found == new
    assert columns(found) == columns(new)


@settings(deadline=None)
@given(lookouts)
def test_the_whole_is_what_changed_since_nothing(seen: LakeState) -> None:
    found = arrived(state_delta.EMPTY_STATE, seen, known=seen)
    assert found == seen
    for table, head in found.table_heads.items():
        assert head is seen.table_heads[table], "what is as it was stays the same object"


@settings(deadline=None)
@given(lookouts, heads)
def test_a_commit_sends_its_own_table_only(seen: LakeState, changed: TableHead) -> None:
    after = replace(
        seen, epoch=seen.epoch + 1, table_heads={**seen.table_heads, changed.table: changed}
    )
    assert {piece["table"] for piece in sent(seen, after)} == {changed.table}
    found = arrived(seen, after)
    assert found == after
    for table, head in seen.table_heads.items():
        assert table == changed.table or found.table_heads[table] is head
    assert found.hot_copies is seen.hot_copies


def test_a_commit_sends_what_it_added_whatever_is_there_before() -> None:
    def size(days: int, snapshots: int) -> int:
        files = sum_files(FileTimes(10**6, 10**4, d * DAY, d * DAY, d) for d in range(days))
        new = sum_manifest([FileTimes(10**6, 10**4, days * DAY, days * DAY, 7)])
        history = tuple(range(10**18 + snapshots, 10**18, -1))
        before = head(files, history)
        after = head(files.with_manifests([new], []), (10**18 + snapshots + 1, *history))
        old, now = (LakeState(1, NOON, {"gold.a": each}, {}) for each in (before, after))
        assert arrived(old, now) == now
        return len(json.dumps(sent(old, now)))

    assert size(10, 10) == pytest.approx(size(10_000, 10_000), rel=0.05)


def test_columns_in_another_order_are_other_columns() -> None:
    before = head(TableFileTotals(), (1,))
    after = replace(before, columns=dict(reversed(before.columns.items())))
    old, new = (LakeState(n, NOON, {"gold.a": each}, {}) for n, each in ((1, before), (2, after)))
    assert columns(arrived(old, new)) == {"gold.a": ["at", "id"]}
    whole = state_delta.StateDecoder(state_delta.EMPTY_STATE, old)
    whole.add(sent(state_delta.EMPTY_STATE, new))
    assert columns(whole.finish(2, NOON)) == {"gold.a": ["at", "id"]}


def test_no_piece_is_large_however_large_the_lake() -> None:
    files = sum_files(FileTimes(1, 1, d * DAY, d * DAY, 2**127 + d) for d in range(20_000))
    large = head(files, tuple(range(10**18, 10**18 + 50_000)))
    held = {"node-0": {f"gold.t{n}": HotCopy(n, NOON, n, n) for n in range(20_000)}}
    seen = LakeState(1, NOON, {"gold.a": large}, held)
    pieces = sent(state_delta.EMPTY_STATE, seen)
    assert max(len(json.dumps(piece)) for piece in pieces) < 200_000
    assert arrived(state_delta.EMPTY_STATE, seen) == seen


def test_a_piece_without_its_beginning_is_refused() -> None:
    incoming = state_delta.StateDecoder(state_delta.EMPTY_STATE, state_delta.EMPTY_STATE)
    with pytest.raises(ValueError, match="arrived before its head"):
        incoming.add([{"table": "gold.a", "snapshots": ["1"]}])


def head(files: TableFileTotals, snapshots: tuple[int, ...]) -> TableHead:
    columns = {"id": "long", "at": "timestamptz"}
    return TableHead("gold.a", "u", snapshots[0], "m", NOON, columns, "at", snapshots, files)


def test_moments_are_utc_whoever_wrote_them() -> None:
    noon = datetime(2026, 11, 16, 12, tzinfo=UTC)
    east = noon.astimezone(timezone(timedelta(hours=5))).isoformat()
    for text in (noon.isoformat(), east, "2026-11-16T12:00:00"):
        held = state_delta.decode_copy({"snapshot": "7", "since": text})
        assert held == HotCopy(7, noon)
        assert held.since is not None and held.since.tzinfo is UTC


def test_reading_one_loads_nothing_heavy() -> None:
    script = (
        "import sys, thermocline.serve.fleet.state_delta\n"
        "print([m for m in ('pyarrow', 'duckdb', 'pyiceberg', 'numpy') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout
    assert said.strip() == b"[]"
