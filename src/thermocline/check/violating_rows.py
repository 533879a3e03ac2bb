"""Find the rows that violate a rule: samples for people, reasons for ingestion."""

from __future__ import annotations

from thermocline.check.compiler import CompiledChecks, build_problem
from thermocline.check.rule_result import describe_violation
from thermocline.check.rules import row_rules
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import Problem, build_contract_error


def compile_sample_query(compiled: CompiledChecks, rule: Rule) -> str | None:
    """Compile the query for up to five violating rows: key columns and offending values.

    None if the rule is not about single rows (a row count, an age, a query that is not a simple
    count of the table's rows). Each repeated key is returned once, with its number of rows.
    """
    from thermocline.check import sql_builder
    from thermocline.check.checked_table import parse_checked_table
    from thermocline.check.predicate import RuleError

    table = parse_checked_table(
        compiled.contract,
        compiled.relation,
        compiled.references,
        compiled.dialect,
        compiled.columns,
    )
    try:
        query = sql_builder.build_sample_query(table, rule)
        return None if query is None else sql_builder.to_sql(query, compiled.dialect)
    except RuleError as error:
        raise build_contract_error([build_problem(compiled.contract, rule, str(error))]) from error


def compile_row_reasons(contract: Contract, dialect: str) -> str:
    """Compile an SQL expression over one row: an array of the reasons to reject it.

    The array is empty for a valid row. It covers the columns that must not be missing, and all
    row-level rules with severity error that tolerate no violating row.
    """
    from thermocline.check import sql_builder
    from thermocline.check.predicate import RuleError

    reasons: dict[str, Rule] = {}
    problems: list[Problem] = []
    for rule in row_rules(contract):
        try:
            sql_builder.build_reasons(contract, {"": rule}, dialect)
            reasons[
                f"{describe_violation(rule)} ({rule.name})"
                if rule.name
                else describe_violation(rule)
            ] = rule
        except RuleError as error:
            problems.append(build_problem(contract, rule, str(error)))
    if problems:
        raise build_contract_error(problems)
    return sql_builder.to_sql(sql_builder.build_reasons(contract, reasons, dialect), dialect)


def compile_row_violation(contract: Contract, dialect: str) -> str:
    """Compile an SQL condition over one row: whether there is any reason to reject it."""
    from thermocline.check import sql_builder

    return sql_builder.to_sql(
        sql_builder.build_any_violation(contract, row_rules(contract), dialect), dialect
    )
