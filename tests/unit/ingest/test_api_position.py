"""Which records of a pull are new, by the cursor, its edge, and what came before."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest

from thermocline.errors import BadInput, Permanent
from thermocline.ingest.api import position as positions
from thermocline.ingest.api.position import ApiPosition, ApiRecord, NewRecordFilter, to_json
from thermocline.ingest.api.source import ApiSource, Cursor


def api(*, cursor: bool = True, key: tuple[str, ...] = ()) -> ApiSource:
    at = Cursor("at", "") if cursor else None
    return ApiSource("https://example.com/", "things", ({"name": "things"},), key=key, cursor=at)


def pull(made: ApiSource, start: ApiPosition, *items: Any) -> tuple[list[Any], ApiPosition]:
    """The new records of a pull, and the position after it, as a bookmark would keep it."""
    record_filter = NewRecordFilter(made, start)
    new = [record for item in items if (record := record_filter.accept(item))]
    after = json.loads(json.dumps(record_filter.position(len(new)).to_bookmark()))
    return [json.loads(record.text) for record in new], ApiPosition.from_bookmark(after)


def at(value: Any, name: str = "x") -> dict[str, Any]:
    return {"at": value, "name": name}


def test_records_of_the_edge_that_come_again_are_dropped() -> None:
    new, start = pull(api(), ApiPosition(), at(1), at(2, "a"), at(2, "b"))
    assert (len(new), start.cursor, len(start.edge), start.landed) == (3, 2, 2, 3)
    new, start = pull(api(), start, at(2, "b"), at(2, "c"), at(2, "a"))
    assert new == [at(2, "c")]
    new, start = pull(api(), start, at(2, "c"), at(3))
    assert (new, start.cursor, len(start.edge)) == ([at(3)], 3, 1)


def test_an_api_that_leaves_the_edge_out_makes_nothing_forgotten() -> None:
    _, start = pull(api(), ApiPosition(), at(1, "a"))
    new, start = pull(api(), start, at(1, "b"))
    assert new == [at(1, "b")]
    assert pull(api(), start, at(1, "a"), at(1, "b"))[0] == []


def test_two_records_alike_are_two_records_and_stay_two() -> None:
    new, start = pull(api(), ApiPosition(), at(1), at(1))
    assert len(new) == 2
    new, start = pull(api(), start, at(1), at(1), at(1))
    assert len(new) == 1
    assert pull(api(), start, at(1), at(1), at(1))[0] == []


def test_by_a_key_a_record_is_one_whatever_else_it_says() -> None:
    keyed = api(key=("id",))
    new, start = pull(keyed, ApiPosition(), {"id": 1, "at": 5, "seen": 10}, {"id": 1, "at": 5})
    assert new == [{"id": 1, "at": 5, "seen": 10}]
    assert pull(keyed, start, {"id": 1, "at": 5, "seen": 11})[0] == []
    assert pull(keyed, start, {"id": 1, "at": 6})[0] == [{"id": 1, "at": 6}]


def test_the_order_of_fields_and_of_records_does_not_matter() -> None:
    new, start = pull(api(), ApiPosition(), {"at": 3, "a": 1}, {"at": 1, "a": 1}, {"at": 2, "a": 1})
    assert (len(new), start.cursor) == (3, 3)
    assert pull(api(), start, {"a": 1, "at": 3})[0] == []


def test_without_a_cursor_only_what_is_new_or_changed_lands() -> None:
    plain = api(cursor=False)
    new, start = pull(plain, ApiPosition(), {"id": 1}, {"id": 2})
    assert len(new) == 2
    new, start = pull(plain, start, {"id": 1}, {"id": 2, "changed": True}, {"id": 3})
    assert new == [{"id": 2, "changed": True}, {"id": 3}]
    assert pull(plain, start, {"id": 3}, {"id": 2, "changed": True}, {"id": 1})[0] == []


@pytest.mark.parametrize(
    "item", [{"name": "x"}, {"at": None}, {"at": True}, {"at": [1]}, "text", 7]
)
def test_a_record_without_a_cursor_is_flawed_and_comes_once(item: Any) -> None:
    record_filter = NewRecordFilter(api(), ApiPosition())
    assert record_filter.accept(item) == ApiRecord(to_json(item), "no cursor value at at")
    start = record_filter.position(1)
    assert pull(api(), start, item)[0] == []


def test_numbers_and_times_are_kept_as_they_are() -> None:
    exact = Decimal("1700000000.123456789012345678")
    _, start = pull(api(), ApiPosition(), at(exact))
    assert start.cursor == exact
    assert to_json({"n": Decimal("1.10"), "big": 10**30}) == '{"n": 1.10, "big": ' + f"{10**30}}}"
    record = NewRecordFilter(api(), ApiPosition()).accept(at("2026-01-02T03:04:05+02:00"))
    assert record is not None
    assert record.event_time is not None
    assert record.event_time.isoformat() == "2026-01-02T03:04:05+02:00"


def test_half_a_character_stays_spelled_out() -> None:
    text = to_json({"s": "\ud800", "t": "ä"})
    assert text.encode()
    assert json.loads(text) == {"s": "\ud800", "t": "ä"}
    assert to_json({"t": "ä"}) == '{"t": "ä"}'


def test_a_cursor_that_is_now_text_now_number_is_an_error() -> None:
    with pytest.raises(Permanent, match="is a text in some records"):
        pull(api(), ApiPosition(), at(1), at("2"))


@pytest.mark.parametrize(("cursor", "said"), [(True, "share the cursor"), (False, "no cursor")])
def test_an_edge_that_is_too_wide_is_refused(
    cursor: bool, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(positions, "MAX_EDGE_RECORDS", 3)
    with pytest.raises(BadInput, match=said):
        pull(api(cursor=cursor), ApiPosition(), *(at(1, str(n)) for n in range(4)))
