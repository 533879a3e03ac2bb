"""Which Parquet files the Arrow lane reads, and which it leaves to Spark."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from thermocline.contract.definition import Column, Contract, DriftMode
from thermocline.contract.types import Decimal, Field, Fixed, List, Map, Primitive, Struct, Type
from thermocline.ingest.arrow import parquet
from thermocline.ingest.arrow.parquet import ParquetReader, read_batches
from thermocline.ingest.unambiguous_json import NeedsSpark

OLD_LIST = {"use_compliant_nested_type": False}


def stored(table: pa.Table, **options: Any) -> io.BytesIO:
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    out.seek(0)
    return out


def read(
    values: Any, wanted: Type, drift: DriftMode = DriftMode.REFUSE, **options: Any
) -> list[Any]:
    """The values of a file's one column as the contract's type."""
    contract = Contract("bronze.t", (Column("x", wanted),), drift=drift)
    file = stored(pa.table({"x": values}), **options)
    rows = ParquetReader(pq.read_schema(file), contract)
    file.seek(0)
    return [
        row for part in read_batches(file) for row in rows.convert(part).column("x").to_pylist()
    ]


MOMENT = datetime(2026, 3, 1, 12, 30)
PAIR = Struct((Field("a", Primitive("long")), Field("b", Primitive("string"))))


@pytest.mark.parametrize(
    ("values", "wanted", "found"),
    [
        (pa.array([1, None], pa.int8()), Primitive("long"), [1, None]),
        (pa.array([1], pa.int32()), Primitive("double"), [1.0]),
        (pa.array([0.5], pa.float32()), Primitive("double"), [0.5]),
        (pa.array(["a", "a"]).dictionary_encode(), Primitive("string"), ["a", "a"]),
        (pa.array([MOMENT], pa.timestamp("ms")), Primitive("timestamp"), [MOMENT]),
        (pa.array([MOMENT], pa.timestamp("us")), Primitive("timestamptz"),
         [MOMENT.replace(tzinfo=UTC)]),
        (pa.array([Number("1.5")], pa.decimal128(4, 1)), Decimal(12, 2), [Number("1.50")]),
        (pa.array([{"b": "x", "c": 1}, None]), PAIR, [{"a": None, "b": "x"}, None]),
        (pa.array([[{"a": 1}, None], None, []], pa.list_(pa.struct([("a", pa.int16())]))),
         List(PAIR), [[{"a": 1, "b": None}, None], None, []]),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int32())),
         Map(Primitive("string"), Primitive("int")), [[("k", 1)]]),
    ],
)  # fmt: skip
def test_values_of_a_type_that_the_contracts_holds(
    values: pa.Array, wanted: Type, found: list[Any]
) -> None:
    assert read(values, wanted) == found


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        (pa.array([1], pa.int64()), Primitive("int")),
        (pa.array([1], pa.int64()), Primitive("double")),
        (pa.array([1], pa.uint8()), Primitive("int")),
        (pa.array([1.0]), Primitive("float")),
        (pa.array(["1"]), Primitive("int")),
        (pa.array([1]), Primitive("string")),
        (pa.array([b"a"]), Primitive("string")),
        (pa.array([b"abcd"], pa.binary(4)), Primitive("binary")),
        (pa.array([b"abcd"]), Fixed(4)),
        (pa.array(["x"]), Primitive("uuid")),
        (pa.array([MOMENT], pa.timestamp("ns")), Primitive("timestamp")),
        (pa.array([MOMENT], pa.timestamp("us", "UTC")), Primitive("timestamp")),
        (pa.array([date(1899, 12, 31)]), Primitive("date")),
        (pa.array([[date(1500, 1, 1)]]), List(Primitive("date"))),
        (pa.array([datetime(1899, 12, 31, 23)], pa.timestamp("us")), Primitive("timestamp")),
        (pa.array([Number("1.50")], pa.decimal128(12, 2)), Decimal(12, 1)),
        (pa.array([Number("1.50")], pa.decimal128(12, 2)), Decimal(11, 2)),
        (pa.array([{"b": "x"}]), Struct((Field("a", Primitive("long"), required=True),))),
        (pa.array([[1, None]]), List(Primitive("long"), element_required=True)),
        (pa.array([[("k", None)]], pa.map_(pa.string(), pa.int32())),
         Map(Primitive("string"), Primitive("int"), value_required=True)),
        (pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int16())),
         Map(Primitive("string"), Primitive("int"))),
    ],
    ids=str,
)  # fmt: skip
def test_values_that_are_left_to_spark(values: pa.Array, wanted: Type) -> None:
    with pytest.raises(NeedsSpark):
        read(values, wanted)


def test_a_text_that_is_not_utf8_is_left_to_spark() -> None:
    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")
    )
    with pytest.raises(NeedsSpark, match="cannot be read to its end"):
        read(broken, Primitive("string"))


def test_layouts_of_old_are_left_to_spark() -> None:
    moments = pa.array([MOMENT], pa.timestamp("us"))
    with pytest.raises(NeedsSpark):
        read(moments, Primitive("timestamp"), use_deprecated_int96_timestamps=True)
    assert read(pa.array([[1]]), List(Primitive("long")), **OLD_LIST) == [[1]]


def spark_file(schema: dict[str, Any], **more: str) -> io.BytesIO:
    """A file that says it was written by Spark."""
    metadata = {"org.apache.spark.sql.parquet.row.metadata": json.dumps(schema), **more}
    return stored(pa.table({"x": [1]}).replace_schema_metadata(metadata))


def spark_schema(kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"name": "x", "type": kind, "metadata": {}}]}


def test_what_spark_says_of_its_own_files_is_heeded() -> None:
    nested = {"type": "array", "elementType": spark_schema("decimal(4,2)")}
    for kind in ("long", nested):
        assert [part.num_rows for part in read_batches(spark_file(spark_schema(kind)))] == [1]
    for kind in ("interval day to second", {"type": "udt", "class": "x"}, "variant"):
        with pytest.raises(NeedsSpark, match="type of Spark's own"):
            list(read_batches(spark_file(spark_schema(kind))))
    with pytest.raises(NeedsSpark, match="legacy calendar"):
        old = {"org.apache.spark.legacyDateTime": ""}
        list(read_batches(spark_file(spark_schema("long"), **old)))


def test_a_file_is_read_in_batches_of_bounded_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "BATCH_BYTES", 1000)
    monkeypatch.setattr(parquet, "MIN_ROWS", 1)
    texts = [f"{n:0100}" for n in range(50)]
    found = [part["x"].to_pylist() for part in read_batches(stored(pa.table({"x": texts})))]
    assert [text for part in found for text in part] == texts
    assert max(map(len, found)) <= 10


def test_fields_that_the_contract_does_not_name() -> None:
    table = pa.table({"x": [1], "n": [7], "s": ["t"], "f": [0.5]})
    contract = Contract("bronze.t", (Column("x", Primitive("long")),), drift=DriftMode.RESCUE)
    plain = table.drop_columns(["f"])
    rows = ParquetReader(plain.schema, contract).convert(plain)
    assert rows["_rescued"].to_pylist() == [[("n", "7"), ("s", "t")]]
    with pytest.raises(NeedsSpark, match="f, which the contract does not name"):
        ParquetReader(table.schema, contract).convert(table)
    for drift in (DriftMode.ADD, DriftMode.REFUSE):
        with pytest.raises(NeedsSpark):
            ParquetReader(plain.schema, Contract("bronze.t", contract.columns, drift=drift))


def test_names_that_differ_only_in_case_are_left_to_spark() -> None:
    table = pa.table({"x": [1], "X": [2]})
    with pytest.raises(NeedsSpark, match="two columns"):
        ParquetReader(table.schema, Contract("bronze.t", (Column("x", Primitive("long")),)))
