"""Compile a contract's rules to one query over one table, and evaluate its one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from thermocline.check.rule_result import RuleOutcome, evaluate_rule
from thermocline.check.rules import list_rules
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import Problem, build_contract_error, display_path
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from thermocline.engine.query_types import Columns

DIALECTS = ("duckdb", "spark")


@dataclass(frozen=True)
class CompiledChecks:
    """A query and the meaning of its row: the value under `aliases[i]` belongs to `rules[i]`."""

    contract: Contract
    relation: str
    references: Mapping[str, str]
    dialect: str
    columns: Columns
    now: datetime
    sql: str
    rules: tuple[Rule, ...]
    aliases: tuple[str, ...]


def compile_checks(
    contract: Contract,
    relation: str,
    references: Mapping[str, str],
    dialect: str,
    now: datetime,
    columns: Columns | None = None,
    only: Sequence[Rule] | None = None,
) -> CompiledChecks:
    """Compile the one aggregate query that measures every rule, implied rules included.

    `relation` names a relation with the table's rows at one snapshot; `references` names such
    relations for the other tables ("layer.name") that rules read. `columns` are the columns of all
    these tables, for the translation of custom rules; by default the table has those of its
    contract.

    All rules that cannot be compiled are reported together in a ContractError. A contract's text
    becomes SQL only as a value or a name. With `only`, only these rules are measured.
    """
    from thermocline.check import sql_builder
    from thermocline.check.checked_table import parse_checked_table

    if dialect not in DIALECTS:
        raise BadInput(f"no check is written for {dialect}", f"Use {' or '.join(DIALECTS)}.")
    checked = list_rules(contract) if only is None else tuple(only)
    aliases = tuple(f"_r{number}" for number in range(len(checked)))
    known = columns or {contract.table: {c.name: str(c.type) for c in contract.table_columns}}
    table = parse_checked_table(contract, relation, references, dialect, known)
    query, refused = sql_builder.build_measure_query(
        table, dict(zip(aliases, checked, strict=True))
    )
    if refused:
        raise build_contract_error(
            [
                build_problem(contract, rule, str(refused[alias]))
                for alias, rule in zip(aliases, checked, strict=True)
                if alias in refused
            ]
        )
    sql = sql_builder.to_sql(query, dialect)
    return CompiledChecks(
        contract, relation, references, dialect, known, now, sql, checked, aliases
    )


def evaluate(compiled: CompiledChecks, row: Mapping[str, Any]) -> list[RuleOutcome]:
    """Evaluate each rule by the row that the compiled query returned."""
    from thermocline.check.sql_builder import ROWS

    count = int(row[ROWS])
    return [
        evaluate_rule(compiled.contract, rule, row[alias], count, compiled.now)
        for rule, alias in zip(compiled.rules, compiled.aliases, strict=True)
    ]


def find_references(contract: Contract) -> tuple[str, ...]:
    """Return the other tables that the contract's rules read, as "layer.name", each once."""
    named = {
        str(rule.argument("table"))
        for rule in contract.rules
        if rule.kind == "reference" and rule.argument("table")
    }
    if any(rule.kind == "sql" for rule in contract.rules):
        from thermocline.check import custom_sql
        from thermocline.check.predicate import RuleError

        for rule in contract.rules:
            if rule.kind != "sql":
                continue
            try:
                named.update(custom_sql.find_tables(contract, custom_sql.parse(contract, rule)))
            except RuleError as error:
                raise build_contract_error([build_problem(contract, rule, str(error))]) from error
    return tuple(sorted(named - {contract.table}))


def build_problem(contract: Contract, rule: Rule, message: str) -> Problem:
    """Build the problem of a rule, with the line of the contract to fix."""
    path = display_path(contract.path) if contract.path else contract.table
    return Problem(path, rule.line, rule.title, message)
