"""The same rules find the same in DuckDB and in Spark, to the row and to the value."""

from __future__ import annotations

import runpy
from datetime import UTC, date, datetime
from decimal import Decimal as Number
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from thermocline.check.compiler import compile_checks, evaluate
from thermocline.check.gate import check
from thermocline.check.pattern import translate_pattern
from thermocline.check.violating_rows import compile_row_reasons, compile_sample_query
from thermocline.contract.definition import Column, Contract
from thermocline.contract.types import Primitive
from thermocline.engine.arrow import normalize
from thermocline.errors import ContractError

CASES = Path(__file__).parents[1] / "unit" / "check" / "cases.py"
cases = SimpleNamespace(**runpy.run_path(str(CASES)))
REFERENCES = {"silver.customers": "customers"}


class Session:
    """A Spark session as an engine of a check."""

    dialect = "spark"

    def __init__(self, spark: Any) -> None:
        self.spark = spark

    def put(self, name: str, table: pa.Table) -> None:
        frame = self.spark.createDataFrame(table)
        if "local_at" in table.column_names:  # comes as a moment in the session's zone
            frame = frame.withColumn("local_at", frame.local_at.cast("timestamp_ntz"))
        frame.createOrReplaceTempView(name)

    def query(self, sql: str, /) -> pa.Table:
        return normalize(self.spark.sql(sql).toArrow())


class DuckDB:
    """DuckDB as an engine of a check."""

    dialect = "duckdb"

    def __init__(self) -> None:
        self.connection = duckdb.connect(config={"threads": 1})
        self.connection.execute("SET TimeZone = 'UTC'")

    def put(self, name: str, table: pa.Table) -> None:
        self.connection.register("_given", table)
        self.connection.execute(f'CREATE OR REPLACE TABLE "{name}" AS SELECT * FROM _given')
        self.connection.unregister("_given")

    def query(self, sql: str, /) -> pa.Table:
        return normalize(self.connection.execute(sql).to_arrow_table())


@pytest.fixture
def engines(spark: Any) -> tuple[Session, DuckDB]:
    """Both engines, with the table of the cases."""
    made = Session(spark), DuckDB()
    for engine in made:
        engine.put("things", cases.TABLE)
        engine.put("customers", cases.CUSTOMERS)
    return made


def test_every_case_on_spark_in_one_statement(engines):
    session = engines[0]
    every = cases.contract(*(case.rule for case in cases.CASES.values()))
    compiled = compile_checks(every, "things", REFERENCES, "spark", cases.NOW, cases.KNOWN)
    outcomes = evaluate(compiled, session.query(compiled.sql).to_pylist()[0])
    found = {
        name: (outcome.metric, outcome.holds, outcome.breaking_rows)
        for name, outcome in zip(cases.CASES, outcomes[-len(cases.CASES) :], strict=True)
    }
    assert found == {
        name: (case.metric, case.holds, case.breaking) for name, case in cases.CASES.items()
    }


def test_samples_are_the_same_rows(engines):
    broken = [case.rule for case in cases.CASES.values() if not case.holds]
    rules = {(rule.kind, rule.columns): rule for rule in broken}
    contract = cases.contract(*rules.values(), key=("id",))
    reports = [
        check(contract, engine, "things", REFERENCES, cases.NOW, cases.KNOWN) for engine in engines
    ]
    shown = [
        [(outcome.rule, repr(outcome.sample), outcome.message) for outcome in report.outcomes]
        for report in reports
    ]
    assert shown[0] == shown[1]
    assert sum(bool(outcome.sample) for outcome in reports[0].outcomes) > 15


def test_reasons_are_the_same_on_a_dataframe(engines):
    from pyspark.sql.functions import expr

    session, duck = engines
    contract = cases.contract(*(case.rule for case in cases.CASES.values()))
    frame = session.spark.table("things").withColumn(
        "why", expr(compile_row_reasons(contract, "spark"))
    )
    rows = normalize(frame.select("id", "why").toArrow()).to_pylist()
    reasons = compile_row_reasons(contract, "duckdb")
    assert rows == duck.query(f"select id, {reasons} as why from things order by rowid").to_pylist()
    assert rows[0]["why"] != rows[1]["why"]
    empty = Contract("bronze.t", (Column("code", Primitive("string")),))
    nothing = session.spark.table("things").select(
        expr(compile_row_reasons(empty, "spark")).alias("why")
    )
    assert nothing.schema.simpleString() == "struct<why:array<string>>"
    assert {tuple(row.why) for row in nothing.collect()} == {()}


def test_empty_table(engines):
    kinds = [case.rule for case in cases.CASES.values()]
    metrics = []
    for engine in engines:
        engine.put("things", cases.TABLE.slice(0, 0))
        report = check(cases.contract(*kinds), engine, "things", REFERENCES, cases.NOW, cases.KNOWN)
        metrics.append([(o.rule, o.metric, o.holds, o.message) for o in report.outcomes])
    assert metrics[0] == metrics[1]


def test_spark_reads_no_setting_and_runs_no_second_statement(engines):
    session = engines[0]
    session.spark.conf.set("spark.thermocline.canary", "aa")
    values = ["${spark.thermocline.canary}", "'; drop view things; --", "\\", "\\'", "\n"]
    rule = cases.rule("accepted", "code", values=values)
    outcome = check(cases.contract(rule), session, "things", {}, cases.NOW).outcomes[-1]
    assert outcome.metric == 5
    assert session.query("select count(*) as n from things").to_pylist() == [{"n": 6}]


def test_a_custom_rule_that_spark_cannot_run_is_named(engines):
    rule = cases.sql("select count(*) from {object} where no_such_column = 1", name="mine")
    with pytest.raises(
        ContractError, match=r"mine: the query has no equivalent on Spark: .*no_such"
    ):
        check(cases.contract(rule), engines[0], "things", {}, cases.NOW)


PATTERNS = [
    "b", "^abc$", "^$", "$", "a.c", "(?s)a.c", r"^\d+$", r"^\w+$", r"\W", r"a\sb", r"^\S+$",
    r"[\s,]x", r"\bcat\b", r"\b", "(?i)straße", "(?i:É)a", "(?i)k", r"\p{Lu}",
    r"^\pL$", r"\PL", r"^[\x41-\x{43}]$", r"^[^a-c\]\-]$", "^(?P<y>[0-9]{4})-(?<m>[0-9]{2})$",
    "^(?:ab|cd){2,3}?$", r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", "^.$", "^..$", "}]", r"\A\$\{x\}\z",
    "[$]", r"[\d\t-]", "a|^$|x$", "(a|)$", r"\\", r"\"", "'", "^[^x]*$", "(?i)[à-é]",
]  # fmt: skip
TEXTS = [
    "", "\n", "a", "abc", "abc\n", "abc\r", "abc\r\n", "abc\u2028", "a\nc", "a\rc", "a\u0085c",
    "a c", "a\tb", "a\x0bb", "a b", "\u00a0", "١٢٣", "123", "é", "É", "éa", "éA", "STRAßE",
    "STRASSE", "cat", "a cat.", "concat", "écat", "caté", "😀", "é\u0301", "B", "D", "-", "]",
    "2026-03", "abcd", "ababab", "a.b+c@x-y.org", "a@b", "}]", "${x}", "$", "\\", "'", '"', "x",
    "K", "\u212a", ",x", "\nx", "_", "\x1f", "\x85",
]  # fmt: skip


def test_patterns_match_alike(engines):
    texts = pa.table({"n": list(range(len(TEXTS))), "text": TEXTS})
    contract = Contract(
        "silver.texts",
        (Column("n", Primitive("long")), Column("text", Primitive("string"))),
        rules=tuple(cases.rule("pattern", "text", pattern=p, name=p) for p in PATTERNS),
    )
    found = []
    for engine in engines:
        engine.put("texts", texts)
        reasons = compile_row_reasons(contract, engine.dialect)
        found.append(engine.query(f"select text, {reasons} as why from texts order by n"))
    assert found[0].to_pylist() == found[1].to_pylist()
    assert translate_pattern("a$").spark.startswith("(?du)")


_TEXT = st.text(alphabet="aA b1é😀'\\\"$\n\r\u2028\u00a0`{}", max_size=4)
_DAYS = st.dates(date(1970, 1, 1), date(2100, 1, 1))
_MOMENTS = st.datetimes(datetime(1970, 1, 1), datetime(2100, 1, 1))
_CENTS = st.integers(-(10**6), 10**6).map(lambda cents: Number(cents).scaleb(-2))
_FLOATS = st.sampled_from([0.0, -0.0, cases.NAN, cases.INFINITE, -cases.INFINITE, 0.1, 1.5, 5e-324])


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "id": _maybe(st.integers(0, 3)),
            "code": _maybe(_TEXT),
            "amount": _maybe(_CENTS),
            "score": _maybe(_FLOATS),
            "ratio": _maybe(_FLOATS.map(lambda x: float(pa.scalar(x, pa.float32()).as_py()))),
            "day": _maybe(_DAYS),
            "made_at": _maybe(_MOMENTS.map(lambda moment: moment.replace(tzinfo=UTC))),
            "local_at": _maybe(_MOMENTS),
            "paid": _maybe(st.booleans()),
            "customer": _maybe(st.sampled_from([10, 20, 30])),
            "address": _maybe(st.fixed_dictionaries({"zip": _maybe(_TEXT)})),
        }
    ),
    max_size=40,
)


def test_random_tables_give_the_same_outcomes(engines):
    """Hypothesis makes tables; both engines say the same of each row and of the whole."""
    patterns = [cases.rule("pattern", "code", pattern=pattern) for pattern in PATTERNS]
    rows = cases.contract(*(case.rule for case in cases.CASES.values()), *patterns)
    whole = cases.contract(
        *(cases.rule("duplicates", name) for name in ("code", "ratio", "made_at", "amount")),
        cases.rule("duplicates", "score", "paid"),
        cases.CASES["reference: two columns"].rule,
        cases.CASES["freshness: stale"].rule,
        cases.CASES["sql: a fraction"].rule,
        key=("id",),
    )

    @settings(
        max_examples=12, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(_ROWS)
    def agree(made: list[dict[str, Any]]) -> None:
        table = pa.Table.from_pylist(made, schema=cases.SCHEMA)
        table = table.append_column("n", pa.array(range(len(made)), pa.int32()))
        told = [_told(engine, rows, whole, table) for engine in engines]
        assert told[0] == told[1]

    agree()


def _told(engine: Any, rows: Contract, whole: Contract, table: pa.Table) -> tuple[Any, ...]:
    engine.put("things", table)
    reasons = compile_row_reasons(rows, engine.dialect)
    each = engine.query(f"select n, {reasons} as why from things").sort_by("n").to_pylist()
    compiled = compile_checks(whole, "things", REFERENCES, engine.dialect, cases.NOW, cases.KNOWN)
    outcomes = evaluate(compiled, engine.query(compiled.sql).to_pylist()[0])
    return each, [(o.rule, o.metric, o.holds, o.breaking_rows, o.message) for o in outcomes]


def test_sample_of_a_rule_without_rows_is_none():
    rule = cases.rule("row_count", bounds=(("mustBe", 1),))
    for dialect in ("duckdb", "spark"):
        compiled = compile_checks(
            cases.contract(rule), "things", REFERENCES, dialect, cases.NOW, cases.KNOWN
        )
        assert compile_sample_query(compiled, rule) is None
