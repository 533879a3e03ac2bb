"""One table and every kind of rule, holding and broken, with the numbers a person would count.

The same cases run on DuckDB in the unit tests and on Spark in the integration tests.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal as Number
from typing import Any

import pyarrow as pa

from thermocline.contract.definition import Column, Contract, Rule
from thermocline.contract.types import Decimal, Field, Primitive, Struct

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NAN = float("nan")
INFINITE = float("inf")

COLUMNS = (
    Column("id", Primitive("long"), required=True),
    Column("code", Primitive("string")),
    Column("amount", Decimal(12, 2)),
    Column("score", Primitive("double")),
    Column("ratio", Primitive("float")),
    Column("day", Primitive("date")),
    Column("made_at", Primitive("timestamptz")),
    Column("local_at", Primitive("timestamp")),
    Column("paid", Primitive("boolean")),
    Column("customer", Primitive("int")),
    Column("address", Struct((Field("zip", Primitive("string")),))),
    Column("weird `\"' ${x}; näme", Primitive("string")),
)
KNOWN = {
    "silver.things": {column.name: str(column.type) for column in COLUMNS},
    "silver.customers": {"id": "int", "code": "string"},
}
"""The columns of the tables that the rules read."""
_ZONED = pa.timestamp("us", "UTC")
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("code", pa.string()),
        ("amount", pa.decimal128(12, 2)),
        ("score", pa.float64()),
        ("ratio", pa.float32()),
        ("day", pa.date32()),
        ("made_at", _ZONED),
        ("local_at", pa.timestamp("us")),
        ("paid", pa.bool_()),
        ("customer", pa.int32()),
        ("address", pa.struct([("zip", pa.string())])),
    ]
)


def _row(id_: int, code: str | None, amount: str | None, score: float | None, *rest: Any) -> Any:
    ratio, day, paid, customer, zip_ = rest
    made = None if day is None else datetime(2026, 3, day, 11, 59, 30, tzinfo=UTC)
    return {
        "id": id_,
        "code": code,
        "amount": None if amount is None else Number(amount),
        "score": score,
        "ratio": ratio,
        "day": None if day is None else date(2026, 3, day),
        "made_at": made,
        "local_at": None if made is None else made.replace(tzinfo=None),
        "paid": paid,
        "customer": customer,
        "address": {"zip": zip_},
    }


ROWS = [
    _row(1, "aa", "0.00", 0.0, 0.1, 1, True, 10, "1011"),
    _row(2, "aa", "10.50", -0.0, 0.5, 1, False, 20, "10"),
    _row(2, "b'\\b", "-0.01", NAN, NAN, 1, None, 30, None),
    _row(3, "", "99.99", INFINITE, 1.0, None, True, None, "2022"),
    _row(4, None, None, None, None, None, None, 10, "x"),
    _row(5, "é😀${env:HOME}\n", "100.00", 1e-300, 0.25, 1, False, 10, "3033"),
]
TABLE = pa.Table.from_pylist(ROWS, schema=SCHEMA)
CUSTOMERS = pa.table({"id": pa.array([10, 20, None], pa.int32()), "code": ["aa", "zz", None]})


def contract(*rules: Rule, columns: tuple[Column, ...] = COLUMNS[:-1], **more: Any) -> Contract:
    """A contract of the table with these rules; without them it demands only an id."""
    return Contract("silver.things", columns, rules=rules, **more)


def rule(kind: str, *columns: str, **said: Any) -> Rule:
    """A rule in short: bounds, unit, severity and name are themselves, the rest are arguments."""
    own = {key: said.pop(key) for key in ("bounds", "unit", "severity", "name") if key in said}
    return Rule(kind, columns, tuple(said.items()), **own)


@dataclass(frozen=True)
class Case:
    """A rule and what it must find in the table."""

    rule: Rule
    metric: Any
    holds: bool
    breaking: int | None
    sample: tuple[dict[str, Any], ...] = ()


def sql(query: str, *columns: str, **said: Any) -> Rule:
    """A custom rule."""
    return rule("sql", *columns, query=query, **said)


CASES = {
    "missing: none": Case(rule("missing", "id"), 0, True, 0),
    "missing: one null": Case(rule("missing", "code"), 1, False, 1, ({"code": None},)),
    "missing: stand-ins": Case(rule("missing", "code", values=["", "zz"]), 2, False, 2),
    "missing: stand-in of another type": Case(
        rule("missing", "customer", values=["N/A", 30]), 2, False, 2
    ),
    "missing: tolerated share": Case(
        rule("missing", "code", unit="percent", bounds=(("mustBeLessThan", 17),)),
        100 / 6,
        True,
        1,
    ),
    "missing: too large a share": Case(
        rule("missing", "code", unit="percent", bounds=(("mustBeLessThan", 16.6),)),
        100 / 6,
        False,
        1,
    ),
    "missing: in a struct": Case(rule("missing", "address.zip"), 1, False, 1),
    "duplicates: one pair": Case(rule("duplicates", "id"), 2, False, 2, ({"id": 2, "_rows": 2},)),
    "duplicates: nulls are not alike": Case(rule("duplicates", "made_at", "code"), 2, False, 2),
    "duplicates: both columns": Case(rule("duplicates", "id", "code"), 0, True, 0),
    "duplicates: the two zeros are one, NaN is one": Case(rule("duplicates", "score"), 2, False, 2),
    "row count: exact": Case(rule("row_count", bounds=(("mustBe", 6),)), 6, True, None),
    "row count: too few": Case(
        rule("row_count", bounds=(("mustBeGreaterThan", 6),)), 6, False, None
    ),
    "row count: between, ends included": Case(
        rule("row_count", bounds=(("mustBeBetween", (6, 9)),)), 6, True, None
    ),
    "row count: not between": Case(
        rule("row_count", bounds=(("mustNotBeBetween", (6, 9)),)), 6, False, None
    ),
    "row count: several bounds": Case(
        rule("row_count", bounds=(("mustBeGreaterOrEqualTo", 6), ("mustNotBe", 6))),
        6,
        False,
        None,
    ),
    "accepted: all": Case(rule("accepted", "customer", values=[10, 20, 30]), 0, True, 0),
    "accepted: strings with quotes and backslashes": Case(
        rule("accepted", "code", values=["aa", "b'\\b", "é😀${env:HOME}\n"]),
        1,
        False,
        1,
        ({"code": ""},),
    ),
    "accepted: a value no column can hold": Case(
        rule("accepted", "customer", values=[10.5, 10]), 2, False, 2
    ),
    "accepted: decimals": Case(
        rule("accepted", "amount", values=[0, "10.50", 99.99, 100, "0.001"]), 1, False, 1
    ),
    "accepted: floats by their own precision": Case(
        rule("accepted", "ratio", values=[0.1, 0.5, 1, 0.25]), 1, False, 1
    ),
    "accepted: zeros, long list": Case(
        rule("accepted", "score", values=[0, *range(1, 20), 1e-300, INFINITE]), 1, False, 1
    ),
    "accepted: booleans": Case(rule("accepted", "paid", values=[True]), 2, False, 2),
    "accepted: dates": Case(
        rule("accepted", "day", values=["2026-03-01", date(2026, 3, 2)]), 0, True, 0
    ),
    "range: decimal": Case(
        rule("range", "amount", min=0, max=100), 1, False, 1, ({"amount": Number("-0.01")},)
    ),
    "range: bound between two decimals": Case(
        rule("range", "amount", min="-0.005", max=99.995), 2, False, 2
    ),
    "range: exclusive": Case(
        rule("range", "amount", exclusive_min=-0.01, exclusive_max=100), 2, False, 2
    ),
    "range: beyond the type": Case(rule("range", "amount", min=-(10**40), max=1e300), 0, True, 0),
    "range: beyond the type, other side": Case(rule("range", "amount", min=10**40), 5, False, 5),
    "range: NaN is outside, -0.0 is 0": Case(rule("range", "score", min=0), 1, False, 1),
    "range: infinity is large": Case(rule("range", "score", max=1e308), 2, False, 2),
    "range: float": Case(rule("range", "ratio", min=0.1, max=1), 1, False, 1),
    "range: whole numbers and a fraction": Case(
        rule("range", "customer", min=10.5, max=29.5), 4, False, 4
    ),
    "range: dates": Case(rule("range", "day", min="2026-03-02"), 4, False, 4),
    "range: moments": Case(
        rule("range", "made_at", min="2026-03-01T13:59:30+02:00", max="2026-03-01 11:59:30"),
        0,
        True,
        0,
    ),
    "range: local times": Case(
        rule("range", "local_at", exclusive_max="2026-03-01T11:59:30"), 4, False, 4
    ),
    "length: characters, not bytes": Case(rule("length", "code", min=1, max=4), 2, False, 2),
    "pattern: part of the text": Case(rule("pattern", "code", pattern="a"), 3, False, 3),
    "pattern: whole text": Case(rule("pattern", "code", pattern="^a+$"), 3, False, 3),
    "pattern: the end is the end": Case(rule("pattern", "code", pattern=r"\}$"), 5, False, 5),
    "pattern: quotes and dollars": Case(
        rule("pattern", "code", pattern=r"^$|'|a|\$\{env:HOME\}"), 0, True, 0
    ),
    "pattern: in a struct": Case(rule("pattern", "address.zip", pattern="^[0-9]{4}$"), 2, False, 2),
    "reference: not there": Case(
        rule("reference", "customer", table="silver.customers", columns=("id",)),
        1,
        False,
        1,
        ({"customer": 30},),
    ),
    "reference: all there": Case(
        rule(
            "reference",
            "customer",
            table="silver.customers",
            columns=("id",),
            bounds=(("mustBeLessOrEqualTo", 1),),
        ),
        1,
        True,
        1,
    ),
    "reference: two columns": Case(
        rule("reference", "customer", "code", table="silver.customers", columns=("id", "code")),
        3,
        False,
        3,
    ),
    "reference: to itself": Case(
        rule("reference", "customer", table="silver.things", columns=("id",)), 5, False, 5
    ),
    "freshness: fresh": Case(
        rule("freshness", "made_at", within=timedelta(seconds=30)), 30.0, True, None
    ),
    "freshness: stale": Case(
        rule("freshness", "made_at", within=timedelta(seconds=29)), 30.0, False, None
    ),
    "freshness: local time is UTC": Case(
        rule("freshness", "local_at", within=timedelta(seconds=30)), 30.0, True, None
    ),
    "freshness: a day begins at midnight": Case(
        rule("freshness", "day", within=timedelta(hours=12)), 43200.0, True, None
    ),
    "sql: count": Case(
        sql("select count(*) from {object} where amount < 0"),
        1,
        False,
        None,
        ({"amount": Number("-0.01")},),
    ),
    "sql: count in the same pass": Case(
        sql(
            "select count(*) from {object} o where o.address.zip = 'x' or o.code = ''",
            bounds=(("mustBe", 2),),
        ),
        2,
        True,
        None,
    ),
    "sql: count of a join": Case(
        sql(
            "select count(*) from {object} join silver.customers "
            "on silver.customers.id = {object}.customer where silver.customers.code = 'zz'"
        ),
        1,
        False,
        None,
    ),
    "sql: count of what is nowhere": Case(
        sql(
            "select count(*) from {object} where customer not in "
            "(select id from silver.customers where id is not null)"
        ),
        1,
        False,
        None,
    ),
    "sql: property": Case(
        sql(
            "SELECT max({property}) - min({object}.{property}) FROM {object}",
            "customer",
            bounds=(("mustBeBetween", (20, 20)),),
        ),
        20,
        True,
        None,
    ),
    "sql: other tables, WITH and alias": Case(
        sql(
            "with known as (select id from silver.customers where id is not null) "
            "select count(*) as n from {object} o join known k on k.id = o.customer",
            bounds=(("mustBe", 4),),
        ),
        4,
        True,
        None,
    ),
    "sql: a truncated time, not there in two rows": Case(
        sql(
            "select count(*) from {object} "
            "where date_trunc('month', local_at) <> timestamp '2026-03-04 00:00:00'",
            bounds=(("mustBe", 4),),
        ),
        4,
        True,
        None,
    ),
    "sql: no value": Case(
        sql("select sum(amount) from {object} where id > 99", bounds=(("mustBeLessThan", 5),)),
        None,
        False,
        None,
    ),
    "sql: a fraction": Case(
        sql("select avg(customer) from {object}", bounds=(("mustBe", 16),)), 16.0, True, None
    ),
    "sql: a decimal": Case(
        sql("select max(amount) from {object}", bounds=(("mustBe", 100),)),
        Number("100.00"),
        True,
        None,
    ),
}
