"""Avro files keep every value to the last byte, held against another library's reading."""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from itertools import count
from typing import Any

import fastavro
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thermocline.lake import avro

PLAIN: dict[str, st.SearchStrategy[Any]] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=40),
    "string": st.text(max_size=20),
}


@st.composite
def typed(draw: st.DrawFn, depth: int = 2) -> tuple[Any, st.SearchStrategy[Any]]:
    """A schema, and what gives values of it."""
    kinds = ["plain", "fixed", "enum"] + ["record", "array", "map", "optional"] * (depth > 0)
    kind = draw(st.sampled_from(kinds))
    name = "n"
    if kind == "plain":
        plain = draw(st.sampled_from(sorted(PLAIN)))
        said = draw(st.sampled_from([plain, {"type": plain, "doc": "x"}]))
        return said, PLAIN[plain]
    if kind == "fixed":
        size = draw(st.integers(1, 20))
        fixed = {"type": "fixed", "name": name, "size": size}
        return fixed, st.binary(min_size=size, max_size=size)
    if kind == "enum":
        return {"type": "enum", "name": name, "symbols": ["A", "B"]}, st.sampled_from(["A", "B"])
    inner, values = draw(typed(depth - 1))
    if kind == "array":
        return {"type": "array", "items": inner}, st.lists(values, max_size=3)
    if kind == "map":
        keys = st.text(max_size=3)
        return {"type": "map", "values": inner}, st.dictionaries(keys, values, max_size=3)
    if kind == "optional" and inner != "null" and not isinstance(inner, list):
        if isinstance(inner, dict) and inner["type"] == "null":
            return inner, values
        order = draw(st.booleans())
        return (["null", inner] if order else [inner, "null"]), st.none() | values
    others = draw(st.lists(typed(depth - 1), max_size=2))
    fields = {f"f{n}": each for n, each in enumerate([(inner, values), *others])}
    listed = [{"name": f, "type": kind, "field-id": 7} for f, (kind, _) in fields.items()]
    schema = {"type": "record", "name": name, "fields": listed}
    return schema, st.fixed_dictionaries({f: each for f, (_, each) in fields.items()})


def name_apart(schema: Any, numbers: Iterator[int]) -> None:
    """Give every named type a name of its own."""
    for each in (
        schema if isinstance(schema, list) else [schema] if isinstance(schema, dict) else ()
    ):
        if isinstance(each, dict):
            if each.get("name") == "n":
                each["name"] = f"n{next(numbers)}"
            for inner in ("items", "values", "type"):
                name_apart(each.get(inner), numbers)
            for field in each.get("fields", ()):
                name_apart(field["type"], numbers)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_another_library_reads_what_it_wrote_before(data: st.DataObject) -> None:
    kind, values = data.draw(typed())
    schema = {"type": "record", "name": "top", "fields": [{"name": "it", "type": kind}]}
    name_apart(schema, count())
    records = [{"it": each} for each in data.draw(st.lists(values, max_size=5))]
    codec = data.draw(st.sampled_from(["null", "deflate"]))
    stream = BytesIO()
    fastavro.writer(stream, schema, records, codec=codec, metadata={"partition-spec": "[]"})
    found = avro.read(stream.getvalue())
    again = avro.dump(found)
    assert avro.read(again) == found
    assert avro.dump(avro.read(again)) == again
    before, after = fastavro.reader(BytesIO(stream.getvalue())), fastavro.reader(BytesIO(again))
    assert list(after) == list(before)
    assert after.metadata == before.metadata


def test_logical_types_stay_what_is_in_the_file() -> None:
    date = {"type": "int", "logicalType": "date"}
    schema = {"type": "record", "name": "r", "fields": [{"name": "day", "type": ["null", date]}]}
    stream = BytesIO()
    fastavro.writer(stream, schema, [{"day": 20_000}, {"day": None}])
    found = avro.read(stream.getvalue())
    assert found.records == [{"day": (1, 20_000)}, {"day": (0, None)}]
    far = avro.AvroFile(found.metadata, [{"day": (1, 2**31 - 1)}])  # no day that Python has
    assert avro.read(avro.dump(far)).records == far.records


@pytest.mark.parametrize("cut", [2, 30, -1, -20])
def test_a_file_that_was_cut_off_is_refused(cut: int) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "x", "type": "string"}]}
    stream = BytesIO()
    fastavro.writer(stream, schema, [{"x": "abc" * 20}])
    with pytest.raises(ValueError, match=r"Avro|damaged"):
        avro.read(stream.getvalue()[:cut])
