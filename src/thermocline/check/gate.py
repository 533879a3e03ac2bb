"""The gate before publish: check a table as it stands on a branch, say what broke."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

from thermocline.check.compiler import Compiled, compile, evaluate, problem
from thermocline.check.rule_result import Outcome, plain
from thermocline.check.rules import rules
from thermocline.contract.definition import Contract, Rule
from thermocline.contract.problems import build_contract_error
from thermocline.errors import CheckFailed

if TYPE_CHECKING:
    import pyarrow as pa

    from thermocline.check.measures import Measures
    from thermocline.engine.query_types import Columns

_SHOWN_VALUE = 60
_MASK = "***"


class Engine(Protocol):
    """Where a check runs: anything that answers SQL of its dialect with Arrow."""

    @property
    def dialect(self) -> str:
        """The SQL that it speaks: duckdb or spark."""
        ...

    def query(self, sql: str, /) -> pa.Table:
        """The answer to one statement."""
        ...


@dataclass(frozen=True)
class Report:
    """The verdicts on one table."""

    table: str
    outcomes: tuple[Outcome, ...]
    rows: int = 0
    """How many rows the table has."""
    measured: tuple[Any, ...] = ()
    """What was measured for each of the contract's rules, in their order."""

    @property
    def failures(self) -> tuple[Outcome, ...]:
        """Broken rules that keep the table from being published."""
        return tuple(o for o in self.outcomes if not o.holds and o.severity == "error")

    @property
    def warnings(self) -> tuple[Outcome, ...]:
        """Broken rules that are only told."""
        return tuple(o for o in self.outcomes if not o.holds and o.severity != "error")

    @property
    def passed(self) -> bool:
        """Whether the table may be published."""
        return not self.failures

    def as_dict(self) -> dict[str, Any]:
        """The report for a program."""
        return {
            "table": self.table,
            "passed": self.passed,
            "rules": len(self.outcomes),
            "failures": len(self.failures),
            "warnings": len(self.warnings),
            "outcomes": [outcome.as_dict() for outcome in self.outcomes],
        }

    def raise_if_failed(self, branch: str | None = None) -> None:
        """Raise CheckFailed when a rule with severity error is broken."""
        raise_if_failed((self,), branch)


def check(
    contract: Contract,
    engine: Engine,
    relation: str,
    references: Mapping[str, str] | None = None,
    now: datetime | None = None,
    columns: Columns | None = None,
    known: Measures | None = None,
) -> Report:
    """Check one table in one query, and look for breaking rows only where a rule is broken.

    What is `known` of the table is not measured again. `relation`, `references` and `columns` are
    as in `compile`. Values of columns classified as personal data are masked in the samples: a
    report travels further than the table does.
    """
    from thermocline.check.sql_builder import ROWS

    if not rules(contract):
        return Report(contract.table, ())
    moment = datetime.now(UTC) if now is None else now
    compiled = compile(contract, relation, references or {}, engine.dialect, moment, columns)
    rows, measured = _all_measures(compiled, engine, known)
    outcomes = (
        outcome if outcome.holds else replace(outcome, sample=_sample(compiled, engine, outcome))
        for outcome in evaluate(
            compiled, {ROWS: rows, **dict(zip(compiled.aliases, measured, strict=True))}
        )
    )
    return Report(contract.table, tuple(outcomes), rows, tuple(measured))


def raise_if_failed(reports: Sequence[Report], branch: str | None = None) -> None:
    """Raise one CheckFailed that tells every broken rule of all tables, with breaking rows.

    `branch` is the one that is kept for looking at; without it the table was checked in place.
    """
    failed = [report for report in reports if not report.passed]
    if not failed:
        return
    lines = [line for report in failed for line in _told(report)]
    at = f" --at {branch}" if branch else ""
    raise CheckFailed(
        "\n".join(lines),
        f'Look at it: thermo query "select * from {failed[0].table}"{at}',
        branch=branch,
        reports=[report.as_dict() for report in failed],
    )


def _all_measures(
    compiled: Compiled, engine: Engine, known: Measures | None
) -> tuple[int, list[Any]]:
    """The table's rows and a value for each rule, of which some may be known."""
    from thermocline.check.sql_builder import ROWS

    if known is None or len(known.values) != len(compiled.rules):
        row = _measured(compiled, engine)
        return int(row[ROWS]), [row[alias] for alias in compiled.aliases]
    pairs = list(zip(compiled.rules, known.values, strict=True))
    left = [rule for rule, value in pairs if value is None]
    if not left:
        return known.rows, list(known.values)
    rest = compile(
        compiled.contract, compiled.relation, compiled.references, compiled.dialect, compiled.now,
        compiled.columns, left,
    )  # fmt: skip
    row = _measured(rest, engine)
    if int(row[ROWS]) != known.rows:
        # What is known is of other rows than the engine reads: nothing of it counts.
        return _all_measures(compiled, engine, None)
    found = iter([row[alias] for alias in rest.aliases])
    return known.rows, [next(found) if value is None else value for _, value in pairs]


def _measured(compiled: Compiled, engine: Engine) -> dict[str, Any]:
    try:
        found: list[dict[str, Any]] = engine.query(compiled.sql).to_pylist()
    except Exception as error:
        _blame(compiled, engine, error)
        raise
    return found[0]


def _blame(compiled: Compiled, engine: Engine, error: Exception) -> None:
    """When a custom rule is what the engine cannot run, say which one; else say nothing."""
    for rule in compiled.contract.rules:
        if rule.kind != "sql":
            continue
        try:
            engine.query(_alone(compiled, rule))
        except Exception as again:  # noqa: BLE001  an engine's own errors have no common class
            what = (str(again).splitlines() or [type(again).__name__])[0]
            raise build_contract_error(
                [problem(compiled.contract, rule, f"the query fails: {what}")]
            ) from error


def _alone(compiled: Compiled, rule: Rule) -> str:
    """The statement that measures nothing but one rule."""
    contract = compiled.contract
    columns = tuple(replace(column, required=False) for column in contract.columns)
    bare = replace(contract, columns=columns, key=(), freshness=None, rules=(rule,))
    return compile(
        bare,
        compiled.relation,
        compiled.references,
        compiled.dialect,
        compiled.now,
        compiled.columns,
    ).sql


def _sample(compiled: Compiled, engine: Engine, outcome: Outcome) -> tuple[dict[str, Any], ...]:
    from thermocline.check.violating_rows import sample_query

    query = sample_query(compiled, outcome.rule)
    if query is None or outcome.breaking_rows == 0:
        return ()
    rows: list[dict[str, Any]] = engine.query(query).to_pylist()
    return tuple(
        {name: _masked(compiled.contract, name, value) for name, value in row.items()}
        for row in rows
    )


def _masked(contract: Contract, name: str, value: Any) -> Any:
    column = contract.column(name) or contract.column(name.split(".")[0])
    personal = column is not None and (column.classification or "").lower().startswith("pii")
    return _MASK if personal and value is not None else value


def _told(report: Report) -> list[str]:
    count = len(report.failures)
    lines = [f"{report.table} breaks {count} rule{'' if count == 1 else 's'}; not published"]
    for outcome in report.failures:
        lines.append(f"  {outcome.rule.title}: {outcome.message}")
        lines += [f"    {_line(row)}" for row in outcome.sample]
    return lines


def _line(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{name}={_value(value)}" for name, value in row.items())


def _value(value: Any) -> str:
    """One value on one line: strings quoted, so that nothing in them can forge a line."""
    text = "null" if value is None else repr(value) if isinstance(value, str) else str(plain(value))
    return text if len(text) <= _SHOWN_VALUE else text[: _SHOWN_VALUE - 1] + "…"
