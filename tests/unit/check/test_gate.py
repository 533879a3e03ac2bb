"""The gate: reports, samples, and what a person is told."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta

import pyarrow as pa
import pytest

from thermocline.check.gate import check, raise_if_failed
from thermocline.check.violating_rows import compile_row_reasons
from thermocline.contract.definition import Column, Contract, Rule
from thermocline.contract.types import Primitive
from thermocline.errors import CheckFailed, ContractError


@pytest.fixture
def broken(engine, cases):
    contract = cases.contract(
        cases.rule("range", "amount", min=0, name="no debts"),
        cases.rule("missing", "code", severity="warning"),
        key=("id",),
    )
    return check(contract, engine, "things", {}, cases.NOW)


def test_failed_report_names_rule_rows_and_branch(broken):
    with pytest.raises(CheckFailed) as failed:
        broken.raise_if_failed("run-01JC")
    assert failed.value.cause.splitlines() == [
        "silver.things breaks 2 rules; not published",
        "  duplicates(id): 2 of 6 rows: id is in another row too",
        "    id=2  _rows=2",
        "  no debts: 1 of 6 rows: amount is not ≥ 0",
        "    id=2  amount=-0.01",
    ]
    assert failed.value.next_step == (
        'Inspect it: thermo query "select * from silver.things" --at run-01JC'
    )
    assert failed.value.details["branch"] == "run-01JC"
    assert failed.value.exit_code == 4


def test_warnings_do_not_fail(engine, cases):
    rule = cases.rule("missing", "code", severity="warning")
    report = check(cases.contract(rule), engine, "things", {}, cases.NOW)
    assert report.passed
    assert [outcome.message for outcome in report.warnings] == ["1 of 6 rows: code is missing"]
    report.raise_if_failed("run-1")


def test_report_is_json(broken):
    said = json.loads(json.dumps(broken.as_dict()))
    assert (said["passed"], said["rules"], said["failures"], said["warnings"]) == (False, 4, 2, 1)
    assert said["outcomes"][2] == {
        "rule": "no debts",
        "kind": "range",
        "columns": ["amount"],
        "metric": 1,
        "holds": False,
        "breaking_rows": 1,
        "message": "1 of 6 rows: amount is not ≥ 0",
        "severity": "error",
        "sample": [{"id": 2, "amount": "-0.01"}],
    }


def test_several_tables_fail_together(broken):
    fine = replace(broken, table="silver.fine", outcomes=())
    with pytest.raises(CheckFailed) as failed:
        raise_if_failed([fine, broken, replace(broken, table="gold.other")])
    told = failed.value.cause
    assert "silver.things breaks 2 rules" in told
    assert "gold.other breaks 2 rules" in told
    assert "silver.fine" not in told
    assert "--at" not in failed.value.next_step


def test_no_more_than_five_rows_are_shown_in_the_order_of_the_key(engine, cases):
    engine.put("many", pa.table({"id": list(range(100, 0, -1)), "code": [None] * 100}))
    columns = (Column("id", Primitive("long")), Column("code", Primitive("string"), required=True))
    report = check(Contract("silver.many", columns, key=("id",)), engine, "many", {}, cases.NOW)
    (failure,) = report.failures
    assert failure.breaking_rows == 100
    assert [row["id"] for row in failure.sample] == [1, 2, 3, 4, 5]


def test_personal_values_are_masked(engine, cases):
    columns = (
        Column("id", Primitive("long")),
        Column("code", Primitive("string"), classification="PII.direct"),
    )
    contract = Contract(
        "silver.t", columns, rules=(Rule("length", ("code",), (("max", 4),)),), key=("id",)
    )
    report = check(contract, engine, "things", {}, cases.NOW)
    assert report.failures[-1].sample == ({"id": 5, "code": "***"},)


def test_a_value_cannot_forge_a_line(engine, cases):
    engine.put("t", pa.table({"code": ["x\n  all is well\r\x1b[2J" + "y" * 100]}))
    rule = cases.rule("pattern", "code", pattern="^a")
    contract = Contract("silver.t", (Column("code", Primitive("string")),), rules=(rule,))
    with pytest.raises(CheckFailed) as failed:
        check(contract, engine, "t", {}, cases.NOW).raise_if_failed()
    lines = failed.value.cause.splitlines()
    assert len(lines) == 3
    assert lines[2].startswith(r"    code='x\n  all is well\r\x1b[2Jyyy")
    assert lines[2].endswith("…")


def test_no_rules_ask_nothing(engine, cases):
    contract = Contract("silver.t", (Column("code", Primitive("string")),))
    report = check(contract, engine, "no such table", {}, cases.NOW)
    assert (report.passed, report.outcomes, engine.statements) == (True, (), [])


def test_rules_that_hold_cost_one_statement(engine, cases):
    check(cases.contract(cases.rule("range", "id", min=0)), engine, "things", {}, cases.NOW)
    assert len(engine.statements) == 1


def test_empty_table(engine, cases):
    engine.put("things", cases.TABLE.slice(0, 0))
    kinds = (
        cases.rule("missing", "code"),
        cases.rule("missing", "code", unit="percent", bounds=(("mustBeLessThan", 1),)),
        cases.rule("duplicates", "id"),
        cases.rule("accepted", "code", values=["a"]),
        cases.rule("range", "score", min=0),
        cases.rule("length", "code", min=1),
        cases.rule("pattern", "code", pattern="a"),
        cases.rule("reference", "customer", table="silver.customers", columns=("id",)),
        cases.rule("row_count", bounds=(("mustBeGreaterThan", 0),)),
        cases.rule("freshness", "made_at", within=timedelta(hours=1)),
        cases.sql("select count(*) from {object}"),
        cases.sql("select max(amount) from {object}", bounds=(("mustBeLessThan", 5),)),
    )
    report = check(
        cases.contract(*kinds), engine, "things", {"silver.customers": "customers"}, cases.NOW
    )
    stated = report.outcomes[1:]
    assert [outcome.metric for outcome in stated] == [0, 0, 0, 0, 0, 0, 0, 0, 0, None, 0, None]
    assert [outcome.rule.kind for outcome in report.failures] == ["row_count", "freshness"]
    assert report.failures[1].message == "no row has a made_at, so nothing is fresh"


def test_freshness_is_told_in_words(engine, cases):
    contract = cases.contract(freshness=timedelta(seconds=20), freshness_column="made_at")
    (warning,) = check(contract, engine, "things", {}, cases.NOW).warnings
    assert warning.message == "the newest made_at is 30 s old; it must be at most 20 s"


def test_an_engine_error_without_custom_rules_is_the_engines_own(engine, cases):
    with pytest.raises(Exception, match="no_such_table") as failed:
        check(cases.contract(), engine, "no_such_table", {}, cases.NOW)
    assert not isinstance(failed.value, ContractError)


def test_row_reasons_split_rows(engine, cases):
    contract = cases.contract(
        cases.rule("accepted", "paid", values=[True]),
        cases.rule("range", "amount", min=0, max=99, name="price"),
        cases.rule("pattern", "code", pattern="^[a-z]"),
        cases.rule("missing", "code", severity="warning"),
        cases.rule("length", "code", min=1),
    )
    reasons = compile_row_reasons(contract, "duckdb")
    found = engine.query(f"select id, {reasons} as why from things order by rowid").to_pylist()
    assert [(row["id"], row["why"]) for row in found] == [
        (1, []),
        (2, ['paid is not one of "True"']),
        (2, ["amount is not ≥ 0 and ≤ 99 (price)"]),
        (
            3,
            [
                "amount is not ≥ 0 and ≤ 99 (price)",
                'code does not match "^[a-z]"',
                "code is not ≥ 1 characters long",
            ],
        ),
        (4, []),
        (
            5,
            [
                'paid is not one of "True"',
                "amount is not ≥ 0 and ≤ 99 (price)",
                'code does not match "^[a-z]"',
            ],
        ),
    ]


def test_row_reasons_without_rules_are_an_empty_list(engine):
    contract = Contract("bronze.t", (Column("code", Primitive("string")),))
    found = engine.query(f"select {compile_row_reasons(contract, 'duckdb')} as why")
    assert found.to_pylist() == [{"why": []}]
    assert found.schema.field("why").type == pa.list_(pa.string())


def test_row_reasons_tell_every_bad_rule(cases):
    bad = (Rule("range", ("amount",)), Rule("pattern", ("nope",), (("pattern", "a"),)))
    with pytest.raises(ContractError) as refused:
        compile_row_reasons(cases.contract(*bad), "spark")
    assert len(refused.value.problems) == 2


def test_the_gate_is_imported_without_sqlglot():
    code = (
        "import sys, thermocline.check.gate, thermocline.check.violating_rows;"
        "print(sorted({'sqlglot', 'duckdb', 'pyarrow', 'pyspark'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
