"""Cells of every type at and beyond its bounds: kept exactly, or set aside, by every lane."""

from __future__ import annotations

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Context, Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.integration.test_file_lanes import Pair

from thermocline.contract.definition import Column, Contract
from thermocline.contract.types import Decimal as DecimalType
from thermocline.contract.types import Fixed, List, Primitive, Type
from thermocline.ingest import parquet_types

if TYPE_CHECKING:
    from thermocline.lake import Lake

EXACT = Context(prec=5000)

TEXTS = [
    "0", "-0", "0.0", "-0.0", "1", "-1", "1.5", "007", "+5", "1e400", "-1e999", "1e-400", "4e-324",
    "1e308", "1.7976931348623157e308", "1.8e308", "3.4028235e38", "3.5e38", "1e39", "1e-46",
    "127", "2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807",
    "9223372036854775808", "-9223372036854775808", "-9223372036854775809", "1e3", "1E3", "10e-1",
    "0.1", "0.12345678901234567890", "1.00000000000000000000000000000000000000001", "1.005",
    "99999999.99", "999999999.99", "100000000", "99999999.995", "1e-40", "0e-9", "0E10",
    "1234567890123456789012345678.0123456789", "0.00000000001", "12345678901234567890.12",
    "9" * 28 + ".5", "9" * 38, "9" * 39, "0." + "0" * 340 + "1", "0." + "3" * 400, "1" * 320,
    "16777217", "9007199254740993",
]  # fmt: skip
"""Numbers as they may be written in JSON and CSV."""

TYPES: dict[str, Type] = {
    "int": Primitive("int"), "long": Primitive("long"), "float": Primitive("float"),
    "double": Primitive("double"), "money": DecimalType(10, 2), "wide": DecimalType(38, 10),
    "small": DecimalType(4, 4), "text": Primitive("string"),
}  # fmt: skip


def generated(seed: int, count: int) -> list[str]:
    """Numbers of all lengths and powers, as somebody might write them."""
    found, chosen = [], random.Random(seed)
    for _ in range(count):
        whole = str(chosen.randrange(10 ** chosen.choice([1, 2, 8, 9, 15, 19, 28, 38, 39])))
        digits = chosen.choice([0, 0, 1, 2, 3, 10, 16, 30, 60])
        after = "".join(chosen.choices("0123456789", k=digits))
        after = "0" * digits if chosen.random() < 0.2 else after
        power = f"e{chosen.randint(-420, 420)}" if chosen.random() < 0.15 else ""
        sign = chosen.choice(["", "-"])
        found.append(f"{sign}{whole}{'.' if after else ''}{after}{power}")
    return found


def is_kept(type_: Type, text: str, value: Any) -> bool:
    """Whether a value is what a text says, as far as its type can say it."""
    match type_:
        case Primitive("string"):
            return bool(value == text)
        case Primitive("int" | "long"):
            return bool(EXACT.create_decimal(text) == value)
        case DecimalType():
            return bool(EXACT.create_decimal(text) == value)
        case Primitive("double"):
            return bool(value == float(text)) and math.isfinite(value) and _zero(text, value)
        case Primitive("float"):
            near = pa.scalar(float(text), pa.float64()).cast(pa.float32(), safe=False).as_py()
            return (
                math.isclose(value, near, rel_tol=2e-7)
                and math.isfinite(value)
                and _zero(text, value)
            )
    raise AssertionError(type_)


def _zero(text: str, value: float) -> bool:
    return value != 0 or EXACT.create_decimal(text) == 0


def must_fit(type_: Type, text: str) -> bool:
    """Whether a text in plain notation certainly has a place in the type."""
    if "e" in text.lower() or text.startswith(("+", "00")):
        return False
    number = EXACT.create_decimal(text)
    match type_:
        case Primitive("string"):
            return True
        case Primitive("int"):
            return "." not in text and -(2**31) <= number < 2**31
        case Primitive("long"):
            return "." not in text and -(2**63) <= number < 2**63
        case DecimalType(precision, scale):
            digits = len(text.partition(".")[2])
            return digits <= scale and abs(number) < 10 ** (precision - scale)
    return abs(number) < 10**30 and (number == 0 or abs(number) > Decimal("1e-30"))


@dataclass(frozen=True)
class Case:
    """One cell: its column, its text, and the line that has it."""

    column: str
    text: str
    line: str


def cases(form: str, numbers: list[str]) -> list[Case]:
    found = []
    for name in TYPES:
        for text in numbers:
            if form == "csv":
                cells = [text if each == name else "" for each in TYPES]
                found.append(Case(name, text, ",".join([str(len(found)), *cells])))
            elif form == "json texts":
                found.append(Case(name, text, json.dumps({"id": str(len(found)), name: text})))
            elif not _JSON_NUMBER.fullmatch(text):
                continue  # JSON has no such number
            else:
                found.append(Case(name, text, f'{{"id": "{len(found)}", "{name}": {text}}}'))
    return found


_JSON_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][-+]?[0-9]+)?")


def contract() -> Contract:
    columns = [Column(name, type_) for name, type_ in TYPES.items()]
    return Contract("bronze.t", (Column("id", Primitive("string"), required=True), *columns))


@pytest.mark.parametrize("form", ["csv", "json texts", "json numbers"])
def test_a_number_is_kept_exactly_or_set_aside(lake: Lake, tmp_path: Path, form: str) -> None:
    pair = Pair(lake, tmp_path / "landing", contract())
    every = cases(form, TEXTS + generated(7, 60))
    head = ",".join(["id", *TYPES]) + "\n" if form == "csv" else ""
    name = "a.csv" if form == "csv" else "a.jsonl"
    pair.put({name: (head + "\n".join(case.line for case in every) + "\n").encode()})
    pair.compare()
    landed = {
        int(row["id"]): row
        for row in lake.iceberg(f"bronze.auto_{pair.number}").scan().to_arrow().to_pylist()
    }
    wrong = []
    for number, case in enumerate(every):
        type_ = TYPES[case.column]
        if number in landed:
            value = landed[number][case.column]
            if case.column == "text" and form == "json numbers":
                # A number of JSON has a value, but no form of its own.
                kept = EXACT.create_decimal(value) == EXACT.create_decimal(case.text)
            else:
                kept = value is not None and is_kept(type_, case.text, value)
            if not kept:
                wrong.append((case.column, case.text, value))
        elif must_fit(type_, case.text):
            wrong.append((case.column, case.text, "set aside"))
    assert wrong == []
    assert len(landed) > len(every) / 4


def test_what_is_no_text_is_set_aside_and_what_is_one_is_kept(lake: Lake, tmp_path: Path) -> None:
    texts = {
        r"a\ud83db": None, r"\udc00": None, r"\uD83D": None, r"\udc00\ud83d": None,
        r"\ud83d\ud83d\ude00": None, r"\\\ud83d": None, r"\ud83dx\ude00": None,
        r"\ud83d\ude00": "\U0001f600", r"\\ud83d": "\\ud83d", r"\u0000x": "\0x",
        r"\ufffd": "\ufffd", r"\\\ud83d\ude00": "\\\U0001f600", "é": "é", r"\u00e9": "é",
        r"\"1234567890123456789,1e400\"": '"1234567890123456789,1e400"',
    }  # fmt: skip
    columns = (
        Column("id", Primitive("int"), required=True),
        Column("s", Primitive("string")),
        Column("many", List(Primitive("string"))),
    )
    pair = Pair(lake, tmp_path / "landing", Contract("bronze.t", columns))
    lines = [f'{{"id": {n}, "s": "{text}"}}' for n, text in enumerate(texts)]
    lines += [f'{{"id": {100 + n}, "many": ["{text}"]}}' for n, text in enumerate(texts)]
    pair.put({"a.jsonl": "\n".join(lines).encode()})
    pair.compare()
    rows = lake.iceberg(f"bronze.auto_{pair.number}").scan().to_arrow().to_pylist()
    landed = {row["id"]: row for row in rows}
    for n, (text, value) in enumerate(texts.items()):
        if value is None:
            assert n not in landed and 100 + n not in landed, text
        else:
            assert landed[n]["s"] == value, text
            assert landed[100 + n]["many"] == [value], text


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "cp1252", "shift_jis", "utf-8"])
def test_bytes_that_are_no_text_are_set_aside(lake: Lake, tmp_path: Path, encoding: str) -> None:
    broken = {
        "utf-16": b"=\xd8", "utf-16-le": b"\x00\xdc", "cp1252": b"\x81", "shift_jis": b"\xff\xc3",
        "utf-8": b"\xed\xa0\xbd",
    }[encoding]  # fmt: skip
    from thermocline.ingest.source import TextOptions

    columns = (Column("id", Primitive("int")), Column("s", Primitive("string")))
    options = TextOptions(encoding=encoding)
    pair = Pair(lake, tmp_path / "landing", Contract("bronze.t", columns), options=options)
    good = '{"id": 1, "s": "ab"}\n'.encode(encoding)
    start = '{"id": 2, "s": "a'.encode(encoding).removeprefix("".encode(encoding))
    end = 'b"}\n'.encode(encoding).removeprefix("".encode(encoding))
    pair.put({"a.jsonl": good + start + broken + end})
    pair.compare()
    rows = lake.iceberg(f"bronze.auto_{pair.number}").scan().to_arrow().to_pylist()
    assert [row["s"] for row in rows] == ["ab"]


SOURCES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.int64(), [0, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 16777217]),
    (pa.int8(), [127, -128]),
    (pa.uint32(), [2**32 - 1, 5]),
    (pa.uint64(), [2**64 - 1, 5]),
    (pa.float32(), [0.5, 16777216.0, float("inf"), float("nan"), 1.5]),
    (pa.float64(), [0.1, 1.5, 1.9, 1e300, 1e-300, 2.0**63, float("inf"), float("nan"), 3.0]),
    (pa.decimal128(12, 4), [Decimal("1.5000"), Decimal("1.0050"), Decimal("99999999.9999")]),
    (pa.decimal128(38, 12), [Decimal("1.000000000001"), Decimal("1" * 26), Decimal("2")]),
    (pa.bool_(), [True, False]),
    (pa.string(), ["1", "1.5", "1e400", "x", "true", "2020-01-01", "2020-01-01T10:00:00.5Z"]),
    (pa.binary(), [b"ab", b"\xff\x00", b""]),
    (pa.date32(), [0, 18262, -719162, 2932896]),
    (pa.timestamp("us"), [0, 1577836800000000, 1577836800000001, -2208988800000001]),
    (pa.timestamp("us", "UTC"), [0, 1577836800000000, 1577836800000001]),
]


def test_a_value_of_parquet_is_kept_exactly_or_set_aside(lake: Lake, tmp_path: Path) -> None:
    """Every type of a file into every type of a column."""
    types: dict[str, Type] = {
        **TYPES, "flag": Primitive("boolean"), "day": Primitive("date"),
        "at": Primitive("timestamp"), "ts": Primitive("timestamptz"), "raw": Primitive("binary"),
        "four": Fixed(2),
    }  # fmt: skip
    columns = [Column(name, type_) for name, type_ in types.items()]
    made = Contract("bronze.t", (Column("id", Primitive("int"), required=True), *columns))
    pair = Pair(lake, tmp_path / "landing", made)
    given: dict[tuple[str, int], tuple[str, Any]] = {}
    for number, (kind, values) in enumerate(SOURCES):
        found = parquet_types.to_spark_type(kind)
        assert found is not None
        fitting = [
            name
            for name, type_ in types.items()
            if not parquet_types.explain_type_mismatch(type_, found)
        ]
        cells: dict[str, list[Any]] = {name: [] for name in fitting}
        for name in fitting:
            for value in pa.array(values, kind).to_pylist():
                given[f"{number:02}.parquet", len(cells[name])] = name, value
                for each in fitting:
                    cells[each].append(value if each == name else None)
        count = len(fitting) * len(values)
        table = {"id": pa.array(range(count), pa.int32())}
        table |= {name: pa.array(cells[name], kind) for name in fitting}
        pq.write_table(pa.table(table), pair.folder / f"{number:02}.parquet")
    pair.compare()
    rows = lake.iceberg(f"bronze.auto_{pair.number}").scan().to_arrow().to_pylist()
    wrong = []
    for row in rows:
        name, value = given[row["_source_file"], row["id"]]
        if not same(value, row[name], types[name]):
            wrong.append((name, row["_source_file"], value, row[name]))
    assert wrong == []
    assert len(given) / 2 < len(rows) < len(given)


def same(given: Any, value: Any, type_: Type) -> bool:
    """Whether a value still says what was given."""
    by: dict[type, Callable[[], bool]] = {
        # What is no binary fraction is the one next to it; an integer is itself.
        float: lambda: (
            math.isclose(float(given), value, rel_tol=1e-7)
            if isinstance(given, Decimal)
            else given == value or str(given) == str(value)
        ),
        Decimal: lambda: EXACT.create_decimal(str(given)) == value,
    }
    if isinstance(given, str):
        return value is not None  # as texts are read: the tests of numbers see to that
    if isinstance(given, bool) or isinstance(value, bool):
        words = {True: {"true", "1", "1.0"}, False: {"false", "0", "0.0"}}
        said = str(value).lower() if not isinstance(value, Decimal) else str(int(value))
        return bool(given == value) or said in words.get(given, set()) or given == said
    if isinstance(given, bytes) and isinstance(value, str):
        return given.decode("utf-8", "surrogateescape") == value
    if isinstance(value, str):
        return bool(value)
    if hasattr(given, "isoformat"):
        return bool(str(value).startswith(str(given)[:10]) and _instant(given) == _instant(value))
    found = by.get(type(value))
    return found() if found else bool(given == value)


def _instant(value: Any) -> str:
    text = str(value).removesuffix("+00:00")
    return text if len(text) > 10 else text + " 00:00:00"
