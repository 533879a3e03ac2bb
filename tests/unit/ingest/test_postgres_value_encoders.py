"""Values as Postgres writes them, as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from thermocline.ingest.postgres.value_encoders import PgType, ValueEncoders

TYPES = {
    1: PgType("text", True, "S"),
    2: PgType("int4", True, "N"),
    3: PgType("_text", True, "A", element=1),
    4: PgType("_int4", True, "A", element=2),
    5: PgType("box", True, "G"),
    6: PgType("_box", True, "A", element=5, delimiter=";"),
    7: PgType("ints", False, "A", base=4),
    8: PgType("bit", True, "V"),
    9: PgType("int2vector", True, "A", element=2),
    10: PgType("money", True, "N"),
    11: PgType("float8", True, "N"),
}


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (3, "{}", []),
        (3, '{a,NULL,"NULL","","a,b","{}","\\"","\\\\"}',
         ["a", None, "NULL", "", "a,b", "{}", '"', "\\"]),
        (3, "{{a},{b}}", "{{a},{b}}"),
        (3, "[0:1]={a,b}", "[0:1]={a,b}"),
        (3, "{{}}", "{{}}"),
        (4, "{1,NULL,-3}", [1, None, -3]),
        (6, "{(1,2),(3,4);(5,6),(7,8)}", ["(1,2),(3,4)", "(5,6),(7,8)"]),
        (7, "{1,2}", [1, 2]),
        (9, "1 2", "1 2"),
        (10, "-$1,234.50", "-1234.50"),
        (10, "1.234,50 €", "1.234,50 €"),
        (11, "-0", -0.0),
        (11, "NaN", "NaN"),
        (99, "{x}", "{x}"),
    ],
)  # fmt: skip
def test_a_value_is_kept(type_: int, text: str, value: Any) -> None:
    found = json.loads(ValueEncoders(TYPES.get).for_type(type_, -1)(text))
    assert found == value and str(found) == str(value)


def test_a_single_bit_is_a_truth_and_several_are_text() -> None:
    encoders = ValueEncoders(TYPES.get)
    assert encoders.for_type(8, 1)("1") == "true"
    assert encoders.for_type(8, 8)("00000001") == '"00000001"'
