"""A table's metadata as plain values."""

from __future__ import annotations

from typing import Any

import pytest

from thermocline.lake.metadata import TableState


def state(*schemas: list[Any]) -> TableState:
    """A table that had these schemas, each a list of its columns' types."""
    raw = [
        {"type": "struct", "schema-id": number,
         "fields": [{"id": at, "name": f"c{at}", "type": kind} for at, kind in enumerate(kinds)]}
        for number, kinds in enumerate(schemas)
    ]  # fmt: skip
    return TableState("silver.t", "m.json", {"schemas": raw, "current-schema-id": len(raw) - 1})


def member(kind: Any) -> dict[str, Any]:
    return {"type": "struct", "fields": [{"id": 9, "name": "m", "type": kind}]}


def within(kind: Any) -> list[Any]:
    return [
        kind, member(kind),
        {"type": "list", "element": kind}, {"type": "list", "element": member(kind)},
        {"type": "map", "key": kind, "value": "long"},
        {"type": "map", "key": "long", "value": kind},
        member({"type": "list", "element": {"type": "map", "key": "int", "value": member(kind)}}),
    ]  # fmt: skip


@pytest.mark.parametrize("kind", ["float", "double"])
def test_fractions_are_found_at_whatever_depth_and_in_old_schemas(kind: str) -> None:
    for each in within(kind):
        assert state(["long", each]).may_hold_nan
        assert state([each], ["long"]).may_hold_nan, "files of the old schema are still read"


@pytest.mark.parametrize("kind", ["long", "string", "decimal(12, 2)", "timestamptz", "fixed[4]"])
def test_other_types_hold_no_nan(kind: str) -> None:
    assert not any(state(["long", each]).may_hold_nan for each in within(kind))
