"""Payloads for tests of what is plain JSON: mostly good ones, and every way we know to be nasty."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from thermocline.contract.definition import Column, Contract, DriftMode
from thermocline.contract.types import Decimal, Field, List, Primitive, Struct

ITEM = Struct(
    (
        Field("n", Primitive("int")),
        Field("price", Decimal(8, 2)),
        Field("when", Primitive("timestamptz")),
        Field("tags", List(Primitive("string"))),
    )
)
PLACE = Struct((Field("city", Primitive("string"), required=True), Field("x", Primitive("double"))))

COLUMNS = (
    Column("s", Primitive("string")),
    Column("i", Primitive("int")),
    Column("l", Primitive("long")),
    Column("d", Primitive("double")),
    Column("b", Primitive("boolean")),
    Column("m", Decimal(8, 2)),
    Column("e", Decimal(15, 7)),
    Column("w", Decimal(38, 10)),
    Column("day", Primitive("date")),
    Column("at", Primitive("timestamp")),
    Column("ts", Primitive("timestamptz")),
    Column("o", PLACE),
    Column("a", List(ITEM)),
    Column("k", List(Primitive("long"), element_required=True)),
)


def contract(drift: DriftMode = DriftMode.RESCUE, **more: Any) -> Contract:
    return Contract("bronze.t", COLUMNS, drift=drift, messages=True, **more)


NUMBERS = (
    "0", "-0", "-0.0", "0.0", "1", "-1", "007", "+1", "1.", ".5", "1.0", "1.5", "1.10", "1e2",
    "1E2", "1e+2", "1e-2", "1.5e1", "1e-3", "0e5", "0e400", "1e400", "-1e400", "1e-400", "1e22",
    "8.41e21", "2e-3", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999", "999999.99",
    "999999.995", "1000000", "1.005", "1.000", "1.0000000000000000000000001", "0.1000000000000001",
    "12345678.1234567", "99999999.9999999", "99999999.99999999", "123456789012345.1",
    "123456789012345678.0123456789", "9999999999999999999999999999.9999999999",
    "99999999999999999999999999999", "1e27", "1e28", "0.00000000001", "123456789012345678901234",
    "4.35", "0.07", "1.1e-7", "9007199254740993", "9007199254740993.5", "5e-324",
    "2.2250738585e-308",
    "NaN", "Infinity", "-Infinity", "inf", "0x10", "1_000", "1d", "1f", "1L", "--1", "1e", "1e+",
    "1" * 999, "1" * 1001, "0." + "0" * 1100 + "1", "1." + "0" * 1100, "0." + "3" * 990,
)  # fmt: skip
TEXTS = (
    "", " ", "a", "é", "\u20ac",
    "\U0001f600", "\x7f", "\u2028", "\ufeff", "\ufffd", "null", "true", "TRUE",
    "True", "yes", "{", "}", '{"s":1}', "1.5", " 1.5", "1.5 ", "+1.5", "-.5", ".5", "5.", "1e2",
    "1,5",
    "1.005", "12", "NaN", "Infinity", "0x1F", "1d", "1e400", "000001.50", "99999999", "1e-2", "-0",
    "2026-03-01", "2026-3-1", "2026-02-30", "2024-02-29", "2026-03-01Z", "20260301", "0001-01-01",
    "0000-01-01", "1582-10-10", "1899-12-31", "1900-01-01", "2199-12-31", "9999-12-31",
    "+12026-01-01",
    "2026-03-01T12:30:45Z", "2026-03-01T12:30:45", "2026-03-01 12:30:45Z", "2026-03-01T12:30Z",
    "2026-03-01T12Z", "2026-03-01T12", "2026-03-01T12:30", "2026-03-01T12:30:45.1Z",
    "2026-03-01T12:30:45.123456Z", "2026-03-01T12:30:45.1234567Z", "2026-03-01T12:30:45.1200000Z",
    "2026-03-01T12:30:45.Z", "2026-03-01T12:30:45+02:00", "2026-03-01T12:30:45+0200",
    "2026-03-01T12:30:45+02", "2026-03-01T12:30:45-00:00", "2026-03-01T24:00:00Z",
    "2026-03-01T23:59:60Z", "2026-03-01T12:60:00Z", "2026-03-01T25:00:00Z", "2026-02-29T00:00:00Z",
    "2026-03-01t12:30:45z", "2026-03-01T12:30:45 Z", " 2026-03-01T12:30:45Z",
    "2026-03-01T12:30:45ZZ",
    "2026-03-01T12:30:45.123456", "2026-03-01T12:30:45 UTC", "2026-03-01T12:30:45[UTC]",
    "2026-03-29T02:30:00", "1969-12-31T23:59:59.999999Z", "1900-01-01T00:00:00Z",
    "2026-03-01T12:30:45Z\n", "2026-03-01\n",
)  # fmt: skip
WRITTEN = (
    r'"\ud800"', r'"\udc00"', r'"\ud83d\ude00"', r'"\ud800\u0041"', r'"\u0000"', r'"\u00e9"',
    r'"\/"',
    r'"\b\f\n\r\t\"\\"', r'"\x"', r'"\u12"', r'"\u{1}"', '"a\tb"', '"a\x01b"', '"a\x00b"', "'a'",
    '"open', "null", "nul", "true", "false", "True", "{}", "[]", '{"s":1}', "[1]", "[null]",
    '{"a":{"b":1}}', "", "undefined", "/**/1", '"1" "2"', "1 2",
    '{"city":"a"}', '{"city":null}', '{"x":1}', '{"city":"a","x":-0.0}', '{"city":"a","city":"b"}',
    '{"city":"a","more":1}', '{"city":1}', '{"city":{"x":1}}', '[{"n":1},null]', '[{"n":1.5}]',
    '[{"n":1,"n":2}]', '[{"price":1.005}]', '[{"price":"1.5"}]', '[{"price":99999999}]',
    '[{"when":"2026-03-01T12:30:45Z"}]', '[{"when":"2026-03-01T12:30:45+02:00"}]',
    '[{"when":"2026-02-30T00:00:00Z"}]', '[{"tags":["a",null]}]', '[{"tags":[1]}]',
    "[[1]]", "[1,2]", "[1,null]", '["1"]', "[9007199254740993]", "[1.0]", "[[]]", "[1,]", "[,1]",
)  # fmt: skip

_value = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WRITTEN),
    st.sampled_from(TEXTS).map(json.dumps),
    st.sampled_from(TEXTS).map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.text(max_size=8).map(json.dumps),
    st.integers(-(10**20), 10**20).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(str),
    st.floats().map(json.dumps),
)
_good = {
    "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=8).map(json.dumps),
    "i": st.integers(-(2**31), 2**31 - 1).map(str),
    "l": st.integers(-(2**63), 2**63 - 1).map(str),
    "d": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "b": st.sampled_from(["true", "false"]),
    "m": st.decimals(-999999, 999999, places=2).map(str),
    "e": st.one_of(
        st.decimals(-99999999, 99999999, places=7).map(str),
        st.decimals(-99999999, 99999999, places=3).map(lambda d: f"{d:E}"),
    ),
    "w": st.decimals(-(10**27), 10**27, places=10).map(str),
    "day": st.dates().map(lambda day: f'"{day}"'),
    "at": st.datetimes().map(lambda at: f'"{at.isoformat()}"'),
    "ts": st.datetimes().map(lambda at: f'"{at.isoformat(" ", "milliseconds")}Z"'),
}
_item = st.fixed_dictionaries(
    {},
    optional={
        "n": _good["i"], "price": _good["m"], "when": st.one_of(_good["ts"], st.just("null")),
        "tags": st.lists(_good["s"], max_size=2).map(lambda each: f"[{','.join(each)}]"),
        "other": st.just("1"), "n ": st.just("1"),
    },
)  # fmt: skip
_good |= {
    "o": st.tuples(_good["s"], _good["d"]).map(lambda p: f'{{"city":{p[0]},"x":{p[1]}}}'),
    "a": st.lists(_item, max_size=3).map(
        lambda items: "[" + ",".join(
            "{" + ",".join(f'"{name}":{value}' for name, value in item.items()) + "}"
            for item in items
        ) + "]"
    ),
    "k": st.lists(_good["l"], max_size=3).map(lambda each: f"[{','.join(each)}]"),
}  # fmt: skip
_name = st.one_of(
    st.sampled_from([*(json.dumps(name) for name in _good), r'"\u0073"', '"S"', '"z"', '""', "s"])
)
_space = st.sampled_from(["", "", "", "", " ", "\t", "\r", "\n", "\x0c", "\u00a0", "\x00"])


@st.composite
def plain(draw: st.DrawFn) -> bytes:
    """A record that is good, or nearly."""
    names = draw(st.lists(st.sampled_from(sorted(_good)), unique=True, max_size=6))
    members = [(f'"{name}"', draw(st.one_of(_good[name], st.just("null")))) for name in names]
    return ("{" + ", ".join(f"{name}: {value}" for name, value in members) + "}").encode()


@st.composite
def one_field(draw: st.DrawFn) -> bytes:
    """A record with one field of any kind of value."""
    name = draw(st.sampled_from(sorted(_good)))
    return f'{{"{name}":{draw(_value)}}}'.encode("utf-8", "surrogatepass")


@st.composite
def odd(draw: st.DrawFn) -> bytes:
    """Whatever looks a little like a record."""
    members = draw(st.lists(st.tuples(_name, _space, _value), max_size=4))
    body = ",".join(f"{name}{space}:{value}" for name, space, value in members)
    text = (
        draw(st.sampled_from(["{%s}"] * 6 + ["[%s]", "{%s", "%s}", "{%s,}", "{%s}}", "%s"])) % body
    )
    ends = ["", "", "", " ", "\n", ",", "x", "null", "{}", '{"i":1}', ' {"i":2}', "\x00", "//", "]"]
    tail, head = (
        draw(st.sampled_from(ends)),
        draw(st.sampled_from(["", "", "", " ", "\n", "\ufeff"])),
    )
    found = (head + text + tail).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 19)) == 0:
        cut = draw(st.integers(0, len(found)))
        found = (
            found[:cut]
            + draw(st.sampled_from([b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf"]))
            + found[cut:]
        )
    return found


def payloads() -> st.SearchStrategy[bytes]:
    """Any of these."""
    return st.one_of(plain(), one_field(), one_field(), odd())
