"""One Arrow form, whatever came in."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from thermocline.engine.arrow import normalize, to_json_rows

IDENT = UUID("123e4567-e89b-12d3-a456-426614174000")
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
BERN = "Europe/Zurich"


def _field(kind: pa.DataType) -> pa.Field:
    return pa.field("x", kind, nullable=False)


@pytest.mark.parametrize(
    ("given", "kind", "values"),
    [
        (pa.array(["a", None], pa.large_string()), "string", ["a", None]),
        (pa.array(["a", None], pa.string_view()), "string", ["a", None]),
        (pa.array(["a", "b", "a", None]).dictionary_encode(), "string", ["a", "b", "a", None]),
        (pa.RunEndEncodedArray.from_arrays([2, 3], [1, 2]), "int64", [1, 1, 2]),
        (pa.array([b"ab", None], pa.binary(2)), "binary", [b"ab", None]),
        (pa.array([b"a"], pa.binary_view()), "binary", [b"a"]),
        (pa.array([MOMENT], pa.timestamp("ms", BERN)), "timestamp[us, tz=UTC]", [MOMENT]),
        (pa.array([MOMENT], pa.timestamp("us", "Etc/UTC")), "timestamp[us, tz=UTC]", [MOMENT]),
        (pa.array([datetime(2026, 1, 2)], pa.timestamp("s")), "timestamp[us]", None),
        (pa.array([1], pa.timestamp("ns")), "timestamp[ns]", None),
        (pa.array([time(1, 2)], pa.time32("s")), "time64[us]", [time(1, 2)]),
        (pa.array([Decimal("1.5")], pa.decimal64(4, 1)), "decimal128(4, 1)", [Decimal("1.5")]),
        (pa.array([Decimal("1.5")], pa.decimal256(38, 1)), "decimal128(38, 1)", [Decimal("1.5")]),
        (pa.array([IDENT.bytes, None], pa.uuid()), "string", [str(IDENT), None]),
        (pa.array([[1, 2], None], pa.list_(_field(pa.int8()), 2)), "list<element: int8>", None),
        (pa.array([[1], None, []], pa.large_list(pa.int64())), "list<element: int64>", None),
        (pa.array([[1], None, []], pa.list_view(pa.int64())), "list<element: int64>", None),
    ],
    ids=str,
)
def test_a_type_and_its_canonical_form(given: pa.Array, kind: str, values: Any) -> None:
    found = normalize(pa.table({"x": given}))
    assert str(found.schema.field("x").type) == kind
    assert found["x"].to_pylist() == (given.to_pylist() if values is None else values)


def test_nested_types_lose_names_nullability_and_metadata_but_no_value() -> None:
    inner = pa.struct([_field(pa.large_string()), pa.field("u", pa.binary(2))])
    entry = pa.map_(pa.large_string(), pa.large_list(inner))
    values: list[Any] = [None, [], [("k", None), ("l", []), ("m", [{"x": "a", "u": b"uu"}])]]
    table = pa.table(
        {"m": pa.array(values, entry)},
        pa.schema([pa.field("m", entry, metadata={"doc": "d"})], metadata={"a": "b"}),
    )
    found = normalize(table)
    assert found.schema.metadata is None and found.schema.field("m").metadata is None
    assert str(found.schema.field("m").type) == (
        "map<string, list<element: struct<x: string, u: binary>>>"
    )
    expected = [("k", None), ("l", []), ("m", [{"x": "a", "u": b"uu"}])]
    assert found["m"].to_pylist() == [None, [], expected]
    # A view into the middle of an array shows only its own rows.
    assert normalize(table.slice(2))["m"].to_pylist() == [expected]
    assert normalize(table.slice(1, 1))["m"].to_pylist() == [[]]
    idents = pa.ListArray.from_arrays([0, 0, 1], pa.array([IDENT.bytes], pa.uuid()))
    assert normalize(pa.table({"x": idents}))["x"].to_pylist() == [[], [str(IDENT)]]


def test_canonical_columns_are_not_copied() -> None:
    table = pa.table({"a": pa.array(["x", "y"]), "b": pa.array([1, 2])})
    found = normalize(table)
    for name in table.column_names:
        before, after = table[name].chunk(0).buffers(), found[name].chunk(0).buffers()
        assert [b and b.address for b in before] == [b and b.address for b in after]
    assert normalize(found).schema.equals(found.schema, check_metadata=True)


def test_a_table_without_rows_or_columns() -> None:
    assert normalize(pa.table({})).num_columns == 0
    empty = normalize(pa.table({"x": pa.array([], pa.large_string())}))
    assert empty.num_rows == 0 and empty.schema.field("x").type == pa.string()
    assert normalize(pa.table({"s": pa.array([{}, None], pa.struct([]))}))["s"].to_pylist() == [
        {},
        None,
    ]


def test_json_rows_lose_nothing() -> None:
    table = pa.table(
        {
            "d": pa.array([Decimal("1.10")], pa.decimal128(4, 2)),
            "f": pa.array([float("nan")]),
            "t": pa.array([MOMENT], pa.timestamp("us", "UTC")),
            "y": pa.array([date(2026, 1, 2)]),
            "b": pa.array([b"\xff"]),
            "m": pa.array([[("k", Decimal("2.0"))]], pa.map_(pa.string(), pa.decimal128(4, 1))),
            "n": pa.array([[(1, "a")]], pa.map_(pa.int32(), pa.string())),
            "s": pa.array([[{"x": None, "y": 1.5}]]),
            "i": pa.array([2**63 - 1]),
        }
    )
    (row,) = to_json_rows(table)
    assert json.loads(json.dumps(row, allow_nan=False)) == {
        "d": "1.10",
        "f": "nan",
        "t": "2026-01-02T03:04:05+00:00",
        "y": "2026-01-02",
        "b": "/w==",
        "m": {"k": "2.0"},
        "n": [[1, "a"]],
        "s": [{"x": None, "y": 1.5}],
        "i": 9223372036854775807,
    }
    assert len(list(to_json_rows(pa.table({"a": [1, 2, 3]}), limit=2))) == 2
