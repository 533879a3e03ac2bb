"""What may differ between DuckDB and Spark is named, and everything in the shop is alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from thermocline.contract import Contract, load_contracts
from thermocline.transform import engine_parity
from thermocline.transform.models import load_models, parse_query

SHOP = Path(__file__).resolve().parents[3] / "examples" / "shop"
KNOWN = {
    "bronze.odd": {
        "i": "int", "d": "decimal(12,2)", "f": "double", "s": "string", "day": "date",
        "tz": "timestamptz", "u": "uuid", "items": "list<struct<price: decimal(10,2)>>",
    }
}  # fmt: skip
DIFFERENT = {
    "d / 2": "div",
    "avg(i)": "avg",
    "cast(d as integer)": "cast of decimal",
    "cast(f as varchar)": "cast of double",
    "cast(tz as varchar)": "cast of timestamptz",
    "cast(u as varchar)": "cast of unknown",
    "round(f, 1)": "round of double",
    "sum(f)": "sum of double",
    "d * d * d * d": "mul of decimal",
    "date_diff('month', day, tz)": "datediff of",
    "now()": "now",
    "md5(s)": "md5",
    "upper(s)": "upper",
    "some_function(i)": "some_function",
    "i // d": "intdiv of integer and decimal",
    "1e3 * i": "mul of double and integer",
    "list_sum(items)": "list_sum",
    "try_cast(s as integer)": "try_cast",
    "(select max(i) from bronze.odd limit 1)": "limit",
    "sum(i) over (order by i range between 1 preceding and current row)": "windowspec",
}


@pytest.mark.parametrize("value", DIFFERENT)
def test_what_may_differ_is_named(value: str) -> None:
    query = parse_query(f"select {value} as v from bronze.odd")
    said = engine_parity.find_difference(query, KNOWN)
    assert said is not None and said.startswith(DIFFERENT[value])


def test_a_column_that_is_not_known_has_no_type_to_trust() -> None:
    assert (
        engine_parity.find_difference(parse_query("select x + 1 as v from bronze.odd"), KNOWN)
        is not None
    )


@pytest.mark.parametrize(
    ("condition", "said"),
    [(None, None), ("_op = 'd'", None), ("gone", None),
     ("op in ('d', 't') and not kept", None), ("pmod(i, 2) = 1", "deleteWhen with pmod")],
)  # fmt: skip
def test_the_condition_of_deletes_is_looked_at_too(condition: str | None, said: str | None) -> None:
    contract = Contract("silver.t", (), delete_when=condition)
    assert engine_parity.find_delete_difference(contract) == said


def test_every_query_of_the_shop_is_alike() -> None:
    contracts = load_contracts(SHOP / "contracts")
    models = load_models(SHOP / "models", contracts).values()
    for model in (model for model in models if model.is_sql):
        columns = {
            source: {column.name: str(column.type) for column in contracts[source].table_columns}
            for source in model.sources
        }
        assert engine_parity.find_difference(model.query(), columns) is None, model.table
        assert engine_parity.find_delete_difference(model.contract) is None
