"""Which JSON the Arrow lane reads as unambiguous, and which it leaves to Spark."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal as Number

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.ingest import json_records

from thermocline.contract.definition import Column, Contract, Rule
from thermocline.contract.types import Decimal, Field, Fixed, List, Map, Primitive, Struct
from thermocline.ingest.unambiguous_json import NeedsSpark, UnambiguousJsonReader

PLAIN = UnambiguousJsonReader(json_records.contract())
GOOD = b'{"s": "a{}\\n\\u00e9", "i": -1, "l": 9007199254740993, "d": 1e-3, "b": true, "m": 1.5}'


def taken(
    *payloads: bytes | None, plain: UnambiguousJsonReader = PLAIN
) -> list[dict[str, object]] | None:
    try:
        return plain.read_payloads(payloads).to_pylist()
    except NeedsSpark:
        return None


def test_plain_records_become_typed_rows() -> None:
    dated = (
        '{"w":"12345678901234567890.0123456789","e":-1.5E1,"day":"2024-02-29",'
        '"at":"2026-03-01 12:30:45.5","ts":"2026-03-01T12:30:45.123456Z","s":"é"}'
    )
    first, second = taken(GOOD, dated.encode()) or ()
    assert {name: value for name, value in first.items() if value is not None} == {
        "s": "a{}\né", "i": -1, "l": 9007199254740993, "d": 0.001, "b": True, "m": Number("1.50"),
    }  # fmt: skip
    assert {name: value for name, value in second.items() if value is not None} == {
        "w": Number("12345678901234567890.0123456789"),
        "e": Number("-15.0000000"),
        "day": date(2024, 2, 29),
        "at": datetime(2026, 3, 1, 12, 30, 45, 500000),
        "ts": datetime(2026, 3, 1, 12, 30, 45, 123456, UTC),
        "s": "é",
    }


def test_lists_and_objects_become_typed_rows() -> None:
    text = (
        b'{"o":{"city":"a"},"k":[1,9007199254740993],"a":[{"n":1,"price":"2.5","tags":["x",null],'
        b'"when":"2026-03-01T12:30:45Z"},null,{}]}'
    )
    nothing = {"n": None, "price": None, "when": None, "tags": None}
    first, second = taken(text, b'{"o":null,"a":[],"k":null}') or ()
    assert (first["o"], first["k"]) == ({"city": "a", "x": None}, [1, 9007199254740993])
    assert first["a"] == [
        {
            "n": 1, "price": Number("2.50"), "tags": ["x", None],
            "when": datetime(2026, 3, 1, 12, 30, 45, tzinfo=UTC),
        },
        None,
        nothing,
    ]  # fmt: skip
    assert (second["o"], second["a"], second["k"]) == (None, [], None)


@pytest.mark.parametrize(
    "payload",
    [
        None, b"", b" ", b"null", b"1", b"[]", b'"a"', b'[{"i":1}]', b'\xef\xbb\xbf{"i":1}',
        b' {"i":1}', b'{"i":1}\n', b'{"i":\n1}', b'{"i":1', b'{"i":1}}', b'{"i":1}x',
        b'{"i":1}{"i":2}', b'{"i":1} null', b'{"i":1}\x00', b'{"s":"\xff"}',
        b'{"s":"\xed\xa0\x80"}',
        b'{"s":"\\ud800"}', b'{"s":"a\tb"}', b'{"i":1,"i":2}', b'{"i":1,"\\u0069":2}',
        b'{"other":null}', b'{"I":1}', b'{"s":1}', b'{"s":{}}', b'{"i":"1"}', b'{"i":1.0}',
        b'{"i":2147483648}', b'{"l":9223372036854775808}', b'{"i":01}', b'{"d":NaN}',
        b'{"d":-Infinity}', b'{"d":1e400}', b'{"d":-0}', b'{"d":-0.0}', b'{"d":"1"}',
        b'{"d":0.%s1}' % (b"0" * 1000), b'{"b":"true"}', b'{"b":1}', b'{"m":1.005}',
        b'{"m":99999999}', b'{"m":1e6}', b'{"m":" 1"}', b'{"w":1e28}', b'{"day":"2026-02-30"}',
        b'{"day":"2026-03-01Z"}', b'{"day":"1500-01-01"}', b'{"day":20000}', b'{"at":"2026-03-01"}',
        b'{"at":"2026-03-01T12"}', b'{"at":"2026-03-01T12:30:45Z"}', b'{"ts":"2026-03-01T12Z"}',
        b'{"ts":"2026-03-01T12:30:45"}', b'{"ts":"2026-03-01T12:30:45+01:00"}',
        b'{"ts":"2026-03-01T12:30:45.1234567Z"}', b'{"ts":"2026-03-01T24:00:00Z"}',
        b'{"ts":1767225600}', b'{"o":1}', b'{"o":{}}', b'{"o":{"city":null}}',
        b'{"o":{"city":"a","z":1}}', b'{"o":{"city":"a","city":"a"}}', b'{"o":{"city":1}}',
        b'{"a":{}}', b'{"a":[1]}', b'{"a":[{"z":1}]}', b'{"a":[{"price":1.005}]}',
        b'{"a":[{"when":"2026-03-01"}]}', b'{"a":[{"tags":[1]}]}', b'{"k":[1,null]}',
        b'{"k":[1.0]}', b'{"o":{"city":"a","x":-0.0}}',
        b'{"d":1e+400}', b'{"d" : -1E400 }', b'{"d":1e-400}', b'{"i":1,"d":1e0400,"b":true}',
        b'{"s":"a\\ud83db"}', b'{"s":"\\ude00"}', b'{"s":"\\ude00\\ud83d"}',
        b'{"s":"\\ud83d\\ud83d\\ude00"}', b'{"s":"\\\\ud83d\\ude00"}',
    ],
)  # fmt: skip
def test_one_record_that_is_not_plain_declines_all(payload: bytes | None) -> None:
    assert taken(GOOD) is not None
    assert taken(GOOD, payload, GOOD) is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"0f3e4567-9e123", "0f3e4567-9e123"),
        (b"9e400", "9e400"),
        (b"\\ud83d\\ude00 and \\uD83D\\uDE00", "\U0001f600 and \U0001f600"),
    ],
)
def test_ids_like_numbers_and_whole_characters_are_plain(text: bytes, value: str) -> None:
    """Were they not, files of hashes or of smileys would go through Spark, row by row."""
    [row] = taken(b'{"i":1,"s":"%s","b":true}' % text) or ()
    assert row["s"] == value


def test_values_that_only_together_look_like_records() -> None:
    """As many objects as messages, but not one in each."""
    assert taken(b'{"i":1}{"i":2}', b"") is None
    assert taken(b'{"i":1}{"i":2}', b'{"i":3}\x00', b'{"i":4}') is None
    assert taken(b'{"i":1}\n{"i":2}', b'{"i":3}') is None
    assert taken(b'{"i":1}{"s":', b'{"i":2}}', b'{"i":3}') is None
    assert taken(b'{"i":1}{"i":2}', b'{"s":"', b'{"}') is None
    assert taken(b'{"i":1}{"i":2', b'{"i":3}', b"}") is None


@settings(max_examples=200, deadline=None)
@given(st.lists(json_records.payloads(), min_size=2, max_size=5))
def test_records_are_taken_together_as_each_is_alone(payloads: list[bytes]) -> None:
    alone = [taken(payload) for payload in payloads]
    together = taken(*payloads)
    if all(each is not None for each in alone):
        assert together == [row for rows in alone for row in rows or ()]
    else:
        assert together is None


@pytest.mark.parametrize(
    "kind",
    [
        Primitive("float"), Primitive("uuid"), Primitive("binary"), Primitive("time"), Fixed(4),
        Struct(()), Map(Primitive("string"), Primitive("int")), List(Primitive("float")),
        Struct((Field("m", Decimal(16, 2)),)),
    ],
    ids=str,
)  # fmt: skip
def test_a_type_that_is_not_shown_to_agree_is_left_to_spark(kind: object) -> None:
    with pytest.raises(NeedsSpark, match="x is of type"):
        UnambiguousJsonReader(Contract("bronze.t", (Column("x", kind),)))  # type: ignore[arg-type]


def test_rows_that_break_the_contract_are_left_to_spark() -> None:
    columns = (Column("id", Primitive("long"), required=True), Column("code", Primitive("string")))
    rules = (
        Rule("accepted", ("code",), (("values", ("a", "b")),)),
        Rule("range", ("id",), (("min", 1),), severity="warning"),
    )
    ruled = UnambiguousJsonReader(Contract("bronze.t", columns, rules=rules))
    assert taken(b'{"id":-1,"code":"a"}', b'{"id":2}', plain=ruled) is not None
    assert taken(b'{"id":1,"code":"a"}', b'{"id":1,"code":"c"}', plain=ruled) is None
    assert taken(b'{"id":1}', b'{"code":"a"}', plain=ruled) is None
    assert taken(b'{"id":null}', plain=ruled) is None
    missing = Rule("missing", ("code",), (("values", ("n/a",)),))
    worded = UnambiguousJsonReader(Contract("bronze.t", columns, rules=(missing,)))
    assert taken(b'{"id":1,"code":"a"}', plain=worded) is not None
    assert taken(b'{"id":1,"code":"n/a"}', plain=worded) is None
    assert taken(b'{"id":1}', plain=worded) is None
    keyed = UnambiguousJsonReader(Contract("bronze.t", columns[1:], key=("code",)))
    assert taken(b"{}", plain=keyed) is None
