"""A contract's rules as one query over one table, and the verdicts from its one row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from thermocline.check.rule_result import Outcome, judge
from thermocline.check.rules import rules
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import Problem, build_contract_error, display_path
from thermocline.errors import BadInput

if TYPE_CHECKING:
    from thermocline.engine.query_types import Columns

DIALECTS = ("duckdb", "spark")


@dataclass(frozen=True)
class Compiled:
    """A query and how to read its row: the value under `aliases[i]` belongs to `rules[i]`."""

    contract: Contract
    relation: str
    references: Mapping[str, str]
    dialect: str
    columns: Columns
    now: datetime
    sql: str
    rules: tuple[Rule, ...]
    aliases: tuple[str, ...]


def compile(
    contract: Contract,
    relation: str,
    references: Mapping[str, str],
    dialect: str,
    now: datetime,
    columns: Columns | None = None,
    only: Sequence[Rule] | None = None,
) -> Compiled:
    """The one aggregate query that measures every rule of the contract, implied ones included.

    `relation` names what holds the table at one snapshot, `references` does so for the other
    tables ("layer.name") that rules read. `columns` are those of all these tables, by which custom
    rules are translated; without them the table's are its contract's.

    All rules that cannot be compiled are reported together in a ContractError. Nothing a contract
    says can become SQL other than a value or a name. With `only`, these rules are measured and no
    others.
    """
    from thermocline.check import sql_builder

    if dialect not in DIALECTS:
        raise BadInput(f"no check is written for {dialect}", f"Use {' or '.join(DIALECTS)}.")
    checked = rules(contract) if only is None else tuple(only)
    aliases = tuple(f"_r{number}" for number in range(len(checked)))
    others = {name: sql_builder.table(held, dialect) for name, held in references.items()}
    known = columns or {contract.table: {c.name: str(c.type) for c in contract.table_columns}}
    query, refused = sql_builder.measure(
        contract,
        dict(zip(aliases, checked, strict=True)),
        sql_builder.table(relation, dialect),
        others,
        dialect,
        known,
    )
    if refused:
        raise build_contract_error(
            [
                problem(contract, rule, str(refused[alias]))
                for alias, rule in zip(aliases, checked, strict=True)
                if alias in refused
            ]
        )
    sql = sql_builder.write(query, dialect)
    return Compiled(contract, relation, references, dialect, known, now, sql, checked, aliases)


def evaluate(compiled: Compiled, row: Mapping[str, Any]) -> list[Outcome]:
    """The verdict on each rule, from the row that the compiled query returned."""
    from thermocline.check.sql_builder import ROWS

    count = int(row[ROWS])
    return [
        judge(compiled.contract, rule, row[alias], count, compiled.now)
        for rule, alias in zip(compiled.rules, compiled.aliases, strict=True)
    ]


def references(contract: Contract) -> tuple[str, ...]:
    """The other tables that the contract's rules read, as "layer.name", each once."""
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
                named.update(custom_sql.tables(contract, custom_sql.parse(contract, rule)))
            except RuleError as error:
                raise build_contract_error([problem(contract, rule, str(error))]) from error
    return tuple(sorted(named - {contract.table}))


def problem(contract: Contract, rule: Rule, what: str) -> Problem:
    """What is wrong with a rule, with the line of the contract that a person has to mend."""
    path = display_path(contract.path) if contract.path else contract.table
    return Problem(path, rule.line, rule.title, what)
