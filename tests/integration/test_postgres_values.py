"""Every type of Postgres at its bounds, in the first state and the stream: exact, or set aside."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from tests.integration.odcs import HEAD
from tests.integration.postgres_project import BRONZE, RAW, Project

MAKE = """
create extension if not exists hstore; create extension if not exists citext;
create type mood as enum ('sad', 'it''s "ok", isn\\t it'); create type pair as (a int, b text);
create domain small_int as int; create domain old_date as date; create domain ints as int[];
"""
VALUES: dict[str, list[str]] = {
    "boolean": ["t", "f"],
    "smallint": ["-32768", "32767"],
    "int": ["-2147483648", "2147483647"],
    "bigint": ["-9223372036854775808", "9223372036854775807"],
    "oid": ["4294967295"],
    "real": ["3.4028235e38", "-1e-45", "NaN", "Infinity", "-Infinity", "0.1", "-0"],
    "float8": ["1.7976931348623157e308", "5e-324", "NaN", "Infinity", "-Infinity", "0.1", "-0"],
    "numeric": ["NaN", "Infinity", "-Infinity", "1e-300", "9" * 300 + ".5", "0.000", "1e20"],
    "numeric(10,2)": ["NaN", "99999999.99", "-1.10"],
    "numeric(5,-2)": ["12300"],
    "money": ["-92233720368547758.08", "92233720368547758.07", "12.34"],
    "text": ["", "__debezium_unavailable_value", "a\tb\nc\\N\x01", "é😀\u2028", "null", '{"a":1}'],
    "varchar(5)": ["abc", "  "],
    "char(5)": ["ab"],
    '"char"': ["a"],
    "name": ["abc"],
    "citext": ["AbC"],
    "date": [
        "infinity", "-infinity", "0044-03-15 BC", "4713-01-01 BC", "5874897-12-31", "0001-01-01",
        "9999-12-31", "10000-01-01", "1582-10-10", "1500-02-28",
    ],
    "time": ["24:00:00", "00:00:00", "23:59:59.999999", "12:34:56.1"],
    "timetz": ["24:00:00+00", "12:34:56.123456+02", "00:00:00+15:59", "12:00:00-15:59:59"],
    "timestamp": [
        "infinity", "-infinity", "0044-03-15 12:00:00 BC", "4713-01-01 00:00:00 BC",
        "294276-12-31 23:59:59.999999", "0001-01-01", "9999-12-31 23:59:59.999999",
        "2020-01-01 00:00:00.000001", "1582-10-10 01:02:03",
    ],
    "timestamptz": [
        "infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "4713-01-01 00:00:00+00 BC",
        "294276-12-31 23:59:59.999999+00", "0001-01-01 00:00+00",
        "9999-12-31 23:59:59.999999+00", "2020-01-01 00:00:00.000001+02",
    ],
    "interval": [
        "1 year 2 mons 3 days 04:05:06.789", "-1 day +01:00", "178000000 years", "infinity",
        "-infinity", "00:00:00.000001", "1 mon -1 day", "24:00:00", "-00:00:01.5",
    ],
    "bit(1)": ["1", "0"],
    "bit(8)": ["00000001", "10000000"],
    "bit varying": ["0001", "", "1"],
    "uuid": ["ffffffff-ffff-ffff-ffff-ffffffffffff"],
    "json": ['{"a": 1, "a":2}', "1e400", '"\\ud83d\\udd00"', "null"],
    "jsonb": ['{"a": 1.50}', "123456789012345678901234567890.10"],
    "inet": ["10.0.0.1", "10.0.0.0/8", "::1/64"],
    "cidr": ["10.0.0.0/8"],
    "macaddr": ["08:00:2b:01:02:03"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "int4range": ["[1,5)", "empty", "(,)"],
    "numrange": ["[1.50,2.5]"],
    "tsrange": ["[2020-01-01,infinity)"],
    "tstzrange": ["[2020-01-01 00:00+00,)"],
    "daterange": ["[2020-01-01,2020-02-01)"],
    "int4multirange": ["{[1,3),[5,8)}"],
    "line": ["{1,2,3}"],
    "lseg": ["[(1,2),(3,4)]"],
    "box": ["(3,4),(1,2)"],
    "path": ["[(1,2),(3,4)]"],
    "polygon": ["((1,2),(3,4))"],
    "circle": ["<(1,2),3>"],
    "tsvector": ["'a':1 'b':2"],
    "tsquery": ["'a' & 'b'"],
    "pg_lsn": ["16/B374D848"],
    "jsonpath": ['$."a"'],
    "mood": ["sad", 'it\'s "ok", isn\\t it'],
    "pair": ['(1,"a,b")'],
    "small_int": ["5"],
    "old_date": ["0044-03-15 BC"],
    "bytea": ["\\x", "\\x00ff"],
    "hstore": ['a=>1, b=>NULL, "c\\"d"=>"x y"', '""=>"x"'],
    "int[]": ["{}", "{1,NULL,3}", "{{1,2},{3,4}}", "[2:3]={5,6}", "{{}}"],
    "ints": ["{1,2}", "{{1},{2}}"],
    "text[]": ["{}", '{a,NULL,"","NULL","a,b{}\\"\\\\"}', "{{a,b},{c,d}}"],
    "numeric[]": ["{1.10,NaN}", "{{1},{2}}"],
    "float8[]": ["{1.5,NaN,Infinity,5e-324}"],
    "date[]": ["{2020-01-01}", "{infinity}", '{"0044-03-15 BC"}'],
    "time[]": ["{12:34:56.123456}", "{24:00:00}"],
    "timestamptz[]": ["{2020-01-01 00:00:00.000001+00,infinity}"],
    "interval[]": ["{1 day}"],
    "bool[]": ["{t,f,NULL}"],
    "uuid[]": ["{{ffffffff-ffff-ffff-ffff-ffffffffffff}}"],
    "bytea[]": ['{"\\\\x00ff"}'],
    "mood[]": ['{sad,"it\'s \\"ok\\", isn\\\\t it"}'],
    "box[]": ["{(3,4),(1,2);(1,1),(0,0)}"],
    "money[]": ["{12.34}"],
    "pair[]": ['{"(1,\\"a,b\\")"}'],
}  # fmt: skip
ROWS = max(map(len, VALUES.values()))


@pytest.fixture
def shop(captured: Project) -> Project:
    captured.sql(MAKE, "drop table orders")
    captured.source(badShare=1)
    return captured


def contract(shop: Project, columns: list[str]) -> None:
    (shop.folder / "contracts/bronze/raw_orders.odcs.yaml").write_text(
        HEAD.format(name="raw_orders") + BRONZE + "".join(columns)
        + "customProperties:\n  - {property: write, value: append}\n"
    )  # fmt: skip


def test_a_text_column_keeps_every_value_of_every_type(shop: Project) -> None:
    """The oracle is Postgres: what landed is given back to it, and must be the same value."""
    names = {type_: f"c{number}" for number, type_ in enumerate(VALUES)}
    columns = ", ".join(f"{name} {type_}" for type_, name in names.items())
    shop.sql(f"create table orders (id int primary key, {columns})")
    contract(
        shop,
        ["      - {name: id, physicalType: long, required: true}\n"]
        + [f"      - {{name: {name}, physicalType: string}}\n" for name in names.values()],
    )
    fill(shop, names, 0)
    assert shop.ingest() == (ROWS, 0)
    fill(shop, names, 100)
    assert shop.ingest() == (ROWS, 0)
    landed = {row["id"]: row for row in shop.open().table(RAW).to_arrow().to_pylist()}
    wrong = []
    for type_, name in names.items():
        for number, value in enumerate(VALUES[type_]):
            for at in (number, 100 + number):
                text = landed[at][name]
                given, back = giving_back(shop, type_, text)
                same = f"select ({given})::text is not distinct from {name}::text"
                if not shop.sql_with(f"{same} from orders where id = {at}", back)[0][0]:
                    wrong.append((type_, value, at, text))
    assert wrong == []
    assert landed[ROWS - 1]["c0"] is None


def fill(shop: Project, names: dict[str, str], first: int) -> None:
    for number in range(ROWS):
        given = {
            name: (type_, VALUES[type_][number])
            for type_, name in names.items()
            if number < len(VALUES[type_])
        }
        values = ", ".join(f"%s::{type_}" for type_, _ in given.values())
        shop.sql_with(
            f"insert into orders (id, {', '.join(given)}) values ({first + number}, {values})",
            [value for _, value in given.values()],
        )


def giving_back(shop: Project, type_: str, text: str) -> tuple[str, list[Any]]:
    """SQL that makes a value of what landed, and its argument."""
    if text.startswith("[") and "]=" not in text and (type_.endswith("[]") or type_ == "ints"):
        element = "int" if type_ == "ints" else type_.removesuffix("[]")
        cells = json.loads(text, parse_float=str, parse_int=str)
        made = [None if cell is None else cell_text(element, cell) for cell in cells]
        return f"%s::text[]::{type_}", [made]
    if type_ == "bytea":
        return "decode(%s, 'base64')", [text]
    if type_ == "hstore":
        pairs = json.loads(text)
        return "hstore(%s::text[], %s::text[])", [list(pairs), list(pairs.values())]
    if type_ == "bit(1)":
        text = {"true": "1", "false": "0"}[text]
    return f"%s::text::{type_}", [text]


def cell_text(type_: str, cell: Any) -> str:
    if type_ == "bytea":
        import base64

        return "\\x" + base64.b64decode(cell).hex()
    return str(cell).lower() if isinstance(cell, bool) else str(cell)


TYPED: dict[str, tuple[str, list[tuple[str, Any]]]] = {
    # By contract type: the source's type, its values, and what lands; a str is the reason's quote.
    "date": ("date", [
        ("0001-01-01", dt.date(1, 1, 1)), ("9999-12-31", dt.date(9999, 12, 31)),
        ("1582-10-10", dt.date(1582, 10, 10)), ("infinity", '"infinity"'),
        ("0044-03-15 BC", '"0044-03-15 BC"'), ("10000-01-01", '"10000-01-01"'),
    ]),
    "timestamp": ("timestamp", [
        ("0001-01-01", dt.datetime(1, 1, 1)),
        ("9999-12-31 23:59:59.999999", dt.datetime(9999, 12, 31, 23, 59, 59, 999999)),
        ("-infinity", '"-infinity"'), ("0044-03-15 12:00 BC", '"0044-03-15 12:00:00 BC"'),
    ]),
    "timestamptz": ("timestamptz", [
        ("2020-01-01 00:00:00.000001+02",
         dt.datetime(2019, 12, 31, 22, 0, 0, 1, tzinfo=dt.UTC)),
        ("infinity", '"infinity"'),
        ("294276-12-31 23:59:59.999999+00", '"294276-12-31 23:59:59.999999+00"'),
    ]),
    "decimal(38,10)": ("numeric", [
        ("1234567890123456789012345678.0123456789", "exact"), ("NaN", '"NaN"'),
        ("-Infinity", '"-Infinity"'), ("1e28", '"10000000000000000000000000000"'),
        ("0.00000000001", '"0.00000000001"'),
    ]),
    "double": ("float8", [
        ("5e-324", 5e-324), ("1.7976931348623157e308", 1.7976931348623157e308),
        ("Infinity", float("inf")),
    ]),
    "int": ("bigint", [("2147483647", 2147483647), ("2147483648", '"2147483648"')]),
}  # fmt: skip
LISTS: list[tuple[str, str, str, Any]] = [
    ("int", "int[]", "{1,NULL,3}", [1, None, 3]),
    ("int", "int[]", "{{1,2},{3,4}}", '"{{1,2},{3,4}}"'),
    ("int", "int[]", "[2:3]={5,6}", '"[2:3]={5,6}"'),
    ("string", "text[]", '{a,NULL,""}', ["a", None, ""]),
    ("string", "text[]", "{{a,b},{c,d}}", '"{{a,b},{c,d}}"'),
    ("double", "float8[]", "{1.5,Infinity}", [1.5, float("inf")]),
    ("date", "date[]", "{2020-01-01,0044-03-15 BC}", '"0044-03-15 BC"'),
    ("decimal(20,2)", "numeric[]", "{1.10,NaN}", '"NaN"'),
]


def test_a_typed_column_is_exact_or_its_row_is_set_aside_with_the_value(shop: Project) -> None:
    cases: list[tuple[str, str, str, Any]] = []
    for made, (type_, values) in TYPED.items():
        cases += [(f'physicalType: "{made}"', type_, given, lands) for given, lands in values]
    for element, type_, given, lands in LISTS:
        items = f'items: {{physicalType: "{element}"}}'
        cases.append((f"logicalType: array, {items}", type_, given, lands))
    columns = ", ".join(f"c{n} {case[1]}" for n, case in enumerate(cases))
    shop.sql(f"create table orders (id int primary key, {columns})")
    contract(
        shop,
        ["      - {name: id, physicalType: long, required: true}\n"]
        + [f"      - {{name: c{n}, {case[0]}}}\n" for n, case in enumerate(cases)],
    )
    for first in (0, 100):
        for n, (_, type_, given, _lands) in enumerate(cases):
            shop.sql_with(
                f"insert into orders (id, c{n}) values ({first + n}, %s::{type_})", [given]
            )
        rows, bad = shop.ingest()
        assert rows + bad == len(cases)
    landed = {row["id"]: row for row in shop.open().table(RAW).to_arrow().to_pylist()}
    aside = {json.loads(row.raw or "")["id"]: row.reasons for row in shop.open().quarantine(RAW)}
    for n, (_, _type, given, lands) in enumerate(cases):
        for at in (n, 100 + n):
            if isinstance(lands, str) and lands != "exact":
                assert at not in landed, (given, landed.get(at))
                assert aside[at] and lands in aside[at][0], (given, aside[at])
            else:
                assert at in landed, (given, aside.get(at))
                found = landed[at][f"c{n}"]
                assert str(found) == given if lands == "exact" else found == lands, (given, found)
