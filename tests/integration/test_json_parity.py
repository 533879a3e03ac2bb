"""JSON that the Arrow lane reads as unambiguous has the same values as in Spark."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.ingest import json_records

from thermocline.contract.definition import Contract, DriftMode, Rule
from thermocline.engine.arrow import normalize
from thermocline.ingest.feed import LINES_SCHEMA, Pull, _make_reader
from thermocline.ingest.kafka.message_text import add_text
from thermocline.ingest.kafka.source import KafkaSettings
from thermocline.ingest.unambiguous_json import NeedsSpark, UnambiguousJsonReader
from thermocline.ingest.validation import BAD, HAS_DRIFT, POSITION

REACH = KafkaSettings("", ("t",))
MESSAGES = LINES_SCHEMA.replace("__tc_raw string, __tc_flaw string, ", "")


def by_spark(spark: Any, contract: Contract, payloads: list[bytes]) -> list[dict[str, Any]]:
    """Each record as Spark judges it."""
    rows = [(0, n, None, None, None, payload) for n, payload in enumerate(payloads)]
    messages = spark.createDataFrame(rows, MESSAGES)
    lines = add_text(messages, REACH, None, contract)
    judged = _make_reader(Pull((), lambda only: lines, {}))(contract, None)
    columns = [column.name for column in contract.columns]
    found = judged.select(POSITION, BAD, HAS_DRIFT, *columns).toArrow()
    return sorted(exact(found), key=lambda row: row[POSITION])


def by_arrow(plain: UnambiguousJsonReader, payload: bytes) -> dict[str, Any] | None:
    try:
        [row] = exact(plain.read_payloads([payload]))
    except NeedsSpark:
        return None
    return row


def exact(table: pa.Table) -> list[dict[str, Any]]:
    """Rows to the bit: days and microseconds as numbers, doubles with their sign."""
    plain = normalize(table)
    bits = {pa.date32(): pa.int32(), pa.float64(): pa.int64()}
    columns = []
    for each in plain.columns:
        if pa.types.is_nested(each.type):
            each = pa.chunked_array([pa.array(map(repr, each.to_pylist()), pa.string())])
        elif pa.types.is_timestamp(each.type):
            each = each.cast(pa.int64())
        else:
            each = pa.chunked_array([c.view(bits.get(each.type, each.type)) for c in each.chunks])
        columns.append(each)
    return pa.table(columns, plain.column_names).to_pylist()


def compared(spark: Any, contract: Contract, payloads: list[bytes]) -> int:
    """How many records both read, and every one of them alike."""
    plain, both = UnambiguousJsonReader(contract), 0
    for payload, theirs in zip(payloads, by_spark(spark, contract, payloads), strict=True):
        ours = by_arrow(plain, payload)
        if ours is None:
            continue
        both += 1
        assert not theirs[BAD], payload
        assert not theirs[HAS_DRIFT], payload
        for name, value in ours.items():
            assert value == theirs[name], (payload, name)
    return both


@settings(
    max_examples=8, deadline=None, database=None,
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
@given(st.lists(json_records.payloads(), min_size=300, max_size=600))
def test_any_record_is_declined_or_read_as_spark_reads_it(
    spark: Any, payloads: list[bytes]
) -> None:
    assert compared(spark, json_records.contract(), payloads) > 0


def test_every_odd_value_in_every_column(spark: Any) -> None:
    values = [*json_records.NUMBERS, *json_records.WRITTEN]
    values += [json.dumps(text) for text in json_records.TEXTS]
    payloads = [
        f'{{"{column.name}":{value}}}'.encode()
        for column in json_records.COLUMNS
        for value in values
    ]
    assert compared(spark, json_records.contract(), payloads) > 300


RULES = (
    Rule("accepted", ("s",), (("values", ("a", "é", "null", "1.5")),)),
    Rule("range", ("i",), (("min", -5), ("max", 1000000))),
    Rule("range", ("m",), (("min", 0),)),
    Rule("range", ("ts",), (("min", "2000-01-01T00:00:00Z"),)),
    Rule("length", ("s",), (("max", 3),)),
    Rule("missing", ("l",), (("values", (0,)),)),
)


@pytest.mark.parametrize("drift", list(DriftMode))
def test_rules_and_policies_stop_the_same_records(spark: Any, drift: DriftMode) -> None:
    contract = json_records.contract(drift, rules=RULES, key=("i",))
    base = '"i":7,"l":1'
    values = [*json_records.NUMBERS[:40], *(json.dumps(text) for text in json_records.TEXTS)]
    others = [c.name for c in json_records.COLUMNS if c.name not in {"i", "l"}]
    texts = [f'{{{base},"{name}":{value}}}' for name in others for value in values]
    texts += [f'{{"i":{value},"l":1}}' for value in values]
    texts += [f'{{"i":1,"l":{value}}}' for value in (*values, "null")]
    texts += [f'{{{base},"z":1}}', f"{{{base}}}", '{"l":1}', '{"i":null,"l":1}']
    assert compared(spark, contract, [text.encode() for text in texts]) > 100
