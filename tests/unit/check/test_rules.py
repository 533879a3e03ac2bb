"""Every kind of rule on DuckDB, and what the rest of a contract implies."""

from __future__ import annotations

from datetime import timedelta

import pytest

from thermocline.check.compiler import compile_checks, evaluate, find_references
from thermocline.check.gate import check
from thermocline.check.rules import list_rules, row_rules
from thermocline.contract.definition import Column, Contract, Rule, WriteMode
from thermocline.contract.types import Primitive
from thermocline.errors import BadInput, ContractError

REFERENCES = {"silver.customers": "customers"}
TEXT = Primitive("string")


def test_rule_finds_what_it_must(engine, cases, case_name):
    case = cases.CASES[case_name]
    report = check(cases.contract(case.rule), engine, "things", REFERENCES, cases.NOW)
    outcome = report.outcomes[-1]
    assert outcome.rule == case.rule
    assert (outcome.metric, outcome.holds, outcome.breaking_rows) == (
        case.metric,
        case.holds,
        case.breaking,
    )
    assert report.passed is case.holds
    if case.sample:
        assert outcome.sample == case.sample


def test_all_rules_are_measured_by_one_statement(engine, cases):
    every = cases.contract(*(case.rule for case in cases.CASES.values()))
    compiled = compile_checks(every, "things", REFERENCES, "duckdb", cases.NOW)
    outcomes = evaluate(compiled, engine.query(compiled.sql).to_pylist()[0])
    stated = [(outcome.rule, outcome.metric) for outcome in outcomes][-len(cases.CASES) :]
    assert stated == [(case.rule, case.metric) for case in cases.CASES.values()]
    assert len(engine.statements) == 1


def test_required_and_key_columns_imply_rules():
    contract = Contract(
        "silver.t", (Column("a", TEXT, required=True), Column("b", TEXT), Column("c", TEXT)),
        key=("b",), freshness=timedelta(hours=1), freshness_column="c",
    )  # fmt: skip
    assert list_rules(contract) == (
        Rule("missing", ("a",)),
        Rule("missing", ("b",)),
        Rule("duplicates", ("b",)),
        Rule("freshness", ("c",), severity="warning"),
    )


def test_history_may_repeat_a_key_but_not_a_version():
    contract = Contract(
        "silver.t", (Column("a", TEXT, required=True),), key=("a",), write=WriteMode.SCD2
    )
    assert [(rule.kind, rule.columns) for rule in list_rules(contract)] == [
        ("missing", ("a",)),
        ("missing", ("_valid_from",)),
        ("missing", ("_is_current",)),
        ("duplicates", ("a", "_valid_from")),
    ]


def test_a_stated_rule_takes_the_place_of_the_implied_one():
    stated = (
        Rule("missing", ("a",), bounds=(("mustBeLessThan", 5),), unit="percent"),
        Rule("duplicates", ("b", "a"), severity="warning"),
    )
    columns = (Column("a", TEXT, required=True), Column("b", TEXT, required=True))
    contract = Contract("silver.t", columns, key=("a", "b"), rules=stated)
    assert list_rules(contract) == (Rule("missing", ("b",)), *stated)


def test_only_strict_errors_judge_single_rows():
    def missing(**more):
        return Rule("missing", ("a",), **more)

    stated = (
        missing(name="strict"),
        missing(name="also strict", bounds=(("mustBeLessThan", 1),)),
        missing(name="tolerant", bounds=(("mustBeLessThan", 2),)),
        missing(name="share", bounds=(("mustBeLessThan", 1),), unit="percent"),
        missing(name="told", severity="warning"),
        Rule("duplicates", ("a",), name="not about one row"),
    )
    contract = Contract("bronze.t", (Column("a", TEXT),), rules=stated)
    assert [rule.name for rule in row_rules(contract)] == ["strict", "also strict"]


def test_referenced_tables_are_known_before_the_check(cases):
    contract = cases.contract(
        cases.rule("reference", "customer", table="silver.people", columns=("id",)),
        cases.rule("reference", "customer", table="silver.things", columns=("id",)),
        cases.sql("with x as (select 1 as a) select count(*) from {object}, x, gold.days"),
    )
    assert find_references(contract) == ("gold.days", "silver.people")


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (Rule("missing", ("codee",)), 'there is no column "codee"; did you mean "code"?'),
        (Rule("missing", ("address.zap",)), 'there is no field "zap"'),
        (Rule("missing"), "names no column"),
        (Rule("duplicates"), "names no column"),
        (Rule("accepted", ("code",), (("values", []),)), "accepts no value at all"),
        (Rule("accepted", ("customer",), (("values", ["x"]),)), '"x" is not a number'),
        (Rule("accepted", ("day",), (("values", ["x"]),)), '"x" is not a date'),
        (Rule("range", ("code",)), "neither min nor max"),
        (Rule("range", ("address",), (("min", 1),)), "has no range"),
        (Rule("range", ("paid",), (("min", 1),)), "a boolean column has no range"),
        (Rule("range", ("score",), (("min", float("nan")),)), "NaN is not a bound"),
        (Rule("length", ("customer",), (("min", 1),)), "a int column has no length"),
        (Rule("pattern", ("code",)), "has no pattern"),
        (Rule("pattern", ("customer",), (("pattern", "1"),)), "has no text to match"),
        (Rule("pattern", ("code",), (("pattern", "(?=a)"),)), "(?=a at character 1"),
        (Rule("reference", ("customer",)), "needs a table"),
        (
            Rule("reference", ("customer",), (("table", "gold.x"), ("columns", ("id",)))),
            'refers to "gold.x", which is not a table of the lake',
        ),
        (Rule("freshness"), "names no column"),
        (Rule("freshness", ("code",)), "does not say when"),
        (Rule("shape", ("code",)), 'no rule of kind "shape"'),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_compiled_says_why(cases, bad, words):
    with pytest.raises(ContractError) as refused:
        compile_checks(cases.contract(bad), "things", REFERENCES, "duckdb", cases.NOW)
    assert words in str(refused.value)


def test_all_bad_rules_are_told_together_with_their_lines(cases):
    bad = (Rule("missing", ("x",), line=31), Rule("range", ("amount",), line=7))
    with pytest.raises(ContractError) as refused:
        compile_checks(cases.contract(*bad), "things", {}, "duckdb", cases.NOW)
    assert [str(problem) for problem in refused.value.problems] == [
        "silver.things:7  range(amount): has neither min nor max",
        'silver.things:31  missing(x): there is no column "x"',
    ]


def test_unknown_dialect_is_refused(cases):
    with pytest.raises(BadInput, match="no check is written for oracle"):
        compile_checks(cases.contract(), "things", {}, "oracle", cases.NOW)
