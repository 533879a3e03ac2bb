"""Text files in blocks of lines, and which of their lines are plain."""

from __future__ import annotations

from datetime import date
from decimal import Decimal as Number
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from thermocline.contract.definition import Column, Contract, DriftMode
from thermocline.contract.types import Decimal, List, Primitive
from thermocline.ingest.arrow import text_blocks
from thermocline.ingest.arrow.csv import CsvReader
from thermocline.ingest.arrow.jsonl import JsonLinesReader
from thermocline.ingest.arrow.text_blocks import TextBlock, decode_line, split_blocks
from thermocline.ingest.layout import Layout
from thermocline.ingest.unambiguous_json import NeedsSpark

CONTRACT = Contract(
    "bronze.t",
    (
        Column("s", Primitive("string")),
        Column("i", Primitive("int")),
        Column("m", Decimal(5, 2)),
        Column("day", Primitive("date")),
    ),
    drift=DriftMode.RESCUE,
)
LAYOUT = Layout("csv", ("i", "s", "m", "day"))


@given(st.lists(st.text("ab\n", max_size=6).map(str.encode)), st.integers(1, 8), st.integers(0, 1))
def test_blocks_hold_the_lines_of_a_text_at_their_places(
    pieces: list[bytes], size: int, first: int
) -> None:
    whole = b"".join(pieces)
    lines = whole.removesuffix(b"\n").split(b"\n") if whole else []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", size)
        found = list(split_blocks(iter(pieces), first))
    assert [line for block in found for line in block.lines] == lines
    places = [block.first + n for block in found for n in range(block.count)]
    assert places == list(range(first, first + len(lines)))
    assert [block.line(block.first) for block in found] == [block.lines[0] for block in found]


@given(st.lists(st.integers(0, 20), max_size=6), st.integers(1, 8))
def test_a_byte_order_mark_is_no_part_of_the_text(cuts: list[int], size: int) -> None:
    whole = b"\xef\xbb\xbf\xef\xbb\xbfa\n\xef\xbb\xbfb\nc"
    places = [0, *sorted(cuts), len(whole)]
    pieces = [whole[start:end] for start, end in pairwise(places)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text_blocks, "BLOCK_BYTES", size)
        lines = [line for block in split_blocks(iter(pieces), 1) for line in block.lines]
    assert lines == [b"\xef\xbb\xbfa", b"\xef\xbb\xbfb", b"c"]


def test_a_line_is_read_as_spark_reads_it() -> None:
    assert decode_line(b"a\r\r") == ("a", None)
    assert decode_line(b"\xef\xbb\xbfa") == ("\ufeffa", None)
    assert decode_line(b"\xef\xbb\xbf\xff\r") == ("ï»¿ÿ", "not valid text in its encoding")


def test_json_lines_that_are_not_plain_are_found_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = [b'{"i":%d}' % n for n in range(700)]
    odd = {0: b"x", 3: b'{"i":"1"}', 4: b'{"i":1,"i":2}', 300: b' {"i":1}', 699: b'{"day":1}'}
    for at, line in odd.items():
        lines[at] = line
    lines[5] = b" \r"
    table, positions, found = JsonLinesReader(CONTRACT).read(TextBlock(b"\n".join(lines), 11))
    assert table is not None
    assert sorted(found) == [11 + at for at in odd]
    assert positions == [11 + n for n in range(700) if n not in odd and n != 5]
    assert table["i"].to_pylist() == [at - 11 for at in positions]


def read(*lines: bytes, layout: Layout = LAYOUT) -> tuple[list[tuple[object, ...]], list[int]]:
    table, positions, odd = CsvReader(layout, CONTRACT).read(TextBlock(b"\n".join(lines), 1))
    rows = [] if table is None else [tuple(row.values()) for row in table.to_pylist()]
    assert len(rows) == len(positions)
    return rows, odd


def test_plain_csv_becomes_typed_rows() -> None:
    rows, odd = read(
        b"1,a b ,1.5,2026-03-01",
        b'"2","x, ""y"" ",-999.99,"2024-02-29"\r',
        b",,,",
        b' 3 ,"",   ,2199-12-31 ',
    )
    assert (rows, odd) == (
        [
            ("a b ", 1, Number("1.50"), date(2026, 3, 1)),
            ('x, "y" ', 2, Number("-999.99"), date(2024, 2, 29)),
            (None, None, None, None),
            (None, 3, None, date(2199, 12, 31)),
        ],
        [],
    )


@pytest.mark.parametrize(
    "line",
    [
        b"1,a,2", b"1,a,2,,", b'1,"a,2,', b'1, "a",2,', b'1,"a" ,2,', b'1,a"b,2,', b'1,"a"b,2,',
        b"1,\xff,2,", b"1,a\x00,2,", b"1,a\rb,2,", b"x,a,2,", b"1.0,a,2,", b"+1,a,2,", b"1e1,a,2,",
        b"1,a,1000,", b"1,a,1.005,", b"1,a,1e2,", b"1,a,.5,", b"1,a,2,2026-02-30",
        b"1,a,2,2026-03-01Z", b"1,a,2,1899-12-31", b"9999999999,a,2,",
    ],
)  # fmt: skip
def test_a_line_of_which_a_parser_might_think_otherwise_is_odd(line: bytes) -> None:
    rows, odd = read(b"7,good,1,", line, b"8,good,2,")
    assert ([row[1] for row in rows], odd) == ([7, 8], [2])


CELLS = {
    "boolean": (["true", "false", ""], ["TRUE", "1", "yes", "truefalse"]),
    "int": (["1", "-999999999", "007", ""], ["1.0", "x", "1e3", "2147483648", "- 1"]),
    "long": (["-1", "999999999999999999"], ["9223372036854775808", "1L", "0x10", "--1"]),
    "double": (
        ["1.5", "-2", "1e10", "123456789012345.5", "0", ""],
        ["x", "-0", "-0.0", "-0e5", "NaN", "Infinity", "1e400", "1d", ".5", "5.", "0x1p3", "1e",
         "0.1234567890123456", "2.5756851160916716e+33", "12345678901234567", "1 2"],
    ),
    "date": (["2026-03-01", ""], ["2026-3-1", "20260301", "2026-02-30", "tomorrow"]),
    "timestamp": (["2026-03-01T12:00:00", ""], ["2026-03-01T25:00:00", "noon", "2026-03-01T"]),
    "timestamptz": (["2026-03-01 12:00:00.000Z"], ["2026-13-01 12:00:00Z", "1772366400"]),
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "cell", "odd"),
    [
        pytest.param(kind, cell, odd, id=f"{kind} {cell!r}")
        for kind, (plain, others) in CELLS.items()
        for odd, cells in ((False, plain), (True, others))
        for cell in cells
    ],
)
def test_one_cell_that_is_not_plain_makes_its_line_odd(kind: str, cell: str, odd: bool) -> None:
    contract = Contract("bronze.t", (Column("v", Primitive(kind)), Column("n", Primitive("int"))))
    lines = f"{CELLS[kind][0][0]},1\n{cell},2".encode()
    table, positions, found = CsvReader(Layout("csv", ("v", "n")), contract).read(
        TextBlock(lines, 1)
    )
    assert (positions, found) == (([1], [2]) if odd else ([1, 2], []))
    assert table is not None
    assert all((row["v"] is None) == (cell == "" and row["n"] == 2) for row in table.to_pylist())


def test_an_escape_of_its_own_makes_a_line_odd() -> None:
    escaped = Layout("csv", ("i", "s", "m", "day"), escape="\\")
    assert read(b'1,"a,b",2,', b'1,"a\\"",2,', b'1,"a""b",2,', layout=escaped)[1] == [2, 3]


def test_what_the_contract_does_not_name_is_rescued() -> None:
    [row, other], _ = read(b"1,x,", b'2,,"y"', layout=Layout("csv", ("i", "more", "even more")))
    assert (row[1], row[-1]) == (1, [("more", "x"), ("even more", None)])
    assert (other[1], other[-1]) == (2, [("more", None), ("even more", "y")])


@pytest.mark.parametrize(
    ("layout", "contract"),
    [
        (Layout("csv", ("i",), delimiter=" "), CONTRACT),
        (Layout("csv", ("i",), quote="x", escape="x"), CONTRACT),
        (Layout("csv", ("i",), null="NA"), CONTRACT),
        (Layout("csv", ("i", "more")), Contract("bronze.t", CONTRACT.columns, drift=DriftMode.ADD)),
        (Layout("csv", ("i",)), Contract("bronze.t", (Column("i", List(Primitive("int"))),))),
        (Layout("csv", ("i",)), Contract("bronze.t", (Column("i", Primitive("uuid")),))),
    ],
)
def test_a_layout_that_is_left_to_spark(layout: Layout, contract: Contract) -> None:
    with pytest.raises(NeedsSpark):
        CsvReader(layout, contract)
