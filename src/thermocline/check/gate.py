"""The gate before publish: check a table on a branch, and report the broken rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.check.compiler import CompiledChecks, build_problem, compile_checks, evaluate
from thermocline.check.rule_result import RuleOutcome, to_json_value
from thermocline.check.rules import list_rules
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import build_contract_error
from thermocline.errors import CheckFailed, first_line

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.check.measures import Measures
    from thermocline.engine.query_types import Columns

_MAX_VALUE_LENGTH = 60
_MASK = "***"


class Engine(Protocol):
    """An engine that checks run on: it answers SQL of its dialect with Arrow tables."""

    @property
    def dialect(self) -> str:
        """Its SQL dialect: duckdb or spark."""
        ...

    def query(self, sql: str, /) -> pa.Table:
        """Execute one statement."""
        ...


@dataclass(frozen=True)
class CheckReport:
    """The outcomes of all rules of one table."""

    table: str
    outcomes: tuple[RuleOutcome, ...]
    rows: int = 0
    """The table's number of rows."""
    measured: tuple[Any, ...] = ()
    """The measured value of each rule, in order."""

    @property
    def failures(self) -> tuple[RuleOutcome, ...]:
        """The broken rules that prevent publishing."""
        return tuple(o for o in self.outcomes if not o.holds and o.severity == "error")

    @property
    def warnings(self) -> tuple[RuleOutcome, ...]:
        """The broken rules that are only reported."""
        return tuple(o for o in self.outcomes if not o.holds and o.severity != "error")

    @property
    def passed(self) -> bool:
        """Whether the table may be published."""
        return not self.failures

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "table": self.table,
            "passed": self.passed,
            "rules": len(self.outcomes),
            "failures": len(self.failures),
            "warnings": len(self.warnings),
            "outcomes": [outcome.as_dict() for outcome in self.outcomes],
        }

    def raise_if_failed(self, branch: str | None = None) -> None:
        """Raise CheckFailed if a rule with severity error is broken."""
        raise_if_failed((self,), branch)


def check(
    contract: Contract,
    engine: Engine,
    relation: str,
    references: Mapping[str, str] | None = None,
    now: datetime | None = None,
    columns: Columns | None = None,
    known: Measures | None = None,
) -> CheckReport:
    """Check one table in one query, and read violating rows only for broken rules.

    The `known` measures are not measured again. `relation`, `references` and `columns` are as in
    `compile_checks`. Samples mask the values of columns that are classified as personal data: a
    report reaches more people than the table.
    """
    from thermocline.check.sql_builder import ROWS

    if not list_rules(contract):
        return CheckReport(contract.table, ())
    moment = datetime.now(UTC) if now is None else now
    compiled = compile_checks(contract, relation, references or {}, engine.dialect, moment, columns)
    rows, measured = _collect_measures(compiled, engine, known)
    outcomes = (
        outcome
        if outcome.holds
        else replace(outcome, sample=_sample_rows(compiled, engine, outcome))
        for outcome in evaluate(
            compiled, {ROWS: rows, **dict(zip(compiled.aliases, measured, strict=True))}
        )
    )
    return CheckReport(contract.table, tuple(outcomes), rows, tuple(measured))


def raise_if_failed(reports: Sequence[CheckReport], branch: str | None = None) -> None:
    """Raise one CheckFailed with every broken rule of all tables, and samples of violating rows.

    `branch` is the branch that is kept for inspection; without it the table was checked in place.
    """
    failed = [report for report in reports if not report.passed]
    if not failed:
        return
    lines = [line for report in failed for line in _describe_failures(report)]
    option = f" --at {branch}" if branch else ""
    raise CheckFailed(
        "\n".join(lines),
        f'Inspect it: thermo query "select * from {failed[0].table}"{option}',
        branch=branch,
        reports=[report.as_dict() for report in failed],
    )


def _collect_measures(
    compiled: CompiledChecks, engine: Engine, known: Measures | None
) -> tuple[int, list[Any]]:
    """Return the table's row count and a value for each rule; measure only what is unknown."""
    from thermocline.check.sql_builder import ROWS

    if known is None or len(known.values) != len(compiled.rules):
        row = _measure(compiled, engine)
        return int(row[ROWS]), [row[alias] for alias in compiled.aliases]
    pairs = list(zip(compiled.rules, known.values, strict=True))
    left = [rule for rule, value in pairs if value is None]
    if not left:
        return known.rows, list(known.values)
    rest = compile_checks(
        compiled.contract, compiled.relation, compiled.references, compiled.dialect, compiled.now,
        compiled.columns, left,
    )  # fmt: skip
    row = _measure(rest, engine)
    if int(row[ROWS]) != known.rows:
        # The known measures are of other rows than the engine reads, so they are void.
        return _collect_measures(compiled, engine, None)
    found = iter([row[alias] for alias in rest.aliases])
    return known.rows, [next(found) if value is None else value for _, value in pairs]


def _measure(compiled: CompiledChecks, engine: Engine) -> dict[str, Any]:
    try:
        found: list[dict[str, Any]] = engine.query(compiled.sql).to_pylist()
    except Exception as error:
        _raise_for_custom_rule(compiled, engine, error)
        raise
    return found[0]


def _raise_for_custom_rule(compiled: CompiledChecks, engine: Engine, error: Exception) -> None:
    """Raise ContractError for the custom rule that the engine cannot run, if there is one."""
    for rule in compiled.contract.rules:
        if rule.kind != "sql":
            continue
        try:
            engine.query(_compile_single(compiled, rule))
        except Exception as again:  # noqa: BLE001  an engine's own errors have no common class
            reason = first_line(again)
            raise build_contract_error(
                [build_problem(compiled.contract, rule, f"the query fails: {reason}")]
            ) from error


def _compile_single(compiled: CompiledChecks, rule: Rule) -> str:
    """Compile the statement that measures only one rule."""
    contract = compiled.contract
    columns = tuple(replace(column, required=False) for column in contract.columns)
    bare = replace(contract, columns=columns, key=(), freshness=None, rules=(rule,))
    return compile_checks(
        bare,
        compiled.relation,
        compiled.references,
        compiled.dialect,
        compiled.now,
        compiled.columns,
    ).sql


def _sample_rows(
    compiled: CompiledChecks, engine: Engine, outcome: RuleOutcome
) -> tuple[dict[str, Any], ...]:
    from thermocline.check.violating_rows import compile_sample_query

    query = compile_sample_query(compiled, outcome.rule)
    if query is None or outcome.breaking_rows == 0:
        return ()
    rows: list[dict[str, Any]] = engine.query(query).to_pylist()
    return tuple(
        {name: _mask(compiled.contract, name, value) for name, value in row.items()} for row in rows
    )


def _mask(contract: Contract, name: str, value: Any) -> Any:
    column = contract.column(name) or contract.column(name.split(".")[0])
    personal = column is not None and (column.classification or "").lower().startswith("pii")
    return _MASK if personal and value is not None else value


def _describe_failures(report: CheckReport) -> list[str]:
    count = len(report.failures)
    lines = [f"{report.table} breaks {count} rule{'' if count == 1 else 's'}; not published"]
    for outcome in report.failures:
        lines.append(f"  {outcome.rule.title}: {outcome.message}")
        lines += [f"    {_format_row(row)}" for row in outcome.sample]
    return lines


def _format_row(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={_format_value(value)}" for name, value in row.items())


def _format_value(value: Any) -> str:
    """Format a value on one line; strings are quoted, so that they cannot forge a line."""
    if value is None:
        text = "null"
    else:
        text = repr(value) if isinstance(value, str) else str(to_json_value(value))
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 1] + "…"
