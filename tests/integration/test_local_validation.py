"""Records validated without Spark: each result and reason equals Spark's."""

from __future__ import annotations

import itertools
import json
import random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tests.integration import lane_files
from tests.unit.ingest import json_records

from thermocline.contract.definition import Contract, DriftMode
from thermocline.engine.arrow import normalize
from thermocline.ingest.arrow.ambiguous import _LINES
from thermocline.ingest.arrow.local_validation import LocalValidator, RawLine
from thermocline.ingest.arrow.text_blocks import decode_line
from thermocline.ingest.layout import Layout
from thermocline.ingest.record_reader import convert_and_validate, parse_records
from thermocline.ingest.unambiguous_json import NeedsSpark
from thermocline.ingest.validation import POSITION

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ONCE = settings(
    max_examples=1, deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip
CSV = Layout("csv", tuple(lane_files.CSV_FIELDS), header=True)
JSON = Layout("jsonl")


def by_spark(
    spark: SparkSession, lines: list[RawLine], layout: Layout, contract: Contract
) -> dict[int, dict[str, Any]]:
    frame = convert_and_validate(
        parse_records(spark.createDataFrame(lines, _LINES), layout, contract), contract
    )
    return {row[POSITION]: row for row in comparable(normalize(frame.toArrow()))}


def comparable(table: pa.Table) -> list[dict[str, Any]]:
    # Python has no date beyond the year 9999; Spark and Arrow do.
    for place, column in enumerate(table.schema):
        if pa.types.is_date(column.type) or pa.types.is_timestamp(column.type):
            plain = table.column(place).cast(
                pa.int32() if pa.types.is_date(column.type) else pa.int64()
            )
            table = table.set_column(place, column.name, plain)
    return [
        {name: repr(value) for name, value in row.items()} | {POSITION: row[POSITION]}
        for row in table.to_pylist()
    ]


def compare(
    spark: SparkSession, texts: list[bytes], layout: Layout, contract: Contract
) -> tuple[int, int]:
    """How many of the records were certain here, and how many were bad; all as by Spark."""
    lines: list[RawLine] = [
        (0, n, *decode_line(text)) for n, text in enumerate(texts, 1) if text.strip(b" \t\r")
    ]
    expected = by_spark(spark, lines, layout, contract)
    few, certain, bad = LocalValidator(contract), 0, 0
    for line in lines:
        try:
            [found] = comparable(normalize(few.validate_lines([line], layout)))
        except NeedsSpark:
            continue
        certain += 1
        theirs = {name: expected[line[1]][name] for name in found}
        bad += found["__tc_bad"] == "True"
        assert found == theirs, line
    return certain, bad


def test_every_scalar_is_read_as_by_spark(spark: SparkSession) -> None:
    """Each nasty text and number in each column, as JSON and as CSV."""
    columns = json_records.COLUMNS[:11]
    contract = Contract("bronze.t", columns, drift=DriftMode.RESCUE, rules=lane_files.RULES)
    names = [column.name for column in columns]
    quoted = [json.dumps(text, ensure_ascii=False) for text in json_records.TEXTS]
    values = [*json_records.NUMBERS, *quoted, "true", "false", "null", "{}", "[1]", '{"a":1.50}']
    rows = [
        f'{{"s":"x1","{name}":{value}}}'.encode("utf-8", "surrogatepass")
        for name, value in itertools.product(names[1:], values)
    ]
    rows += [f'{{"s":{value},"more":{value}}}'.encode() for value in values]
    rows += [
        b"garbage", b'{"i":1', b'{"i":1}}', b'{"i":1},{"i":2}', b'{"i":1} {"i":2}', b"[]", b'"s"',
        b"{'i':1}", b'{"i":1,}', b"{i:1}", b'{"i":1}//x', b"{}", b'{"i":1,"i":2}', b'{"i":',
        b'{"i":[1', b'{"i":1]', b'{"s":"a\tb"}', b'{"s":"\\x"}', b'{"s":"\\ud800"}', b'\xff{}',
        b'{"s":"\\u00e9\\n"}', b'{"l":00012345678901234567}', b"null", b"12", "{“s”:1}".encode(),
    ]  # fmt: skip
    certain, bad = compare(spark, rows, JSON, contract)
    assert certain > len(rows) * 0.6 and bad > 300
    cells = [*json_records.NUMBERS, *(t for t in json_records.TEXTS if '"' not in t)]
    places = [name for name in CSV.fields if name in names]
    lines = []
    for name, cell in itertools.product(places, cells):
        row = ["x" if each == "s" else cell if each == name else "" for each in CSV.fields]
        lines.append(",".join(row).encode())
    lines += [b"1,2", b",".join([b"1"] * 20), b'"', b'a,"b', b'"a""b",1', b"\xff", b'""']
    certain, bad = compare(spark, [line for line in lines if b"\n" not in line], CSV, contract)
    assert certain > len(lines) * 0.6 and bad > 100


@ONCE
@given(csv=st.lists(lane_files.csv_lines(), min_size=150, max_size=150))
def test_random_records_are_judged_as_by_spark(spark: SparkSession, csv: list[bytes]) -> None:
    columns = lane_files.CSV_COLUMNS
    contract = Contract("bronze.t", columns, drift=DriftMode.RESCUE, rules=lane_files.RULES)
    lines = [line for line in csv if b"\n" not in line]
    certain, _ = compare(spark, lines, CSV, contract)
    assert certain > len(lines) // 3
    chance = random.Random(17)
    nested = json_records.contract(rules=lane_files.RULES)
    good = {
        "s": '"a"', "i": "7", "d": "1.5", "m": "2.25", "day": '"2026-03-01"',
        "ts": '"2026-03-01T12:30:45Z"', "o": '{"city":"x","x":1.5}',
        "a": '[{"n":1,"price":2.50,"when":"2026-03-01T12:30:45Z","tags":["t"]}]', "k": "[1,2]",
    }  # fmt: skip
    rows = []
    for _ in range(150):
        row = dict(good)
        for name in chance.sample(list(good), 2):
            row[name] = chance.choice(
                ["null", '"bad"', "5", "[]", "{}", '{"city":"y"}', "[1]", '[{"n":"x"}]', '"x"']
            )
        members = ",".join(f'"{name}":{value}' for name, value in row.items())
        rows.append(f"{{{members}}}".encode())
    certain, bad = compare(spark, rows, JSON, nested)
    assert certain > 10 and bad > 5
