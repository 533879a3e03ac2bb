"""The reference page knows everything that is accepted, and its example is a contract."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from thermocline.contract import load_contract, parse_type
from thermocline.contract.definition import (
    INGEST_COLUMNS,
    SCD2_COLUMNS,
    DriftMode,
    IncrementalMode,
    UpdateMode,
    WriteMode,
)
from thermocline.contract.odcs import quality
from thermocline.contract.odcs.bounds import OPERATORS
from thermocline.contract.odcs.columns import TRANSFORMS
from thermocline.contract.odcs.custom_properties import COLUMN_SETTINGS, TABLE_SETTINGS
from thermocline.contract.type_syntax import SYNONYMS
from thermocline.contract.types import PRIMITIVES

PAGE = (Path(__file__).parents[3] / "docs" / "contracts.md").read_text()
CODE = set(re.findall(r"`([^`\n]+)`", PAGE))
WORDS = {word for code in CODE for word in re.findall(r"[A-Za-z_][\w-]*", code)}


@pytest.mark.parametrize(
    "words",
    [
        TABLE_SETTINGS, COLUMN_SETTINGS, OPERATORS, TRANSFORMS, quality.METRICS, PRIMITIVES,
        [*WriteMode, *UpdateMode, *DriftMode, *IncrementalMode],
        [column.name for column in (*INGEST_COLUMNS, *SCD2_COLUMNS)],
        [argument for argument in quality.ARGUMENTS if argument != "property"],
    ],
)  # fmt: skip
def test_everything_accepted_is_on_the_page(words):
    assert set(words) - WORDS == set()


def test_every_spelling_of_a_type_is_on_the_page():
    local = {"timestamp with local time zone"}
    assert set(SYNONYMS) - CODE - local == set()


def test_every_type_on_the_page_is_one():
    table = PAGE.split("### Types")[1].split("\n\n")[1]
    for row in table.splitlines()[2:]:
        for code in re.findall(r"`([^`]+)`", row.split("|")[1]):
            parse_type(code.replace("(p,s)", "(9,2)").replace("[n]", "[8]"))


def test_the_example_is_a_contract(write):
    example = re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    assert example is not None
    contract = load_contract(write(example[1]))
    assert contract.table == "silver.orders"
    assert [rule.title for rule in contract.rules] == [
        "accepted(status)", "range(net_amount)", "duplicates(order_id)", "missing(email)",
    ]  # fmt: skip
