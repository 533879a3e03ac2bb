"""Bags of rows: what cancels, what pairs, against a plain-Python model."""

from __future__ import annotations

import struct
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.lake import rowdiff

NAN, OTHER_NAN = float("nan"), struct.unpack("<d", struct.pack("<Q", 0xFFF8000000000001))[0]

# Few values of each type, so that equal rows are frequent; each pair that is easy to confuse.
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "long": (pa.int64(), [0, -1, 2**63 - 1, -(2**63)]),
    "double": (pa.float64(), [0.0, -0.0, NAN, OTHER_NAN, float("inf"), 1.5]),
    "float": (pa.float32(), [0.0, -0.0, NAN, 1.5]),
    "text": (pa.string(), ["", "a", "A", "ä", "a\u0308", "\x00"]),
    "bytes": (pa.binary(), [b"", b"\x00", b"\x00\x00", "ä".encode()]),
    "flag": (pa.bool_(), [True, False]),
    "day": (pa.date32(), [date(1970, 1, 1), date(1969, 12, 31)]),
    "decimal": (pa.decimal128(38, 2), [Decimal("1.10"), Decimal("-1.10"), Decimal("9" * 36)]),
    "moment": (
        pa.timestamp("us", "UTC"),
        [datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, 0, 0, 0, 1, tzinfo=UTC)],
    ),
    "numbers": (pa.list_(pa.int32()), [[], [None], [1], [1, 2], [2, 1], [None, 1]]),
    "nested": (
        pa.list_(pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])),
        [[], [None], [{"a": 1, "b": [NAN]}], [{"a": None, "b": None}], [{"a": 1, "b": []}]],
    ),
    "pair": (
        pa.struct([("x", pa.string()), ("y", pa.string())]),
        [{"x": None, "y": None}, {"x": "1", "y": None}, {"x": None, "y": "1"}],
    ),
    "map": (
        pa.map_(pa.string(), pa.float64()),
        [[], [("a", 1.0)], [("a", None)], [("a", 1.0), ("b", 0.0)], [("b", 0.0), ("a", 1.0)]],
    ),
}


def frozen(value: Any, kind: pa.DataType) -> Any:
    """A hashable value that is equal exactly when the two values are the same."""
    if value is None:
        return None
    if pa.types.is_floating(kind):
        return "NaN" if value != value else struct.pack("<d", value)
    if pa.types.is_map(kind):
        return frozenset((k, frozen(v, kind.item_type)) for k, v in value)
    if pa.types.is_list(kind):
        return tuple(frozen(v, kind.value_type) for v in value)
    if pa.types.is_struct(kind):
        return tuple(frozen(value[f.name], f.type) for f in kind)
    return value


def bag(table: pa.Table) -> Counter[Any]:
    kinds = [field.type for field in table.schema]
    columns = [column.to_pylist() for column in table.columns]
    return Counter(
        tuple(frozen(v, k) for v, k in zip(row, kinds, strict=True))
        for row in zip(*columns, strict=True)
    )


@st.composite
def two_tables(draw: st.DrawFn) -> tuple[pa.Table, pa.Table]:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=3, unique=True))
    schema = pa.schema([(name, VALUES[name][0]) for name in names])
    row = st.tuples(*(st.sampled_from([None, *VALUES[name][1]]) for name in names))

    def table() -> pa.Table:
        # Slices of chunks: a view into a larger array must not show what is outside of it.
        chunks = draw(st.lists(st.lists(row, max_size=6), max_size=3))
        made = [
            pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in rows], schema=schema)
            for rows in chunks
        ]
        cut = draw(st.integers(0, 2))
        return pa.concat_tables([schema.empty_table(), *(part.slice(cut) for part in made)])

    return table(), table()


@given(two_tables())
@settings(max_examples=300, deadline=None)
def test_cancel_is_the_difference_of_bags(tables: tuple[pa.Table, pa.Table]) -> None:
    left, right = tables
    only_left, only_right = rowdiff.cancel(left, right)
    assert bag(only_left) == bag(left) - bag(right)
    assert bag(only_right) == bag(right) - bag(left)


@given(two_tables())
@settings(max_examples=150, deadline=None)
def test_match_pairs_equal_rows_and_uses_each_once(tables: tuple[pa.Table, pa.Table]) -> None:
    left, right = tables
    key = left.column_names[:1]
    of_left, of_right = rowdiff.match(left, right, key)
    assert len(set(of_left)) == len(of_left) and len(set(of_right)) == len(of_right)
    pairs = zip(of_left.tolist(), of_right.tolist(), strict=True)
    for a, b in pairs:
        assert bag(left.select(key).slice(a, 1)) == bag(right.select(key).slice(b, 1))
    both = bag(left.select(key)) & bag(right.select(key))
    assert len(of_left) == both.total()


@pytest.mark.parametrize("name", sorted(VALUES))
def test_every_two_distinct_values_get_distinct_numbers(name: str) -> None:
    kind, values = VALUES[name]
    values = [None, *values]
    numbers = rowdiff.number_rows([[pa.array(values, kind)]]).tolist()
    for a, first in enumerate(values):
        for b, second in enumerate(values):
            same = frozen(first, kind) == frozen(second, kind)
            assert (numbers[a] == numbers[b]) == same, (first, second)


def test_many_wide_columns_do_not_overflow_the_number() -> None:
    rows = 5_000
    columns = {f"c{i}": pa.array(np.random.default_rng(i).permutation(rows)) for i in range(9)}
    table = pa.table(columns)
    shuffled = table.take(pa.array(np.random.default_rng(99).permutation(rows)))
    changed = shuffled.set_column(8, "c8", pa.array([-1, *shuffled["c8"].to_pylist()[1:]]))
    gone, came = rowdiff.cancel(table, changed)
    assert came.to_pylist() == changed.slice(0, 1).to_pylist()
    assert gone.to_pylist() == shuffled.slice(0, 1).to_pylist()


def test_of_rows_with_one_key_the_first_goes_with_the_first() -> None:
    left = pa.table({"k": [1, 2, 1], "v": ["a", "b", "c"]})
    right = pa.table({"k": [3, 1, 1, 1], "v": ["x", "d", "e", "f"]})
    of_left, of_right = rowdiff.match(left, right, ["k"])
    assert of_left.tolist() == [0, 2]
    assert of_right.tolist() == [1, 2]
