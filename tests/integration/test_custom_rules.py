"""A custom rule finds the same on DuckDB and on Spark, or is left to DuckDB, whatever it says."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from thermocline.check import table_checks
from thermocline.check.compiler import compile_checks, evaluate
from thermocline.check.gate import check
from thermocline.check.rule_result import RuleOutcome
from thermocline.engine.arrow import normalize
from thermocline.engine.spark import TRANSLATED_SQL_CONF
from thermocline.errors import ContractError
from thermocline.lake import Lake

CASES = Path(__file__).parents[1] / "unit" / "check" / "cases.py"
cases = SimpleNamespace(**runpy.run_path(str(CASES)))
REFERENCES = {"silver.customers": "customers"}

NUMBERS = [
    "id", "amount", "score", "ratio", "customer", "length({t})", "cast({n} as integer)",
    "cast({n} as bigint)", "round({n})", "round({n}, 1)", "floor({n})", "abs({n})", "{n} / {n}",
    "{n} % 3", "{n} // 2", "{n} + {n}", "-{n}", "coalesce({n}, 0)", "greatest({n}, {n})",
    "case when {b} then {n} else {n} end", "extract(year from {d})", "extract(dow from {d})",
    "date_diff('day', {d}, date '2026-03-02')", "date_diff('month', date '2026-01-31', {d})",
    "nullif({n}, 0)", "cast({t} as double)", "try_cast({t} as integer)", "1.5", "0", "-7",
]  # fmt: skip
TEXTS = [
    "code", "address.zip", "upper({t})", "lower({t})", "trim({t})", "substr({t}, 1, 2)",
    "substr({t}, 0, 2)", "substr({t}, -2)", "{t} || {t}", "concat({t}, 'x')", "left({t}, 2)",
    "cast({n} as varchar)", "cast({d} as varchar)", "replace({t}, 'a', 'b')", "reverse({t})",
    "coalesce({t}, '')", "nullif({t}, 'aa')", "'aa'", "'10'", "split_part({t}, 'a', 1)",
]  # fmt: skip
DAYS = [
    "day", "made_at", "local_at", "date_trunc('week', {d})", "date_trunc('month', {d})",
    "{d} + interval 1 month", "cast({d} as date)", "date '2026-03-01'",
]  # fmt: skip
CONDITIONS = [
    "paid", "{n} < {n}", "{n} = {n}", "{n} >= {n}", "{t} < {t}", "{t} = {t}", "{t} like 'a%'",
    "{t} ilike '%A'", "{t} in ('aa', 'zz')", "{n} between 0 and 10", "{b} is not true", "not {b}",
    "({b} and {b})", "({b} or {b})", "{n} is null", "{d} >= {d}", "{n} in (1, 2, null)",
    "{t} is distinct from {t}", "isnan({n})", "regexp_matches({t}, '^a')", "{t} = {n}",
    "exists (select 1 from silver.customers c where c.id = customer)",
]  # fmt: skip
QUERIES = [
    "select count(*) from {object} where {b}",
    "select count(distinct {n}) from {object}",
    "select count(distinct {t}) from {object} where {b}",
    "select max({n}) from {object}",
    "select sum({n}) from {object} where {b}",
    "select count(*) from (select {t} as k from {object} group by 1 having count(*) > 1) r",
    "with r as (select {n} as n, {b} as b from {object}) select count(n) from r where b",
    "select count(*) from {object} o left join silver.customers c on c.id = o.customer"
    " where c.code is null",
    "select count(*) from (select row_number() over (partition by {t} order by id, {n}) as n"
    " from {object}) r where n > 1",
]
KINDS = {"n": NUMBERS, "t": TEXTS, "d": DAYS, "b": CONDITIONS}


def composed(chance: random.Random, text: str, depth: int) -> str:
    """A text with its blanks filled; the deeper, the simpler."""
    for kind, forms in KINDS.items():
        blank = f"{{{kind}}}"
        while blank in text:
            known = forms if depth > 0 else [form for form in forms if "{" not in form]
            text = text.replace(blank, composed(chance, chance.choice(known), depth - 1), 1)
    return text


def verdict(engine: Any, dialect: str, rule: Any) -> RuleOutcome | str:
    """What comes of a rule, or "refused" where it has no statement, "failed" where it fails."""
    contract = cases.contract(rule)
    try:
        compiled = compile_checks(contract, "things", REFERENCES, dialect, cases.NOW, cases.KNOWN)
    except ContractError:
        return "refused"
    try:
        row = engine(compiled.sql).to_pylist()[0]
    except Exception:
        return "failed"
    try:
        return evaluate(compiled, row)[-1]
    except Exception:
        return "failed"


def test_random_rules_find_the_same_on_both_engines(spark: Any) -> None:
    session = spark.newSession()
    for key, value in TRANSLATED_SQL_CONF.items():
        session.conf.set(key, value)
    frame = session.createDataFrame(cases.TABLE)
    frame = frame.withColumn("local_at", frame.local_at.cast("timestamp_ntz"))
    frame.createOrReplaceTempView("things")
    session.createDataFrame(cases.CUSTOMERS).createOrReplaceTempView("customers")
    duck = duckdb.connect(config={"threads": 1})
    duck.execute("SET TimeZone = 'UTC'")
    duck.register("things", cases.TABLE)
    duck.register("customers", cases.CUSTOMERS)

    def on_spark(sql: str) -> pa.Table:
        return normalize(session.sql(sql).toArrow())

    def on_duckdb(sql: str) -> pa.Table:
        return normalize(duck.execute(sql).to_arrow_table())

    chance = random.Random(17)
    translated = 0
    for _ in range(250):
        query = composed(chance, chance.choice(QUERIES), 2)
        rule = cases.sql(query, bounds=(("mustBeLessThan", 3),))
        here = verdict(on_duckdb, "duckdb", rule)
        if isinstance(here, str):
            continue
        there = verdict(on_spark, "spark", rule)
        if there == "refused":
            continue
        translated += 1
        assert isinstance(there, RuleOutcome), query
        assert (there.metric, there.holds) == (here.metric, here.holds), query
    assert translated > 60


@pytest.fixture
def stored(lake: Lake) -> Lake:
    """The cases' tables in a lake."""
    lake.catalog.create_namespace("silver")
    for name, rows in (("things", cases.TABLE), ("customers", cases.CUSTOMERS)):
        lake.catalog.create_table(f"silver.{name}", rows.schema).append(rows)
    return lake


@pytest.mark.parametrize(
    ("query", "engine"),
    [
        # 10.5 is 10 for Spark and 11 for DuckDB, so that the raw text would change the verdict.
        ("select count(*) from {object} where cast(amount as integer) = 11", "spark"),
        ("select count(*) from {object} where strftime(day, '%a') = 'Sun'", "duckdb"),
    ],
)
def test_a_verdict_does_not_depend_on_the_size_of_the_table(
    stored: Lake, monkeypatch: pytest.MonkeyPatch, query: str, engine: str
) -> None:
    contract = cases.contract(cases.sql(query, bounds=(("mustBe", 0),)), key=("id",))
    found = []
    asked: list[str] = []
    for limit in (table_checks.DUCKDB_BYTES, 0):
        monkeypatch.setattr(table_checks, "DUCKDB_BYTES", limit)
        monkeypatch.setattr(
            table_checks, "check", lambda *a: asked.append(a[1].dialect) or check(*a)
        )
        (report,) = table_checks.check_tables(stored, [contract], {})
        found.append([(o.rule, o.metric, o.holds, o.sample) for o in report.outcomes])
    assert found[0] == found[1]
    assert asked == ["duckdb", engine]
    assert not report.passed
    assert found[0][-1][-1]  # with rows that break it
