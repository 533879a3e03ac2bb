"""Where values are that were not sent again: a plain model says it, for random histories."""

from __future__ import annotations

import random

import pytest

from thermocline.ingest.unchanged_toast import LANDED, ChangeEvent, EventRef, find_value_sources

COLUMNS = ("a", "b")


def history(seed: int, changes: int) -> tuple[list[ChangeEvent], list[dict[str, EventRef]]]:
    """Changes of a few keys, and for each the event that holds the value of each column."""
    chosen = random.Random(seed)
    events: list[ChangeEvent] = []
    held: list[dict[str, EventRef]] = []
    live: dict[bytes, dict[str, EventRef]] = {}
    lsn = 0
    while len(events) < changes:
        lsn += chosen.randint(1, 3)
        key = bytes([chosen.randrange(5)])
        ref = (0, len(events))
        if key not in live:
            live[key] = dict.fromkeys(COLUMNS, ref)
            events.append(ChangeEvent("t", key, lsn, ref, "c"))
        elif chosen.random() < 0.2:
            del live[key]
            events.append(ChangeEvent("t", key, lsn, ref, "d"))
        else:
            unsent = frozenset(c for c in COLUMNS if chosen.random() < 0.6)
            new = bytes([chosen.randrange(5)])
            if chosen.random() < 0.4 and new not in live:
                before = live.pop(key)
                events.append(ChangeEvent("t", key, lsn, ref, "d"))
                held.append({})
                ref = (0, len(events))
                live[new] = {c: before[c] if c in unsent else ref for c in COLUMNS}
                events.append(ChangeEvent("t", new, lsn, ref, "c", unsent, key))
                key = new
            else:
                live[key] = {c: live[key][c] if c in unsent else ref for c in COLUMNS}
                events.append(ChangeEvent("t", key, lsn, ref, "u", unsent))
        held.append(dict(live.get(key, {})))
    return events, held


@pytest.mark.parametrize("seed", range(50))
def test_each_value_is_found_where_it_was_sent(seed: int) -> None:
    events, held = history(seed, 60)
    found = find_value_sources(events)
    for event, values in zip(events, held, strict=True):
        for column in event.unsent:
            assert found[event.ref, column] == values[column]
    shuffled = random.Random(seed).sample(events, len(events))
    assert find_value_sources(shuffled) == found
    # Delivered once more, as after a crash, nothing is found elsewhere.
    again = [ChangeEvent(**{**vars(e), "ref": (1, e.ref[1])}) for e in events]
    twice = find_value_sources([*events, *again])
    for (ref, column), at in found.items():
        assert twice[ref, column] in {at, (1, at[1])}
        assert twice[(1, ref[1]), column] in {at, (1, at[1])}


@pytest.mark.parametrize("seed", range(20))
def test_batches_make_no_difference(seed: int) -> None:
    """What landed is whole, so of each key its last event is enough."""
    events, _ = history(seed, 60)
    wanted = find_value_sources(events)
    cut = random.Random(seed).randrange(len(events))
    landed = [ChangeEvent(e.table, e.key, e.lsn, (LANDED, e.ref[1]), e.op) for e in events[:cut]]
    found = find_value_sources([*landed, *events[cut:]])
    assert set(found) == {at for at in wanted if at[0][1] >= cut}


def test_what_cannot_be_known_is_not_found() -> None:
    lost = ChangeEvent("t", b"1", 10, (0, 0), "u", frozenset("a"))
    assert find_value_sources([lost]) == {}
    deleted = ChangeEvent("t", b"1", 5, (0, 1), "d")
    assert find_value_sources([deleted, lost]) == {}
    aside = ChangeEvent("t", b"1", 7, (LANDED, 0), "u", is_whole=False)
    made = ChangeEvent("t", b"1", 6, (LANDED, 1), "c")
    assert find_value_sources([made, aside, lost]) == {}
    other = ChangeEvent("other", b"1", 8, (LANDED, 2), "c")
    assert find_value_sources([other, lost]) == {}
    # The old key's delete has not come, so an update of it may not have either.
    moved = ChangeEvent("t", b"2", 10, (0, 2), "c", frozenset("a"), b"1")
    assert find_value_sources([made, moved]) == {}
    assert find_value_sources([made, moved, ChangeEvent("t", b"1", 10, (0, 3), "d")]) == {
        ((0, 2), "a"): (LANDED, 1)
    }
