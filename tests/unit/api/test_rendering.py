"""What a person sees of a result in Python, and what completion offers."""

from __future__ import annotations

import pyarrow as pa

import thermocline
from thermocline.api import Result


def test_print_shows_the_rows_aligned() -> None:
    rows = pa.table({"city": ["Bern", None], "n": [1, 1_000]})
    assert str(Result(rows, {})).splitlines() == [
        "city  n",
        "────  ────",
        "Bern  1",
        "null  1000",
        "2 rows",
    ]


def test_long_results_say_how_much_is_shown() -> None:
    lines = str(Result(pa.table({"n": list(range(2_000))}), {})).splitlines()
    assert lines[2] == "0"
    assert lines[-2:] == ["19", "2,000 rows, the first 20 shown"]


def test_a_value_cannot_forge_a_line_or_a_tag() -> None:
    result = Result(pa.table({"a\nb": ["x\n1 row\x1b[2J<b>"]}), {})
    text = str(result)
    assert len(text.splitlines()) == 4 and "\x1b" not in text
    assert "<b>" not in result._repr_html_()


def test_an_empty_result_has_its_columns() -> None:
    empty = pa.table({"n": pa.array([], pa.int64())})
    assert str(Result(empty, {})).splitlines() == ["n", "─", "0 rows"]


def test_completion_offers_the_api() -> None:
    assert {"open", "connect", "Lakehouse", "demo", "init"} <= set(dir(thermocline))
