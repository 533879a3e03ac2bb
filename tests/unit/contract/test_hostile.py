"""Whatever a contract file holds, the answer is a contract or a list of problems with lines."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from thermocline.contract import load_contract
from thermocline.errors import ContractError

CONTRACT = yaml.safe_load("""\
apiVersion: v3.1.0
kind: DataContract
id: a
version: 1.2.0
description: {purpose: x}
tags: [a]
team: [{username: me}]
schema:
  - name: orders
    physicalName: orders
    properties:
      - {name: id, logicalType: string, required: true, primaryKey: true, primaryKeyPosition: 1}
      - {name: at, physicalType: timestamptz, required: true, partitioned: true,
         customProperties: [{property: transform, value: day}]}
      - {name: total, physicalType: "decimal(12,2)", logicalTypeOptions: {minimum: 0, maximum: 9}}
      - {name: code, logicalType: string, enum: [{value: a}], unique: true,
         logicalTypeOptions: {pattern: a, minLength: 1}, relationships: [{to: a.b.c}],
         quality: [{type: sql, query: "select {property} from {object}", mustBe: 0}]}
      - {name: items, logicalType: array, items: {logicalType: object,
         properties: [{name: sku, logicalType: string}]}}
      - {name: m, logicalType: map, map: {key: {logicalType: string}, value: {logicalType: date}}}
    relationships: [{from: [id, code], to: [a.x, a.y]}]
    quality:
      - {metric: duplicateValues, arguments: {properties: [id]}, mustBe: 0}
      - {metric: invalidValues, arguments: {property: total, min: 0}, unit: percent}
      - {metric: missingValues, arguments: {property: code, missingValues: [""]}}
      - {metric: freshness, arguments: {property: at, within: 2h}}
      - {metric: rowCount, mustBeBetween: [1, 2], severity: warning, name: x}
slaDefaultElement: at
slaProperties: [{property: latency, value: 5, unit: m}, {property: retention, value: P1D}]
customProperties:
  - {property: write, value: merge}
  - {property: orderBy, value: [at]}
  - {property: sortBy, value: [at desc]}
  - {property: dropped, value: [old.x]}
  - {property: deleteWhen, value: a = 1}
  - {property: hot, value: 7d}
""")


def _places(value, at=()):
    yield at
    if isinstance(value, dict | list):
        for key, below in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(below, (*at, key))


PLACES = [place for place in _places(CONTRACT) if place]
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
    | st.sampled_from(["id", "at", "a.b", "day", "bucket[0]", "merge", "list<int>", "\u202e", "{"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.text(max_size=4) | st.sampled_from(["name", "property", "value", "type"]), inner,
        max_size=3),
    max_leaves=6,
)  # fmt: skip


@st.composite
def mangled(draw):
    data = deepcopy(CONTRACT)
    for place in draw(st.lists(st.sampled_from(PLACES), min_size=1, max_size=3)):
        parent = data
        try:
            for step in place[:-1]:
                parent = parent[step]
            if draw(st.booleans()) and isinstance(parent, dict):
                parent.pop(place[-1], None)
            else:
                parent[place[-1]] = draw(junk)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took this place away
    return yaml.safe_dump(data)


def test_the_contract_to_mangle_is_good():
    assert _load(yaml.safe_dump(CONTRACT)) == []


@settings(max_examples=80, deadline=None)
@given(mangled())
def test_a_mangled_contract_is_read_or_refused_with_lines(text):
    lines = text.count("\n") + 1
    for problem in _load(text):
        assert 1 <= problem.line <= lines
        assert problem.path == "contracts/silver/orders.odcs.yaml"
        assert str(problem).isprintable()
        assert len(str(problem)) < 1000


def _load(text: str) -> list:
    with TemporaryDirectory() as folder:
        path = Path(folder, "contracts", "silver", "orders.odcs.yaml")
        path.parent.mkdir(parents=True)
        path.write_text(text)
        try:
            load_contract(path)
        except ContractError as error:
            return error.problems
        return []
