"""Which rows break a rule: samples for a person, reasons for ingestion."""

from __future__ import annotations

from thermocline.check.compiler import Compiled, problem
from thermocline.check.rule_result import fault
from thermocline.check.rules import row_rules
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import Problem, build_contract_error


def sample_query(compiled: Compiled, rule: Rule) -> str | None:
    """The query for up to five rows that break the rule: key columns and offending values.

    None when the rule is not about single rows (a row count, an age, a query that is not a plain
    count of the table's rows). Repeated keys come once each, with their number of rows.
    """
    from thermocline.check import sql_builder
    from thermocline.check.predicate import RuleError

    dialect = compiled.dialect
    others = {name: sql_builder.table(held, dialect) for name, held in compiled.references.items()}
    relation = sql_builder.table(compiled.relation, dialect)
    try:
        query = sql_builder.sample(
            compiled.contract, rule, relation, others, dialect, compiled.columns
        )
        return None if query is None else sql_builder.write(query, dialect)
    except RuleError as error:
        raise build_contract_error([problem(compiled.contract, rule, str(error))]) from error


def row_reasons(contract: Contract, dialect: str) -> str:
    """An SQL expression over one row: an array of the reasons why it may not enter the table.

    The array is empty when the row is fine. It covers the columns that may not be missing and all
    row-level rules that tolerate no breaking row and have the severity error.
    """
    from thermocline.check import sql_builder
    from thermocline.check.predicate import RuleError

    reasons: dict[str, Rule] = {}
    problems: list[Problem] = []
    for rule in row_rules(contract):
        try:
            sql_builder.reasons(contract, {"": rule}, dialect)
            reasons[f"{fault(rule)} ({rule.name})" if rule.name else fault(rule)] = rule
        except RuleError as error:
            problems.append(problem(contract, rule, str(error)))
    if problems:
        raise build_contract_error(problems)
    return sql_builder.write(sql_builder.reasons(contract, reasons, dialect), dialect)


def row_breaks(contract: Contract, dialect: str) -> str:
    """An SQL condition over one row: whether `row_reasons` has any reason for it."""
    from thermocline.check import sql_builder

    return sql_builder.write(sql_builder.broken(contract, row_rules(contract), dialect), dialect)
