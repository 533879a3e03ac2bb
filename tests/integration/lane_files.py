"""Landing files for tests that both lanes read alike: good ones, and every way to be nasty."""

from __future__ import annotations

import io
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st
from tests.unit.ingest import json_records

from thermocline.contract.definition import Column, Rule
from thermocline.contract.types import Decimal, Field, List, Map, Primitive, Struct

# CSV: the same columns as JSON, without those that are nested.
CSV_COLUMNS = json_records.COLUMNS[:11]
CSV_FIELDS = ["i", "s", "stray", "m", "d", "b", "l", "day", "at", "ts", "e"]
RULES = (
    Rule("range", ("i",), (("min", -1000), ("max", 100_000))),
    Rule("accepted", ("b",), (("values", (True,)),)),
    Rule("pattern", ("s",), (("pattern", "^[^x]*$"),)),
)

_plain_cell = {
    "i": st.integers(-2000, 200_000).map(str),
    # Mostly of those that are plain: an odd cell hides whether the others are judged rightly.
    "l": st.one_of(st.integers(-(10**15), 10**15), st.integers(-(2**63), 2**63 - 1)).map(str),
    "m": st.decimals(-999999, 999999, places=2).map(str),
    "e": st.decimals(-99999999, 99999999, places=7).map(str),
    "d": st.floats(allow_nan=False, allow_infinity=False).map(repr),
    "b": st.sampled_from(["true", "true", "true", "false", "TRUE", "1"]),
    "day": st.dates().map(str),
    "at": st.datetimes().map(lambda at: at.isoformat()),
    "ts": st.datetimes().map(lambda at: at.isoformat(" ", "milliseconds") + "Z"),
}
_text = st.one_of(st.text(max_size=6), st.sampled_from(json_records.TEXTS))
_any_cell = st.one_of(
    _text, st.sampled_from(json_records.NUMBERS), st.sampled_from(["", " ", '""', "''", "NULL"])
)


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


@st.composite
def csv_lines(draw: st.DrawFn) -> bytes:
    """One line of a CSV file, or something that looks a little like it."""
    cells = []
    odd = draw(st.integers(0, 2)) == 0
    for name in CSV_FIELDS:
        plain = _plain_cell.get(name, _text)
        cell = draw(_any_cell if odd and draw(st.integers(0, 3)) == 0 else plain)
        if draw(st.integers(0, 9)) == 0:
            cell = ""
        how = draw(st.integers(0, 3))
        if how == 0 or (not odd and any(char in cell for char in '",\r\n')):
            cell = _quoted(cell)
        elif how == 1 and odd:
            cell = draw(st.sampled_from([f' "{cell}"', f'"{cell}" ', f'"{cell}', f'{cell}"x"']))
        cells.append(cell)
    if odd and draw(st.integers(0, 4)) == 0:
        cells = cells[: draw(st.integers(1, len(cells)))] + draw(
            st.sampled_from([[], ["more"] * 3])
        )
    line = ",".join(cells).encode("utf-8", "surrogatepass")
    if odd and draw(st.integers(0, 9)) == 0:
        line += draw(st.sampled_from([b"\xff", b"\x00", b"\r", b"\\", b'"', b"\xed\xa0\x80"]))
    return line


def csv_file(lines: list[bytes], end: bytes, mark: bytes) -> bytes:
    """Lines below a header."""
    return mark + end.join([",".join(CSV_FIELDS).encode(), *lines])


# Parquet: for every column the types that a file may have it in.
_ITEM = Struct((Field("sku", Primitive("string")), Field("price", Decimal(10, 2))))
PARQUET_COLUMNS = (
    Column("s", Primitive("string"), required=True),
    Column("i", Primitive("int")),
    Column("l", Primitive("long")),
    Column("f", Primitive("float")),
    Column("d", Primitive("double")),
    Column("b", Primitive("boolean")),
    Column("m", Decimal(12, 2)),
    Column("day", Primitive("date")),
    Column("at", Primitive("timestamp")),
    Column("ts", Primitive("timestamptz")),
    Column("raw", Primitive("binary")),
    Column("items", List(_ITEM)),
    Column("place", Struct((Field("city", Primitive("string")), Field("n", Primitive("long"))))),
    Column("tags", Map(Primitive("string"), Primitive("int"))),
)
PARQUET_RULES = (
    Rule("range", ("i",), (("min", 0),)),
    Rule("accepted", ("s",), (("values", ("a", "b", "é", "")),)),
    Rule("length", ("place.city",), (("max", 3),)),
)
_SMALL = (pa.int8(), pa.int16(), pa.int32())
_KINDS: dict[str, tuple[pa.DataType, ...]] = {
    "s": (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())),
    "i": _SMALL,
    "l": (*_SMALL, pa.int64()),
    "f": (pa.float32(),),
    "d": (pa.float64(), pa.float32(), pa.int32()),
    "b": (pa.bool_(),),
    "m": (pa.decimal128(12, 2), pa.decimal128(9, 1)),
    "day": (pa.date32(),),
    "at": (pa.timestamp("us"), pa.timestamp("ms")),
    "ts": (pa.timestamp("us", "UTC"), pa.timestamp("ms", "Europe/Berlin"), pa.timestamp("us")),
    "raw": (pa.binary(),),
    "items": (
        pa.list_(pa.struct([("sku", pa.string()), ("price", pa.decimal128(10, 2))])),
        pa.list_(pa.struct([("price", pa.decimal128(8, 2)), ("more", pa.int32())])),
        pa.large_list(pa.struct([("price", pa.decimal128(10, 2)), ("sku", pa.large_string())])),
    ),
    "place": (
        pa.struct([("city", pa.string()), ("n", pa.int64())]),
        pa.struct([("n", pa.int16())]),
    ),
    "tags": (pa.map_(pa.string(), pa.int32()),),
    "stray": (pa.string(), pa.int64()),
}


def _values(kind: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of an Arrow type, as Python has them."""
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return st.sampled_from(["a", "b", "é", "", "a", "b", "€\n", "\U0001f600"])
    if pa.types.is_integer(kind):
        most = 2 ** (kind.bit_width - 1)
        return st.one_of(st.integers(-most, most - 1), st.integers(0, 100), st.integers(0, 100))
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width)
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_decimal(kind):
        most = Number(10) ** (kind.precision - kind.scale) - 1
        return st.decimals(-most, most, places=kind.scale)
    if pa.types.is_date(kind):
        return st.dates(date(1900, 1, 1), date(9999, 12, 30))
    if pa.types.is_timestamp(kind):
        zone = UTC if kind.tz else None
        return st.integers(-60 * 10**9, 200 * 10**9).map(
            lambda ms: datetime(1970, 1, 1, tzinfo=zone) + timedelta(milliseconds=ms)
        )
    if pa.types.is_binary(kind):
        return st.binary(max_size=3)
    if pa.types.is_struct(kind):
        members = {field.name: _null_or(_values(field.type)) for field in kind.fields}
        return st.fixed_dictionaries(members)
    if pa.types.is_map(kind):
        pairs = st.tuples(_values(kind.key_type), _null_or(_values(kind.item_type)))
        return st.lists(pairs, max_size=2, unique_by=lambda pair: pair[0])
    return st.lists(_null_or(_values(kind.value_type)), max_size=2)


def _null_or(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 7).flatmap(lambda n: st.none() if n == 0 else values)


@st.composite
def parquet_files(draw: st.DrawFn) -> bytes:
    """A whole file whose columns are some of the contract's, and perhaps one more."""
    names = draw(st.permutations(sorted(_KINDS)))
    names = names[: draw(st.integers(8, len(names)))]
    names += ["s"] if "s" not in names else []
    count = draw(st.integers(0, 30))
    columns = {}
    for name in names:
        kind = draw(st.sampled_from(_KINDS[name]))
        values = draw(st.lists(_null_or(_values(kind)), min_size=count, max_size=count))
        flat = kind.value_type if pa.types.is_dictionary(kind) else kind
        columns[name] = pa.array(values, flat).cast(kind)
    written = io.BytesIO()
    pq.write_table(
        pa.table(columns), written,
        compression=draw(st.sampled_from(["zstd", "snappy", "none", "gzip"])),
        row_group_size=draw(st.sampled_from([1, 7, 1000])),
        use_dictionary=draw(st.booleans()),
        store_schema=draw(st.booleans()),
    )  # fmt: skip
    return written.getvalue()
